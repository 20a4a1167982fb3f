"""The functional face: torch's own functions in the hard limit, shapes, dtypes, masks, directions, errors; calibration."""
import importlib.util
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from softsortlib.core.operators import Operator
from softsortlib.core.rank_operators import RankOperator
from softsortlib.functional import (
    calibrate_tau, quantiles, soft_argsort, soft_median, soft_permutation, soft_quantile, soft_rank, soft_sort, soft_topk,
    soft_trimmed_mean, tau_schedule,
)
from softsortlib.rowwise.softsort import SoftSort

for module in ("networks", "neuralsort", "sinkhorn", "gaussian_rank", "laplace_rank", "permutahedron"):
    if importlib.util.find_spec(f"softsortlib.{module}"): importlib.import_module(f"softsortlib.{module}")
NETWORKS = ("bitonic", "odd_even")
METHODS = ["softsort", SoftSort(1e-4, power=2)] + [m for m in ("lapsum", "neuralsort", "bitonic", "odd_even") if m in Operator.names]
RANKS = sorted(set(RankOperator.names))
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def cases(count, seed=0):
    "Random tensors, dims and directions; every second one is full of ties."
    rng = torch.Generator().manual_seed(seed)
    r = lambda a, b: torch.randint(a, b, (), generator=rng).item()
    for i in range(count):
        shape = [r(1, 6) for _ in range(r(1, 4))]
        x = torch.randint(-3, 4, shape, generator=rng).double() if i % 2 else torch.randn(shape, generator=rng, dtype=torch.float64)
        yield x, r(-x.ndim, x.ndim), bool(r(0, 2)), rng


def midranks(x, dim, descending):
    "Ranks by counting, ties sharing their mean."
    a, b = x.movedim(dim, -1).unsqueeze(-1), x.movedim(dim, -1).unsqueeze(-2)
    before = (b > a) if descending else (b < a)
    return (before.sum(-1) + ((a == b).sum(-1) + 1) / 2).movedim(-1, dim).to(x)


def tau_of(method): return 1e-9 if isinstance(method, str) else None


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_hard_limit_is_torch_in_hundreds_of_cases(method):
    tau = tau_of(method)
    method = SoftSort(1e-18, power=2) if isinstance(method, SoftSort) else method
    for x, dim, descending, rng in cases(300):
        n = x.shape[dim]
        close = lambda a, b: assert_close(a, b, rtol=1e-9, atol=1e-5 if method in NETWORKS else 1e-9)  # their sigmoids have heavy tails
        close(soft_sort(x, dim, descending, method=method, tau=tau), x.sort(dim, descending).values)
        if method not in NETWORKS or len(x.unique()) == x.numel(): close(soft_rank(x, dim, descending, method=method, tau=tau), midranks(x, dim, descending))
        k = torch.randint(1, n + 1, (), generator=rng).item()
        values, P = soft_topk(x, k, dim, descending, method=method, tau=tau)
        want = x.topk(k, dim, descending)
        close(values, want.values)
        if method not in NETWORKS: close(x.movedim(dim, -1).gather(-1, P.hard()), want.values.movedim(dim, -1))
        q = torch.rand(3, generator=rng, dtype=x.dtype)
        close(soft_quantile(x, q, dim, method=method, tau=tau), x.quantile(q, dim))
        close(soft_median(x, dim, keepdim=True, method=method, tau=tau), x.quantile(0.5, dim, keepdim=True))


def weighs_in_double():
    "Whether `torch.quantile` computes the positions of single precision in double, as it does since torch 2.15."
    rng = torch.Generator().manual_seed(0)
    x, q = torch.randn(11, generator=rng), torch.rand(64, generator=rng)
    return torch.equal(x.quantile(q), x.double().quantile(q.double()).float())


def test_hard_is_torch_to_the_last_bit():
    for x, dim, descending, rng in cases(300, seed=1):
        x = x.float() if rng.initial_seed() % 2 else x
        k = torch.randint(1, x.shape[dim] + 1, (), generator=rng).item()
        q = torch.rand(2, generator=rng, dtype=x.dtype)
        assert torch.equal(soft_sort(x, dim, descending, hard=True), x.sort(dim, descending).values)
        assert torch.equal(soft_topk(x, k, dim, descending, hard=True)[0], x.topk(k, dim, descending).values)
        assert torch.equal(soft_rank(x, dim, descending, hard=True), midranks(x, dim, descending))
        for kind in quantiles.INTERPOLATIONS:
            ours, theirs = soft_quantile(x, q, dim, interpolation=kind, hard=True), x.quantile(q, dim, interpolation=kind)
            if kind == "linear" and weighs_in_double(): assert (ours - theirs).abs().max() <= 1e-6 * max(1, x.abs().max())
            else: assert torch.equal(ours, theirs)
        assert torch.equal(soft_median(x, dim, hard=True), x.quantile(0.5, dim))


@pytest.mark.parametrize("f", [soft_sort, soft_rank, soft_median, lambda x, **kw: soft_topk(x, 3, **kw)[0],
                               lambda x, **kw: soft_quantile(x, torch.tensor([0.1, 0.77], dtype=x.dtype), **kw)],
                         ids=["sort", "rank", "median", "topk", "quantile"])
