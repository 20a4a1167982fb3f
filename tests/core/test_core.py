"""SoftPermutation: shapes, dtypes, tiles against the dense twin, masks, transforms, errors."""
import copy
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import softsortlib.core.permutation as core
from softsortlib.core.permutation import (SoftPermutation, is_doubly_stochastic, is_permutation_matrix, is_row_stochastic,
                              is_unimodal_row_stochastic, permutation_matrix)
from softsortlib.core.operators import Operator
from softsortlib.core.stochastic import SampleMean
from softsortlib.losses.orders import ideal_order
from softsortlib.rowwise.softsort import SoftSort

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def make(*shape, rng, dtype=torch.float64, mask=None):
    return SoftPermutation.from_logits(torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype), mask)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (1, 3)])
@pytest.mark.parametrize("m, n", [(5, 5), (2, 5), (7, 4), (1, 1)])
def test_every_method_agrees_with_the_matrix(batch, m, n, dtype, rng):
    P = make(*batch, m, n, rng=rng, dtype=dtype)
    D, tol = P.to_dense(), dict(rtol=1e-2, atol=1e-2) if dtype.itemsize == 2 else {}
    x, X = torch.randn(*batch, n, generator=rng).to(dtype), torch.randn(*batch, n, 3, generator=rng).to(dtype)
    y = torch.randn(*batch, m, generator=rng).to(dtype)
    target = torch.randint(n, (*batch, m), generator=rng)
    assert (P @ x).dtype == D.dtype == P.log_prob(target).dtype == dtype
    assert_close(P @ x, (D @ x[..., None])[..., 0], **tol)
    assert_close(P @ X, D @ X, **tol)
    assert_close(P.mT @ y, (D.mT @ y[..., None])[..., 0], **tol)
    assert_close(P.mT.to_dense(), D.mT)
    assert_close(P.log_prob(target), D.gather(-1, target[..., None])[..., 0].log(), **tol)
    assert_close(P[..., [m - 1, 0], :] @ X, D[..., [m - 1, 0], :] @ X, **tol)
    assert_close(P[..., -1, :], D[..., -1, :])
    positions = torch.arange(1.0, m + 1) @ D.float() / D.float().sum(-2)
    assert_close(P._mean_positions().float(), positions, **tol)
    assert torch.equal(P.hard(), P.log_P.argmax(-1))