@pytest.mark.parametrize("mask", [None, torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], dtype=torch.bool)], ids=["all", "mask"])
def test_hard_has_the_soft_gradient(f, mask, rng):
    x = torch.randn(3, 5, generator=rng, dtype=torch.float64, requires_grad=True)
    soft, hard = (f(x, tau=0.6, mask=mask, hard=h) for h in (False, True))
    w = torch.randn(soft.shape, generator=rng, dtype=torch.float64)
    a, b = (torch.autograd.grad((y * w).sum(), x)[0] for y in (soft, hard))
    assert torch.equal(a, b) and a.abs().sum() > 0 and not torch.equal(soft, hard)
    if mask is not None: assert (a[~mask] == 0).all()
    assert torch.autograd.gradcheck(lambda x: f(x, tau=0.6, mask=mask), x)


@pytest.mark.parametrize("hard", [False, True])
def test_a_masked_set_is_the_set_without_its_padding(hard, rng):
    X = torch.randn(6, 9, generator=rng, dtype=torch.float64)
    mask = torch.rand(6, 9, generator=rng) < 0.6
    mask[0], mask[1, 1:] = True, False
    mask[1, 0] = True
    poisoned = X.masked_fill(~mask, math.nan)
    q = torch.tensor([0.0, 0.3, 0.5, 1.0], dtype=torch.float64)
    tau = dict(tau=0.3, hard=hard)
    for descending in (False, True):
        got_sort, got_rank = (f(poisoned, descending=descending, mask=mask, **tau) for f in (soft_sort, soft_rank))
        got_top = soft_topk(poisoned, 4, largest=descending, mask=mask, **tau)[0]
        got_q = soft_quantile(poisoned, q, mask=mask, **tau)
        for i in range(6):
            x, m = X[i][mask[i]], int(mask[i].sum())
            assert_close(got_sort[i], torch.cat([soft_sort(x, descending=descending, **tau), torch.zeros(9 - m, dtype=x.dtype)]))
            assert_close(got_rank[i][mask[i]], soft_rank(x, descending=descending, **tau)); assert (got_rank[i][~mask[i]] == 0).all()
            top = soft_topk(x, min(4, m), largest=descending, **tau)[0]
            assert_close(got_top[i], torch.cat([top, torch.zeros(4 - len(top), dtype=x.dtype)]))
            assert_close(got_q[:, i], soft_quantile(x, q, **tau))


def test_mask_moves_with_the_dimension(rng):
    x, mask = torch.randn(4, 3, 5, generator=rng), torch.tensor([True, True, False, True])[:, None, None]
    assert_close(soft_sort(x, 0, tau=0.1, mask=mask)[:3], soft_sort(x[[0, 1, 3]], 0, tau=0.1))
    assert_close(soft_rank(x, 0, tau=0.1, mask=mask)[[0, 1, 3]], soft_rank(x[[0, 1, 3]], 0, tau=0.1))
    assert_close(soft_median(x, 0, True, tau=0.1, mask=mask), soft_median(x[[0, 1, 3]], 0, True, tau=0.1))


def test_a_set_with_no_real_element_is_zero_and_has_no_gradient(rng):
    x = torch.randn(2, 4, generator=rng, requires_grad=True)
    mask = torch.tensor([[True] * 4, [False] * 4])
    for f in (soft_sort, soft_rank, soft_median, lambda x, **kw: soft_topk(x, 2, **kw)[0]):
        for hard in (False, True):
            y = f(x, tau=0.3, mask=mask, hard=hard)
            g, = torch.autograd.grad(y.sum() + y.square().sum(), x)
            assert (y[1] == 0).all() and (g[1] == 0).all() and g.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hard", [False, True])
def test_dtypes_come_back(dtype, hard, rng):
    x = torch.randn(2, 300, generator=rng).to(dtype)
    kw = dict(tau=1e-6, hard=hard)
    assert soft_sort(x, **kw).dtype == soft_rank(x, **kw).dtype == soft_topk(x, 2, **kw)[0].dtype == soft_median(x, **kw).dtype == dtype
    tol = dict(rtol=2e-2, atol=2e-2) if dtype.itemsize == 2 else {}
    assert_close(soft_median(x, **kw), x.double().quantile(0.5, -1).to(dtype), **tol)
    if hard: assert torch.equal(soft_rank(x, hard=True), midranks(x, -1, False))


def test_output_shapes_are_those_of_torch(rng):
    x = torch.randn(3, 5, 4, generator=rng)
    for dim in (-3, -2, -1, 0, 1, 2):
        assert soft_sort(x, dim).shape == soft_rank(x, dim).shape == x.shape
        assert soft_topk(x, 2, dim)[0].shape == x.topk(2, dim).values.shape
        for q in (0.3, torch.tensor(0.3), torch.tensor([0.3]), torch.tensor([0.9, 0.1, 0.5])):
            for keepdim in (False, True): assert soft_quantile(x, q, dim, keepdim).shape == torch.quantile(x, q, dim, keepdim).shape
    assert soft_topk(x, 2, 1)[1].shape == (3, 4, 2, 5) and soft_permutation(x, 0).shape == (5, 4, 3, 3)
    assert soft_median(x[0, 0]).shape == ()


def test_q_in_any_order_and_its_gradient(rng):
    x = torch.randn(6, generator=rng, dtype=torch.float64)
    q = torch.tensor([0.9, 0.11, 0.5, 0.11], dtype=torch.float64, requires_grad=True)
    y = soft_quantile(x, q, tau=1e-9)
    assert_close(y, x.quantile(q)); assert torch.equal(y[1], y[3])
    t, p = x.sort().values, (q.detach() * 5).floor().long()
    assert_close(torch.autograd.grad(y.sum(), q)[0], 5 * (t[p + 1] - t[p]))