@given(batch=st.integers(1, 3), n=st.integers(1, 6), d=st.integers(1, 3), seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_payload_shapes(batch, n, d, seed):
    "A vector payload is read as a vector whenever it can be, everything else as torch.matmul reads it."
    rng = torch.Generator().manual_seed(seed)
    P = make(batch, n, n, rng=rng)
    assert (P @ torch.randn(batch, n, dtype=torch.float64, generator=rng)).shape == (batch, n)
    assert (P @ torch.randn(batch, n, d, dtype=torch.float64, generator=rng)).shape == (batch, n, d)
    assert (P @ torch.randn(5, batch, n, d, dtype=torch.float64, generator=rng)).shape == (5, batch, n, d)
    assert (P @ torch.randn(n, dtype=torch.float64, generator=rng)).shape == (batch, n)


@pytest.mark.parametrize("rows", [None, slice(1, 6, 2), [3, 3, 0]])
def test_tiles_agree_with_the_whole(monkeypatch, rng, rows):
    "Values and gradients do not depend on the size of a tile."
    logits = torch.randn(2, 7, 7, generator=rng, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 7, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    def everything():
        P = SoftPermutation.from_logits(logits)
        if rows is not None: P = P[..., rows, :]
        y = torch.linspace(0, 1, P.m, dtype=torch.float64)
        target = torch.arange(P.m).expand(2, P.m)
        out = [P @ x, P.mT @ y, P.log_prob(target)]
        return [*out, *torch.autograd.grad(sum(o.square().sum() for o in out), (logits, x))], P.hard()
    whole, hard = everything()
    monkeypatch.setattr(core, "_TILE", 20)
    tiled, hard_tiled = everything()
    for a, b in zip(whole, tiled): assert_close(a, b)
    assert torch.equal(hard, hard_tiled)


@pytest.mark.parametrize("lengths", [(5, 3, 1), (5, 5, 5), (0, 2, 5)])
def test_masked_sets_equal_short_sets(lengths, rng):
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    mask = mask[:, torch.randperm(5, generator=rng)]
    logits = torch.randn(3, 5, 5, generator=rng, dtype=torch.float64)
    x = torch.randn(3, 5, generator=rng, dtype=torch.float64).masked_fill(~mask, math.nan)
    P = SoftPermutation.from_logits(logits, mask)
    for b, n in enumerate(lengths):
        assert_close((P @ x)[b, n:], torch.zeros(5 - n, dtype=torch.float64))
        assert sorted(P.hard()[b, n:].tolist()) == (~mask[b]).nonzero()[:, 0].tolist()
        if n:
            short = SoftPermutation.from_logits(logits[b, :n][:, mask[b]])
            assert_close((P @ x)[b, :n], short @ x[b, mask[b]])
            assert_close((P.mT @ torch.ones(5))[b, mask[b]], short.mT @ torch.ones(n))
    assert not (P.mT @ torch.ones(5))[~mask].any()
    assert not P.to_dense().isnan().any()


def test_gradients_of_the_straight_through_matrix(rng):
    logits = torch.randn(4, 4, generator=rng, dtype=torch.float64, requires_grad=True)
    x = torch.randn(4, generator=rng, dtype=torch.float64, requires_grad=True)
    P = SoftPermutation.from_logits(logits)
    H = torch.nn.functional.one_hot(P.hard(), 4).double()
    by_hand = (P.to_dense() + (H - P.to_dense()).detach()) @ x
    w = torch.randn(4, generator=rng, dtype=torch.float64)
    for a, b in zip(torch.autograd.grad((P.straight_through() @ x) @ w, (logits, x), retain_graph=True), torch.autograd.grad(by_hand @ w, (logits, x))):
        assert_close(a, b)
    assert torch.equal((P.straight_through()[..., 1:3, :] @ x).detach(), x[P.hard()[1:3]])


def test_a_row_has_a_number_of_any_kind(rng):
    P = make(2, 5, 4, rng=rng)
    for row in (np.int64(1), np.uint8(1), torch.tensor(1), torch.tensor(-4)): assert_close(P[..., row, :], P[..., 1, :])
    for rows in (range(1, 4, 2), np.array([1, 3]), torch.tensor([1, 3]), [np.int64(1), -2], torch.tensor([0, 1, 0, 1, 0]).bool()):
        assert_close(P[..., rows, :].to_dense(), P.to_dense()[:, [1, 3]])
    assert_close(P[..., 3:0:-1, :].to_dense(), P.to_dense()[:, [3, 2, 1]])
    assert_close(P[..., ::-1, :][..., np.int64(0), :], P[..., -1, :])
    assert P[..., [], :].shape == (2, 0, 4)


def test_autocast_does_not_lower_the_precision(rng):
    P, x = make(6, 6, rng=rng, dtype=torch.float32), torch.randn(6, 2, generator=rng)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = P @ x
        assert (P.to_dense() @ x).dtype == torch.bfloat16  # what autocast would do
    assert_close(inside, P @ x, rtol=0, atol=0)


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="the compiler of an older torch cannot choose rows of a map")
def test_compiles_without_a_break(rng):
    logits, x = torch.randn(3, 5, 5, generator=rng), torch.randn(3, 5, generator=rng)
    def f(logits, x):
        P = SoftPermutation.from_logits(logits)
        return P @ x, P.mT @ x, P[..., :2, :] @ x, P.log_prob(x.argsort()), P.to_dense(), P.straight_through() @ x
    for a, b in zip(torch.compile(f, fullgraph=True, backend="aot_eager")(logits, x), f(logits, x)): assert_close(a, b)


def test_vmap_and_grad_transform(rng):
    logits, x = torch.randn(3, 5, 5, generator=rng), torch.randn(3, 5, generator=rng)
    f = lambda l, x: SoftPermutation.from_logits(l) @ x
    assert_close(torch.func.vmap(f)(logits, x), f(logits, x))
    g = torch.func.vmap(torch.func.grad(lambda l, x: f(l, x).square().sum()))(logits, x)
    l = logits.clone().requires_grad_()
    assert_close(g, torch.autograd.grad(f(l, x).square().sum(), l)[0])


@pytest.mark.parametrize("call, error, says", [
    (lambda P: P @ torch.ones(4), ValueError, r"P is \(2, 3, 3\), so x must be \(..., 3\)"),
    (lambda P: P @ torch.ones(5, 3, 2), ValueError, "broadcasts"),
    (lambda P: P @ [1.0, 2.0, 3.0], TypeError, "list"),
    (lambda P: P @ torch.ones(3, dtype=torch.complex64), TypeError, "complex"),
    (lambda P: P @ torch.ones(3, dtype=torch.float64), TypeError, "float64"),
    (lambda P: P.mT @ torch.ones(2), ValueError, "y must be"),
    (lambda P: P.log_prob(torch.tensor([0, 1, 5])), IndexError, "0..2"),
    (lambda P: P.log_prob(torch.tensor([0.0, 1, 2])), TypeError, "torch.long"),
    (lambda P: P.log_prob(torch.tensor([0, 1])), ValueError, "target must be"),
    (lambda P: P[0], IndexError, "only rows"),
    (lambda P: P[..., 0, 0], IndexError, "only rows"),
    (lambda P: P[..., 3, :], IndexError, "out of range"),
    (lambda P: P[..., None, :], IndexError, "got None: P is"), (lambda P: P[..., True, :], IndexError, "got True"), (lambda P: P[..., "a", :], IndexError, "got 'a'"),
    (lambda P: P[..., 1.0, :], IndexError, "got 1.0"), (lambda P: P[..., (0, 1), :], IndexError, "a list of numbers from -3 to 2"), (lambda P: P[..., [0, 3], :], IndexError, "from -3 to 2"),
    (lambda P: P[..., torch.tensor([[0]]), :], IndexError, "got tensor"), (lambda P: P[..., torch.tensor([0.5]), :], IndexError, "got tensor"),
    (lambda P: P[..., np.int64(-4), :], IndexError, "row -4 is out of range"),
    (lambda P: SoftPermutation.from_logits(torch.ones(3)), ValueError, "m, n"),
    (lambda P: SoftPermutation.from_logits(torch.ones(2, 2).long()), TypeError, "floating point"),
    (lambda P: SoftPermutation.from_logits(torch.ones(2, 2), torch.ones(3).bool()), ValueError, "mask"),
    (lambda P: SoftPermutation.from_logits(torch.ones(2, 2), torch.ones(2)), TypeError, "bool"),
])
def test_errors_name_what_came_and_what_was_expected(call, error, says, rng):
    with pytest.raises(error, match=says): call(make(2, 3, 3, rng=rng, dtype=torch.float32))


@given(n=st.integers(1, 7), seed=st.integers(0, 999))
@settings(max_examples=30, deadline=None)
def test_a_permutation_matrix_passes_every_checker(n, seed):
    P = permutation_matrix(torch.randperm(n, generator=torch.Generator().manual_seed(seed)))
    assert is_permutation_matrix(P) and is_doubly_stochastic(P) and is_row_stochastic(P) and is_unimodal_row_stochastic(P)
    if n > 1:
        P[0] = 1 / n
        assert not is_permutation_matrix(P) and not is_doubly_stochastic(P) and is_row_stochastic(P)


@pytest.mark.parametrize("check", [is_doubly_stochastic, is_permutation_matrix, is_unimodal_row_stochastic])
@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (4, 3, 2), (0, 0)])
def test_what_is_not_square_is_no_matrix_of_all_positions(check, shape):
    with pytest.raises(ValueError, match=re.escape(f"got {shape}: is_row_stochastic takes others")): check(torch.ones(shape))


def test_a_target_that_names_padding_is_an_error_with_a_way_out():
    s, mask = torch.tensor([[3.0, 0.0, 1.0], [0.0, 2.0, 1.0]]), torch.tensor([[True, False, True], [True, True, True]])
    for descending, fill in ((False, math.inf), (True, -math.inf)):
        P = SoftSort(0.5, descending=descending)(s, mask)
        with pytest.raises(ValueError, match=r"first at index \(0, ") as e: P.log_prob(s.masked_fill(~mask, -fill).argsort(descending=descending))
        assert "masked_fill" in str(e.value) and "ideal_order" in str(e.value)
        right = s.masked_fill(~mask, fill).argsort(descending=descending)
        assert_close(P.log_prob(right), P.log_prob(ideal_order(s, mask=mask, descending=descending)))
        assert P.log_prob(right).isfinite().all() and P.log_prob(right)[0, 2] == 0
        assert_close(P[..., :2, :].log_prob(right[..., :2]), P.log_prob(right)[..., :2])
        junk = right.clone(); junk[0, 2] = 0                                  # what stands at a padded position makes no difference
        assert torch.equal(P.log_prob(junk), P.log_prob(right))
        assert_close(torch.func.vmap(lambda s, m, t: SoftSort(0.5, descending=descending)(s, m).log_prob(t))(s, mask, right), P.log_prob(right))