@given(seed=st.integers(0, 9999), n=st.integers(1, 12), tau=st.floats(1e-3, 1e3))
@settings(max_examples=60, deadline=None)
def test_ranks_are_positions_in_order(seed, n, tau):
    x = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    r = soft_rank(x, tau=tau)
    assert (r >= 1 - 1e-9).all() and (r <= n + 1e-9).all() and (r[x.argsort()].diff() >= -1e-9).all()
    assert_close(r + soft_rank(x, descending=True, tau=tau), torch.full_like(r, n + 1))


@given(seed=st.integers(0, 9999), n=st.integers(1, 12), shift=st.floats(-5, 5), scale=st.floats(0.1, 10))
@settings(max_examples=40, deadline=None)
def test_sorting_moves_with_the_scores(seed, n, shift, scale):
    x = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert_close(soft_sort(scale * x + shift, tau=scale * 0.4), scale * soft_sort(x, tau=0.4) + shift)
    assert_close(soft_rank(scale * x + shift, tau=scale * 0.4), soft_rank(x, tau=0.4))
    p = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    assert_close(soft_sort(x[p], tau=0.4), soft_sort(x, tau=0.4)); assert_close(soft_rank(x[p], tau=0.4), soft_rank(x, tau=0.4)[p])


@pytest.mark.parametrize("name", sorted(RankOperator.names))
def test_rank_only_methods(name, rng):
    x = torch.randn(3, 6, 2, generator=rng, dtype=torch.float64)
    for descending in (False, True):
        want = RankOperator.names[name](tau=0.2, descending=descending)
        for method, tau in ((name, 0.2), (want, None), (RankOperator.names[name](tau=0.2, descending=not descending), None)):
            drawn = torch.get_rng_state()  # one method draws
            ours = soft_rank(x, 1, descending, method=method, tau=tau)
            torch.set_rng_state(drawn)
            assert_close(ours, want(x.movedim(1, -1)).movedim(-1, 1))
        assert torch.equal(soft_rank(x, 1, descending, method=name, hard=True), midranks(x, 1, descending))
    with pytest.raises(TypeError, match="no soft permutation"): soft_topk(x, 2, method=name)


def test_permutahedron_sorts_values(rng):
    pytest.importorskip("softsortlib.ranks.permutahedron")
    x = torch.randn(3, 6, 2, generator=rng, dtype=torch.float64)
    for descending in (False, True):
        want = RankOperator.names["permutahedron"](tau=0.2, descending=descending)
        for method, tau in (("permutahedron", 0.2), (want, None), (RankOperator.names["permutahedron"](tau=0.2, descending=not descending), None)):
            assert_close(soft_sort(x, 1, descending, method=method, tau=tau), want.sort(x.movedim(1, -1)).movedim(-1, 1))
        assert_close(soft_sort(x, 1, descending, method="permutahedron", tau=1e-6), x.sort(1, descending).values, atol=1e-5, rtol=0)
    with pytest.raises(TypeError, match="ranks only"): soft_sort(x, method="sigmoid")


def test_sinkhorn_sorts_ranks_and_takes_quantiles(rng):
    pytest.importorskip("softsortlib.transport.sinkhorn_sort")
    x = torch.stack([torch.randperm(5, generator=rng) for _ in range(6)], -1).double().reshape(5, 3, 2).movedim(0, 1) / 5
    kw = dict(method="sinkhorn", tau=1e-3)
    for descending in (False, True):
        assert_close(soft_sort(x, 1, descending, **kw), x.sort(1, descending).values, atol=1e-2, rtol=0)
        assert_close(soft_rank(x, 1, descending, **kw), midranks(x, 1, descending), atol=2e-2, rtol=0)
        assert_close(soft_topk(x, 2, 1, descending, **kw)[0], x.topk(2, 1, descending).values, atol=1e-2, rtol=0)
    q = torch.tensor([0.3, 0.75], dtype=x.dtype)
    assert_close(soft_quantile(x, q, 1, **kw), x.quantile(q, 1), atol=1e-2, rtol=0)


def test_ties_have_finite_and_where_the_order_does_not_matter_symmetric_gradients():
    x = torch.tensor([1.0, 2.0, 2.0, 2.0, 5.0], dtype=torch.float64, requires_grad=True)
    symmetric = lambda g: torch.allclose(g[1], g[2]) and torch.allclose(g[2], g[3])
    for y, same in ((soft_rank(x, tau=0.5).square().sum(), False), (soft_median(x, tau=0.5), False), (soft_topk(x, 4, tau=0.5)[0].square().sum(), True), (soft_sort(x, tau=0.5).square().sum(), True)):
        g, = torch.autograd.grad(y, x)
        assert g.isfinite().all() and (symmetric(g) or not same)


def test_tau_learns_and_broadcasts(rng):
    x = torch.randn(2, 5, generator=rng)
    tau = torch.tensor([0.1, 2.0], requires_grad=True)
    y = soft_sort(x, tau=tau)
    assert_close(y[1], soft_sort(x[1], tau=2.0))
    assert (torch.autograd.grad(y.square().sum(), tau)[0] != 0).all()