@pytest.mark.parametrize("order, error, says", [([0, 1], TypeError, "order must be a long tensor, got list"), (torch.zeros(2), TypeError, "got torch.float32"), (torch.zeros(3, dtype=torch.long), ValueError, r"order must have shape \(2,\)")])
def test_an_order_that_does_not_fit_is_refused(order, error, says):
    with pytest.raises(error, match=says): SoftPermutation.from_logits(torch.zeros(2, 2), order=order)


def test_a_given_order_is_what_ties_round_to():
    "Also in rows picked out, with padding, and in a copy."
    s, mask = torch.tensor([[1.0, 1.0, 0.0], [9.0, 2.0, 2.0]]), torch.tensor([[True, True, True], [False, True, True]])
    order = s.masked_fill(~mask, torch.inf).sort(dim=-1, stable=True).indices
    P = SoftPermutation.from_logits(torch.zeros(2, 3, 3), mask, order)
    for Q in (P, copy.deepcopy(P)): assert Q.hard().tolist() == [[2, 0, 1], [1, 2, 0]] and Q[..., 1:, :].hard().tolist() == [[0, 1], [2, 0]]
    assert torch.equal(P.straight_through().to_dense()[0].argmax(-1), order[0])


@pytest.mark.parametrize("module, name, takes", [("__main__", "SoftSort", False), ("__main__", "Mine", True), ("elsewhere", "SoftSort", True)])
def test_a_chapter_that_defines_an_operator_again_does_not_take_its_name(module, name, takes, monkeypatch):
    "Any other class does."
    monkeypatch.setattr(Operator, "names", dict(Operator.names))
    new = type(Operator)(name, (Operator,), {"__module__": module}, name="softsort")
    assert Operator.names["softsort"] is (new if takes else SoftSort)


@pytest.mark.parametrize("samples, batch", [(3, ()), (3, (4,)), (4, (4,)), (2, (3, 2))])
def test_the_mean_over_samples_takes_payloads_of_more_dimensions(samples, batch, rng):
    "Products and likelihoods are those of the mean matrix."
    s = torch.randn(samples, *batch, 5, generator=rng, dtype=torch.float64)
    P = SampleMean(SoftSort(0.5)(s))
    M = SoftSort(0.5)(s).to_dense().mean(0)
    assert_close(P.to_dense(), M)
    for more in ((), (2,), (3, 2)):
        x = torch.randn(*more, *batch, 5, 2, generator=rng, dtype=torch.float64)
        assert_close(P @ x, M @ x)
        assert_close(P.mT @ x, M.mT @ x)
        target = torch.randint(5, (*more, *batch, 5), generator=rng)
        assert_close(P.log_prob(target), M.log().expand(*more, *batch, 5, 5).gather(-1, target[..., None])[..., 0])