@pytest.mark.parametrize("call, error, text", [
    (lambda x: soft_topk(x, 6), ValueError, "k must be in 1..5"), (lambda x: soft_topk(x, 0), ValueError, "k must be in 1..5"),
    (lambda x: soft_topk(x, 2.0), TypeError, "k must be an int"), (lambda x: soft_sort(x, 2), IndexError, "dim must be in -2..1"),
    (lambda x: soft_rank(x, None), TypeError, "dim must be an int"), (lambda x: soft_sort(x, method="softsrt"), ValueError, "softsort"),
    (lambda x: soft_sort(x, method=3), TypeError, "method"), (lambda x: soft_sort(x, tau=-1.0), ValueError, "tau"),
    (lambda x: soft_quantile(x, 1.2), ValueError, "q must be in"), (lambda x: soft_quantile(x, torch.ones(2, 2)), ValueError, "q must be"),
    (lambda x: soft_quantile(x, "half"), TypeError, "q must be"), (lambda x: soft_quantile(x, 0.5, interpolation="cubic"), ValueError, "interpolation"),
    (lambda x: soft_sort(x.long()), TypeError, "floating point"), (lambda x: soft_sort([1.0, 2.0]), TypeError, "torch.Tensor"),
    (lambda x: soft_sort(torch.tensor(1.0)), ValueError, "shape"), (lambda x: soft_sort(x[:, :0]), ValueError, "shape"),
    (lambda x: soft_sort(x, mask=torch.ones(3, dtype=torch.bool)), ValueError, "mask"), (lambda x: soft_sort(x, mask=torch.ones(5)), TypeError, "mask"),
    (lambda x: soft_sort(x, method=SoftSort(), tau=1.0), ValueError, "already an operator"),
])
def test_errors_name_the_argument(call, error, text, rng):
    with pytest.raises(error, match=text): call(torch.randn(4, 5, generator=rng))


def test_nan_stays_in_its_row(rng):
    x = torch.randn(3, 5, generator=rng)
    x[1, 2] = math.nan
    for f in (soft_sort, soft_rank, soft_median): assert f(x)[[0, 2]].isfinite().all() and f(x)[1].isnan().any()


def test_topk_makes_nothing_of_size_n_squared(rng):
    "k rows of 200,000 elements: a matrix would be 160 GB."
    x = torch.randn(200_000, generator=rng, requires_grad=True)
    values, P = soft_topk(x, 10, tau=1e-3)
    g, = torch.autograd.grad(values.sum(), x)
    assert P.shape == (10, 200_000) and g.isfinite().all()
    assert_close(soft_median(x.detach(), tau=1e-6), x.detach().median(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("method", METHODS[:1] + METHODS[2:])
@pytest.mark.parametrize("sharpness", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("n", [2, 7, 300])
def test_calibration_hits_the_sharpness(method, sharpness, n, rng):
    if method in ("bitonic", "odd_even") and (n == 300 or sharpness < 0.5): pytest.skip("a network with few wires never becomes uniform, one with many is slow here")
    s = torch.randn(64 if n < 100 else 2, n, generator=rng)
    tau = calibrate_tau(s, sharpness, method=method)
    P = soft_permutation(s, method=method, tau=tau).to_dense().double()
    assert abs(1 - (torch.special.entr(P).sum(-1) / math.log(n)).mean() - sharpness) < (0.01 if n < 100 else 0.03)
    assert_close(calibrate_tau(50 * s.movedim(-1, 0), sharpness, 0, method=method), 50 * tau, rtol=5e-3, atol=0)


def test_calibration_with_masks_instances_and_errors(rng):
    s = torch.randn(32, 6, generator=rng)
    mask = torch.arange(6) < 4
    assert_close(calibrate_tau(s.masked_fill(~mask, math.nan), 0.5, mask=mask), calibrate_tau(s[:, :4], 0.5), rtol=2e-3, atol=0)
    operator = SoftSort(torch.nn.Parameter(torch.tensor(3.0)), power=2, descending=True)
    tau = calibrate_tau(s, 0.5, method=operator)
    assert operator.tau.item() == 3.0 and abs(math.log(tau / calibrate_tau(s, 0.5, method=SoftSort(power=2)))) < 5e-3
    with pytest.raises(ValueError, match="sharpness"): calibrate_tau(s, 1.0)
    with pytest.raises(TypeError, match="operator inside"): calibrate_tau(s, method=pytest.importorskip("softsortlib.core.stochastic").Stochastic("softsort"))
    with pytest.raises(ValueError, match="all equal"): calibrate_tau(torch.ones(4))
    with pytest.raises(ValueError, match="ties"): calibrate_tau(torch.tensor([1.0, 1.0, 2.0]), 0.9)
    with pytest.raises(ValueError, match="two elements"): calibrate_tau(torch.ones(4, 1))


def test_schedule_errors():
    with pytest.raises(ValueError, match="start and end"): tau_schedule(0.0, 1.0, 5)
    assert tau_schedule(1.0, 0.01, 2)(1) == pytest.approx(0.1)


def test_transforms(rng):
    "grad, vmap and per-sample gradients pass through."
    x = torch.randn(4, 6, generator=rng, dtype=torch.float64)
    f = lambda x: soft_rank(x, tau=0.5) @ torch.arange(6.0, dtype=x.dtype) + soft_topk(x, 2, tau=0.5)[0].sum() + soft_median(x, tau=0.5)
    y = x.clone().requires_grad_()
    want, = torch.autograd.grad(sum(f(row) for row in y), y)
    assert_close(torch.func.vmap(torch.func.grad(f))(x), want)


def test_samples_of_a_stochastic_operator_come_first(rng):
    Stochastic = pytest.importorskip("softsortlib.core.stochastic").Stochastic
    x = torch.randn(3, 5, 2, generator=rng)
    mask = torch.tensor([True, True, False, True, True])[:, None]
    for m in (None, mask):
        kw = dict(method=Stochastic("softsort", 4, rng, tau=0.1), mask=m)
        for hard in (False, True):
            assert soft_sort(x, 1, hard=hard, **kw).shape == soft_rank(x, 1, hard=hard, **kw).shape == (4, 3, 5, 2)
            assert soft_topk(x, 2, 1, hard=hard, **kw)[0].shape == (4, 3, 2, 2)
            assert soft_median(x, 1, hard=hard, **kw).shape == (4, 3, 2)
            assert soft_quantile(x, torch.tensor([0.1, 0.5]), 1, hard=hard, **kw).shape == (2, 4, 3, 2)


def test_transport_brings_quantiles_of_its_own_in_any_order():
    "Three milestones for each quantile, whatever the order of q and the direction of the operator (Cuturi et al. 2019, section 4)."
    from softsortlib import SinkhornSort, soft_quantile
    s = torch.randn(3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q = torch.tensor([0.5, 0.8, 0.2], dtype=torch.float64)
    for descending in (False, True):
        found = soft_quantile(s, q, method=SinkhornSort(tau=1e-3, descending=descending))
        torch.testing.assert_close(found, torch.quantile(s, q, dim=-1), atol=5e-2, rtol=0)
        assert (found[2] < found[0]).all() and (found[0] < found[1]).all()
    mask = torch.arange(40) < torch.tensor([[40], [25], [10]])
    found = soft_quantile(s.masked_fill(~mask, 99.0), q, method="sinkhorn", tau=1e-3, mask=mask)
    for b, n in enumerate((40, 25, 10)):
        torch.testing.assert_close(found[:, b], soft_quantile(s[b, :n], q, method="sinkhorn", tau=1e-3), atol=1e-6, rtol=1e-6)


# ---- one element, none, and transforms ----
FACE = {
    "sort": lambda x, **k: soft_sort(x, **k), "rank": lambda x, **k: soft_rank(x, **k), "topk": lambda x, **k: soft_topk(x, 1, **k)[0],
    "rows": lambda x, **k: soft_topk(x, 1, **k)[1].to_dense()[..., 0], "quantile": lambda x, **k: soft_quantile(x, 0.3, **k)[..., None],
    "median": lambda x, **k: soft_median(x, keepdim=True, **k), "permutation": lambda x, **k: soft_permutation(x, **k).to_dense()[..., 0]}


@pytest.mark.parametrize("method", sorted({*Operator.names, *RankOperator.names}))
@pytest.mark.parametrize("name", FACE)
def test_one_element_has_a_value_and_a_gradient_and_none_an_error(name, method):
    f, x = FACE[name], torch.tensor([[3.0], [-2.0]], requires_grad=True)
    with pytest.raises(ValueError, match="at least one element"): f(torch.empty(2, 0), method=method)
    for hard in (False, True):
        try: y = f(x, method=method, hard=hard)
        except TypeError as e:
            assert method in RankOperator.names and "choose" in str(e)
            continue
        moves = name in ("sort", "topk", "quantile", "median")
        assert_close(y, x if moves else torch.ones(2, 1))
        assert_close(torch.autograd.grad(y.sum(), x)[0], torch.full((2, 1), float(moves)))


@pytest.mark.parametrize("method", sorted(set(Operator.names) - {"sinkhorn", "perturbed"}))   # perturbed draws, and vmap wants to be told how
def test_masked_quantiles_under_vmap_and_compile(method, rng):
    x, mask = torch.randn(3, 6, generator=rng, dtype=torch.float64), torch.tensor([[1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]]).bool()
    f = lambda x, mask: soft_quantile(x, torch.tensor([0.1, 0.5]).double(), method=method, tau=0.3, mask=mask)
    want = torch.stack([f(a, m) for a, m in zip(x, mask)])
    assert_close(torch.func.vmap(f)(x, mask), want)
    if method == "softsort" and torch.__version__ >= (2, 13): assert_close(torch.compile(f, fullgraph=True, backend="aot_eager")(x, mask), f(x, mask))


@pytest.mark.parametrize("call, error, text", [
    (lambda x: soft_sort(x, hard="yes"), TypeError, "hard must be True or False, got 'yes'"), (lambda x: soft_sort(x, descending=None), TypeError, "descending"),
    (lambda x: soft_topk(x, 2, largest="max"), TypeError, "largest"), (lambda x: soft_quantile(x, 0.5, keepdim="a"), TypeError, "keepdim"),
    (lambda x: soft_sort(x / 0), ValueError, "mask=x.isfinite"), (lambda x: soft_rank(x / 0, method="laplace"), ValueError, "finite"),
    (lambda x: soft_sort(x.to_sparse()), TypeError, "to_dense"), (lambda x: soft_sort(x + 0j), TypeError, "real part"),
    (lambda x: soft_sort(x, method=SoftSort), TypeError, r"SoftSort\(tau=...\)"), (lambda x: soft_sort(x, tau="0.1"), TypeError, "tau=0.1"),
    (lambda x: soft_sort(x, tau=[0.1]), TypeError, "one for each set"), (lambda x: soft_sort(x, tau=0.0), ValueError, "hard=True"),
    (lambda x: soft_topk(x, torch.tensor(2.0)), TypeError, "k must be an int"), (lambda x: soft_topk(x, torch.tensor([1, 2])), TypeError, "k must be an int"),
    (lambda x: soft_quantile(x, [0.1]), TypeError, "torch.tensor"), (lambda x: soft_quantile(x, torch.tensor(0.5j)), TypeError, "q must be real"),
    (lambda x: soft_quantile(x, 1.1), ValueError, r"got 1.1:"), (lambda x: soft_quantile(x, 0.5, interpolation=["linear"]), ValueError, "interpolation"),
    (lambda x: soft_sort(x, method="gaussian"), TypeError, "serves soft_rank: choose"), (lambda x: soft_topk(x, 1, method="permutahedron"), TypeError, "soft_rank and soft_sort"),
    (lambda x: SoftSort(0.1, descending="down"), TypeError, "descending"), (lambda x: calibrate_tau(x, "a"), TypeError, "sharpness"),
    (lambda x: torch.func.vmap(calibrate_tau)(x), RuntimeError, "outside torch.func"), (lambda x: tau_schedule("a", 1, 3), TypeError, "start"),
])
def test_every_wrong_argument_is_named_with_a_way_out(call, error, text, rng):
    with pytest.raises(error, match=text): call(torch.randn(4, 5, generator=rng))


def test_numpy_numbers_are_numbers(rng):
    import numpy as np
    x = torch.randn(5, generator=rng)
    assert_close(soft_sort(x, tau=np.float32(0.5)), soft_sort(x, tau=0.5))
    assert_close(soft_topk(x, np.int64(2))[0], soft_topk(x, 2)[0])
    assert_close(soft_quantile(x, np.float32(0.5)), soft_median(x))


def test_an_infinite_score_behind_the_mask_is_fine(rng):
    x = torch.tensor([1.0, -math.inf, 0.0])
    assert_close(soft_sort(x, tau=1e-3, mask=x.isfinite()), torch.tensor([0.0, 1.0, 0.0]))


@pytest.mark.parametrize("kind", sorted(quantiles.INTERPOLATIONS))
@pytest.mark.parametrize("masked", [False, True])
def test_own_quantiles_of_transport_are_interpolated_as_asked(kind, masked, rng):
    SinkhornSort = pytest.importorskip("softsortlib.transport").SinkhornSort
    x = torch.stack([torch.randperm(9, generator=rng) for _ in range(3)]).double() / 4
    mask = torch.arange(9) < torch.tensor([9, 6, 2])[:, None] if masked else None
    q = torch.tensor([0.0, 0.3, 0.45, 0.8, 1.0], dtype=torch.float64)
    for method in (SinkhornSort(1e-4), SinkhornSort(1e-4, descending=True)):
        got = soft_quantile(x, q, interpolation=kind, method=method, mask=mask)
        for i in range(3):
            real = x[i] if mask is None else x[i][mask[i]]
            assert_close(got[:, i], real.quantile(q, interpolation=kind), atol=2e-2, rtol=0)


def test_a_misspelt_name_is_looked_for_among_all_that_can_rank(rng):
    x = torch.randn(4, generator=rng)
    with pytest.raises(ValueError, match=r"did you mean 'permutahedron'\? There are .*laplace.*permutahedron.*softsort"): soft_rank(x, method="permutahedrn")
    with pytest.raises(ValueError, match=r"did you mean 'permutahedron'\? There are .*lapsum.*permutahedron.*softsort") as e: soft_sort(x, method="permutahedrn")
    assert "laplace" not in str(e.value) and "sigmoid" not in str(e.value)
    with pytest.raises(ValueError, match=r"did you mean 'softsort'\?") as e: soft_permutation(x, method="softsrt")
    assert "laplace" not in str(e.value)
    for method, error, says in ((SoftSort, TypeError, "got the class SoftSort"), (3, TypeError, "got int"), (None, TypeError, "got NoneType")):
        with pytest.raises(error, match=says): soft_rank(x, method=method)
    for operator in (SoftSort(0.1), RankOperator.names["sigmoid"](0.1)):
        with pytest.raises(ValueError, match="already an operator"): soft_rank(x, method=operator, tau=0.2)


OF_SCORES = dict(
    soft_sort=lambda s, **kwargs: soft_sort(s, tau=0.5, **kwargs),
    soft_topk=lambda s, **kwargs: soft_topk(s, 1, tau=0.5, **kwargs)[0],
    soft_quantile=lambda s, **kwargs: soft_quantile(s, 0.3, tau=0.5, **kwargs),
    soft_median=lambda s, **kwargs: soft_median(s, tau=0.5, **kwargs),
    squares=lambda s, **kwargs: soft_median(s, method=SoftSort(0.5, power=2), **kwargs),
    sparse=lambda s, **kwargs: soft_median(s, method=SoftSort(5.0, simplex="sparsemax"), **kwargs),
)


@pytest.mark.parametrize("name", OF_SCORES)
@pytest.mark.parametrize("lengths", [(7,), (47,), (128,), (182,), (300,), (1001,), (7, 47, 1, 120)])
def test_the_gradient_has_its_digits_far_from_zero(name, lengths, rng):
    "In single precision, by autograd and as torch.func takes it."
    n = sum(lengths)
    s = (1e4 + torch.randn(n, generator=rng, dtype=torch.float64)).float()
    offsets = dict(offsets=torch.tensor([0, *lengths]).cumsum(0)) if len(lengths) > 1 else {}
    def total(s):
        y = OF_SCORES[name](s, **offsets).flatten()
        return (y * torch.arange(len(y)).cos()).sum()
    right = torch.func.grad(total)(s.double())
    for found in (torch.autograd.functional.jacobian(total, s), torch.func.grad(total)(s)):
        assert_close(found.double(), right, rtol=0, atol=1e-5 * right.abs().max())


@pytest.mark.parametrize("n", [300, 501, 3001])
def test_positions_of_quantiles_have_the_digits_of_a_double(n, rng):
    s = torch.rand(n, generator=rng)
    def at(s): return soft_quantile(s, 0.3, tau=1e-4)
    right = torch.autograd.functional.jacobian(at, s.double())
    assert_close(torch.autograd.functional.jacobian(at, s).double(), right, rtol=0, atol=1e-6 * right.abs().max())


TIED = torch.tensor([2.0, 2, 1, -2, 1, 2], dtype=torch.float64)


def test_the_largest_of_tied_scores_has_its_slope():
    "The first row of SoftSort is the softmax of the scores, which is smooth, also where the largest are tied."
    def top(s): return soft_topk(s, 1, tau=0.3)[0][0]
    def smooth(s): return (s / 0.3).softmax(-1) @ s
    assert_close(top(TIED), smooth(TIED))
    assert_close(torch.func.grad(top)(TIED), torch.func.grad(smooth)(TIED))


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_argsort_in_the_hard_limit(method, rng):
    if method in NETWORKS: pytest.skip("their sigmoids have heavy tails")
    method = SoftSort(1e-18, power=2) if isinstance(method, SoftSort) else method
    for x, dim, descending, _ in cases(60):
        x = torch.stack([torch.randperm(x.numel(), generator=rng)]).double().reshape(x.shape) if len(x.unique()) < x.numel() else x
        assert_close(soft_argsort(x, dim, descending, method=method, tau=tau_of(method)), x.argsort(dim, descending).double(), rtol=1e-9, atol=1e-9)


def test_argsort_is_the_mean_index(rng):
    x = torch.randn(3, 5, 4, generator=rng, dtype=torch.float64, requires_grad=True)
    for dim in (0, 1, -1):
        n = x.shape[dim]
        a = soft_argsort(x, dim, tau=0.5)
        assert_close(a, (soft_permutation(x, dim, tau=0.5) @ torch.arange(n, dtype=x.dtype)).movedim(-1, dim))
        assert (a >= 0).all() and (a <= n - 1).all()
    assert torch.autograd.gradcheck(lambda x: soft_argsort(x, 1, tau=0.5), x)


def test_argsort_hard_is_torchs_and_has_the_soft_gradient(rng):
    for descending in (False, True):
        x = torch.randint(0, 4, (3, 9), generator=rng).double().requires_grad_()
        mask = torch.rand(3, 9, generator=rng) < 0.7
        hard = soft_argsort(x, -1, descending, hard=True, tau=0.4)
        assert torch.equal(hard, x.argsort(dim=-1, descending=descending, stable=True).double())
        g, h = (torch.autograd.grad(y.square().mul(torch.arange(9)).sum(), x)[0] for y in (soft_argsort(x, -1, descending, tau=0.4), hard))
        assert g.abs().sum() > 0 and not torch.equal(g, h)      # the chain rule goes through other values
        assert torch.equal(*(torch.autograd.grad(y.mul(torch.arange(9)).sum(), x)[0] for y in (soft_argsort(x, -1, descending, tau=0.4), soft_argsort(x, -1, descending, tau=0.4, hard=True))))
        some = soft_argsort(x.detach().masked_fill(~mask, math.nan), -1, descending, mask=mask, tau=1e-6, hard=True)
        for row, here, got in zip(x.detach(), mask, some):
            real = here.nonzero()[:, 0]
            assert got.tolist() == [*real[row[real].argsort(dim=-1, descending=descending, stable=True)].tolist(), *[0] * int((~here).sum())]


def test_argsort_of_lists_counts_within_each(rng):
    x, offsets = torch.randn(7, generator=rng), torch.tensor([0, 3, 3, 7])
    want = torch.cat([soft_argsort(x[:3], tau=0.2), soft_argsort(x[3:], tau=0.2)])
    assert_close(soft_argsort(x, tau=0.2, offsets=offsets), want)
    jagged = torch.nested.nested_tensor([x[:3], x[3:]], layout=torch.jagged)
    assert_close(soft_argsort(jagged, tau=0.2).values(), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_argsort_is_rounded_once(dtype, rng):
    x = torch.randn(700, generator=rng).to(dtype)
    assert_close(soft_argsort(x, tau=0.1), soft_argsort(x.float() if dtype.itemsize == 2 else x, tau=0.1).to(dtype), rtol=0, atol=0)
    with pytest.raises(TypeError, match="no soft permutation"): soft_argsort(x, method="sigmoid")
    if dtype == torch.float16:
        with pytest.raises(ValueError, match="do not fit"): soft_argsort(torch.zeros(70_000, dtype=dtype))


PICTURES = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def in_sets(x, dims):
    "x with these dimensions at its end as one, by torch alone."
    dims = sorted(d % x.ndim for d in dims)
    return x.permute(*[d for d in range(x.ndim) if d not in dims], *dims).flatten(-len(dims))


@pytest.mark.parametrize("dims", [(1, 2), (-1, 0), [2], (3, 1, 0), None], ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_a_set_of_several_dimensions(dims, keepdim):
    x, every = PICTURES.clone().requires_grad_(), range(4) if dims is None else dims
    sets, kept = in_sets(x, every), [1 if d in {e % 4 for e in every} else n for d, n in enumerate(x.shape)]
    shape = kept if keepdim else sets.shape[:-1]
    q = torch.tensor([0.1, 0.77], dtype=x.dtype)
    for got, want in [(soft_quantile(x, 0.3, dims, keepdim, tau=0.2), soft_quantile(sets, 0.3, tau=0.2)), (soft_median(x, dims, keepdim, tau=0.3, hard=True), soft_median(sets, tau=0.3, hard=True)),
                      (soft_trimmed_mean(x, 0.2, dims, keepdim, tau=0.2), soft_trimmed_mean(sets, 0.2, tau=0.2))]:
        assert_close(got, want.reshape(shape), rtol=1e-12, atol=1e-12)
        assert_close(*(torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0] for y in (got, want)), rtol=1e-9, atol=1e-12)
    assert torch.equal(soft_median(x, dims, keepdim, hard=True), sets.quantile(0.5, -1).reshape(shape))
    assert_close(soft_quantile(x, q, dims, keepdim, tau=0.2), soft_quantile(sets, q, tau=0.2).reshape(2, *shape))


def test_a_picture_with_a_mask(rng):
    x, mask = PICTURES.masked_fill(PICTURES > 1.5, math.nan), PICTURES <= 1.5
    for f, hard in [(soft_median, lambda a: a.quantile(0.5)), (lambda *a, **kw: soft_quantile(a[0], 0.3, *a[1:], **kw), lambda a: a.quantile(0.3))]:
        want = torch.stack([torch.stack([hard(c[m]) for c, m in zip(p, n)]) for p, n in zip(x, mask)])
        assert_close(f(x, (2, 3), mask=mask, tau=1e-9), want)
        assert_close(f(x, None, mask=mask, hard=True), hard(x[mask]))
    frame = torch.arange(5) > 0                                     # broadcasts
    assert_close(soft_median(PICTURES, (1, 3), mask=frame, tau=0.1), soft_median(PICTURES[..., 1:], (1, 3), tau=0.1))


@pytest.mark.parametrize("cut", [0, 0.1, 0.2, 0.34, 0.49, (0, 0.25), (0.5, 0.4)], ids=str)
def test_trimmed_means_of_scipy(cut, rng):
    low, high = cut if isinstance(cut, tuple) else (cut, cut)
    for n in (1, 2, 5, 10, 50):
        x = torch.randn(3, n, generator=rng, dtype=torch.float64)
        t = x.sort(-1).values[..., int(low * n):n - int(high * n)].mean(-1)
        if low == high: assert_close(t, torch.from_numpy(pytest.importorskip("scipy.stats").trim_mean(x.numpy(), cut, -1)))
        assert_close(soft_trimmed_mean(x, cut, tau=1e-9), t)
        assert_close(soft_trimmed_mean(x, cut, hard=True), t)
        long = torch.cat([x, torch.full((3, 4), math.nan, dtype=x.dtype)], -1)
        assert_close(soft_trimmed_mean(long, cut, tau=0.5, mask=~long.isnan()), soft_trimmed_mean(x, cut, tau=0.5))
        assert_close(soft_trimmed_mean(x.flatten(), cut, tau=0.5, offsets=torch.arange(4) * n), soft_trimmed_mean(x, cut, tau=0.5))


def test_the_gradient_of_a_trimmed_mean(rng):
    x = torch.randn(3, 10, generator=rng, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: soft_trimmed_mean(x, 0.2, tau=0.4), x)
    g, = torch.autograd.grad(soft_trimmed_mean(x, 0.2, tau=1e-9).sum(), x)
    assert_close(g, ((x.argsort().argsort() - 4.5).abs() < 3).double() / 6)
    nothing = soft_trimmed_mean(x, mask=torch.zeros(10, dtype=torch.bool))
    assert (nothing == 0).all() and (torch.autograd.grad(nothing.sum(), x)[0] == 0).all()


@pytest.mark.parametrize("call, error, text", [
    (lambda x: soft_median(x, ()), ValueError, r"dim must name each dimension once and at least one, got \(\)"), (lambda x: soft_median(x, (0, -2)), ValueError, "each dimension once"),
    (lambda x: soft_median(x, (0, 2)), IndexError, "dim must be in -2..1"), (lambda x: soft_trimmed_mean(x, dim=(0.0,)), TypeError, "dim must be an int"), (lambda x: soft_trimmed_mean(x, dim="a"), TypeError, "dim must be an int"),
    (lambda x: soft_trimmed_mean(x, 0.5), ValueError, "cut must be shares"), (lambda x: soft_trimmed_mean(x, -0.1), ValueError, "cut must be shares"), (lambda x: soft_trimmed_mean(x, (0.1, 0.1, 0.1)), TypeError, "cut must be a number, or two"),
    (lambda x: soft_trimmed_mean(x, math.nan), ValueError, "cut must be shares"), (lambda x: soft_trimmed_mean(x, "a"), TypeError, "cut must be a number"), (lambda x: soft_median(x[0], (0,), offsets=torch.tensor([0, 5])), TypeError, r"dim must be an int, got \(0,\)"),
    (lambda x: soft_median(x, None, mask=torch.ones(3, dtype=torch.bool)), ValueError, "mask"), (lambda x: soft_median(torch.tensor(1.0), None), ValueError, "shape"),
])
def test_wrong_dimensions_and_cuts_are_named(call, error, text, rng):
    with pytest.raises(error, match=text): call(torch.randn(4, 5, generator=rng))


@pytest.mark.parametrize("lists", [1, 3])
def test_lists_without_an_item_have_a_map_without_rows(lists):
    P = soft_permutation(torch.empty(2, 0), tau=0.3, offsets=torch.zeros(lists + 1, dtype=torch.long))
    assert P.shape == P.to_dense().shape == (2, 0, 0) and (P @ torch.empty(2, 0, 4)).shape == (2, 0, 4)
