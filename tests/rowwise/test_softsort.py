"SoftSort on its fast paths: dtypes, masks, ties, extremes, torch's contracts, memory."
import copy
import math
import pickle
from itertools import permutations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from softsortlib import soft_topk
from softsortlib.core.permutation import is_unimodal_row_stochastic
from softsortlib.losses import topk_loss
from softsortlib.rowwise.neuralsort import NeuralSort
from softsortlib.rowwise.products import _pull, row_answer
from softsortlib.rowwise.rows import Asked, window
from softsortlib.rowwise.reference import Power
from softsortlib.rowwise.small import ManySmall
from softsortlib.rowwise.softsort import LaplacePermutation, SoftSort, SoftSortPermutation, WindowedPermutation
from softsortlib.rowwise.squares import PowerPermutation, SquarePermutation

BACKENDS = ("numba", "torch")


def twin(s, tau, power=1, descending=False, mask=None):
    "The definition in float64"
    return SoftSortPermutation(s.double(), tau.double()[..., None] if isinstance(tau, torch.Tensor) else tau, Power(power), descending, torch.float64, mask)


def adversarial(kind, n, rng):
    "Scores of spread one that make trouble"
    return {"uniform": lambda: torch.rand(n, generator=rng, dtype=torch.float64),
            "ties": lambda: torch.randint(4, (n,), generator=rng).double() / 3,
            "clusters": lambda: torch.randint(3, (n,), generator=rng).double() / 2 + 1e-5 * torch.rand(n, generator=rng, dtype=torch.float64),
            "heavy": lambda: torch.randn(n, generator=rng, dtype=torch.float64).pow(7).clamp(-1e3, 1e3) / 1e3}[kind]()


class Literal(SoftSortPermutation):
    "The definition as it is written, its payload not measured from near by."
    _sums_to_one = False


CALLS = {"values": lambda P, s, x: P @ s, "payload": lambda P, s, x: P @ x, "transposed": lambda P, s, x: P.mT @ x,
         "log_prob": lambda P, s, x: P.log_prob(s.argsort(-1)), "top": lambda P, s, x: P[..., -5:, :] @ x, "dense": lambda P, s, x: P.to_dense()}


def compare(P, s, x, tol, tau, power=1, calls=CALLS):
    """Values and gradients of every call against the float64 twin, each tensor relative to its largest entry.
    A gradient subtracts payloads that differ by about tau^(1/p), which costs digits in any dtype. Where that exceeds `tol`,
    float32 in plain torch must be about as good as the definition in float32; float64, whose twin suffers alike, gets the bound of the loss."""
    def all_of(f, s, x):
        out = [call(f(s), s, x) for call in calls.values()]
        G = [torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o) for o in out]
        return [(o.detach().double(), [g if g is None else g.double() for g in torch.autograd.grad(o, (s, x), h, allow_unused=True)]) for o, h in zip(out, G)]
    cast = lambda dtype: (v.detach().to(dtype).requires_grad_() for v in (s, x))
    exact = all_of(lambda s: twin(s, tau, power), *cast(torch.float64))
    plain = all_of(lambda s: Literal(s, tau, Power(power), False, s.dtype), *cast(s.dtype))
    slope = 200 * torch.finfo(s.dtype).eps / tau ** (1 / power) if s.dtype == torch.float64 else 0
    for name, (y, grads), (y64, grads64), (_, plains) in zip(calls, all_of(P, s, x), exact, plain):
        floor = 1e-15 if name == "log_prob" else 1e-25                                    # the definition rounds 1 + small before the logarithm
        assert (y - y64).abs().max() <= tol * y64.abs().max() + floor, (name, tau)
        for g, h, p in zip(grads, grads64, plains):
            if h is None: continue
            allowed = tol * h.abs().max() + 16 * (p - h).abs().max() + (slope if s.dtype == torch.float64 else 1e-12) * max(1, x.abs().max().item())
            assert (g - h).abs().max() <= allowed, (name, tau, (g - h).abs().max().item(), allowed.item())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ("uniform", "ties", "clusters", "heavy"))
@pytest.mark.parametrize("dtype, tol", ((torch.float32, 1e-5), (torch.float64, 1e-12)))
def test_fast_paths_agree_with_the_float64_definition(kind, dtype, tol, backend, rng):
    s, x = adversarial(kind, 130, rng).to(dtype).requires_grad_(), torch.randn(130, 2, generator=rng).to(dtype).requires_grad_()
    for tau in (1e-6, 1e-3, 0.1, 10.0, 1e3, 1e6):
        compare(lambda s: SoftSort(tau, backend=backend)(s), s, x, tol, tau)


@pytest.mark.parametrize("masked", (False, True))
@pytest.mark.parametrize("places", ((0, 1), (2, 3), (3, 4, 5), (298, 299)))                # the scores at 2 and 3 are tied, all others alone
def test_single_rows_beside_tied_scores_agree_with_the_definition(places, masked, rng):
    "Whether the rows that are taken stand alone, are tied, or some of each: the mean of the definition with the tied scores a hair apart, either way."
    s = torch.arange(300, dtype=torch.float64).div(50)
    s[3] = s[2]
    mask = torch.ones(300, dtype=torch.bool) if masked else None
    x, rows = torch.randn(300, 2, generator=rng, dtype=torch.float64), torch.tensor(places)
    g, h = torch.randn(len(places), 2, generator=rng, dtype=torch.float64), torch.randn(300, 2, generator=rng, dtype=torch.float64)
    def grads(P, s): return [torch.autograd.grad(y, s, u, retain_graph=True)[0] for y, u in ((P @ x, g), (P.mT @ g, h))]
    fast = s.clone().requires_grad_()
    ours = grads(SoftSort(0.1)(fast, mask)[..., rows, :], fast)
    apart, both = s.clone().requires_grad_(), []
    for sign in (1, -1):
        near = apart + torch.zeros(300, dtype=torch.float64).index_fill(0, torch.tensor([3]), sign * 1e-9)
        both.append(grads((near.sort().values[:, None] - near).abs().mul(-10).softmax(-1)[rows], apart))
    for ours_of, one, other in zip(ours, *both):
        assert (ours_of - (one + other) / 2).abs().max() <= 1e-7


def test_soft_values_keep_their_gradient_where_tau_is_tiny(rng):
    "The kernel loses nothing to the rounding of the mean, where the definition in float32 loses percents."
    s = adversarial("clusters", 300, rng).float().requires_grad_()
    g = torch.randn(300, generator=rng)
    for tau in (1e-7, 1e-6, 1e-5):
        s64 = s.detach().double().requires_grad_()
        ours, = torch.autograd.grad(SoftSort(tau, backend="numba")(s) @ s, s, g)
        exact, = torch.autograd.grad(twin(s64, tau) @ s64, s64, g.double())
        assert (ours - exact).abs().max() <= 1e-5 * exact.abs().max()


@pytest.fixture
def large(monkeypatch):
    "No set is small."
    monkeypatch.setattr("softsortlib.rowwise.softsort.is_small", lambda s, entries: False)


@pytest.mark.parametrize("kind", ("uniform", "ties", "clusters", "heavy"))
@pytest.mark.parametrize("power", (1, 2))
def test_longer_small_sets_agree_with_the_float64_definition(kind, power, rng):
    for dtype, tol in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        s, x = adversarial(kind, 300, rng).to(dtype).requires_grad_(), torch.randn(300, 2, generator=rng).to(dtype).requires_grad_()
        for tau in (1e-6, 1e-3, 1.0, 1e6):
            assert isinstance(SoftSort(tau, power=power)(s), ManySmall)
            compare(lambda s: SoftSort(tau, power=power)(s), s, x, tol, tau, power, {k: v for k, v in CALLS.items() if k != "dense"})


@pytest.mark.parametrize("power", (0.5, 1.7, 2, 3))
@pytest.mark.parametrize("kind", ("uniform", "ties", "clusters", "heavy"))
def test_windows_agree_with_the_float64_definition(kind, power, large, rng):
    for dtype, tol in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        s, x = adversarial(kind, 300, rng).to(dtype).requires_grad_(), torch.randn(300, 2, generator=rng).to(dtype).requires_grad_()
        for tau in (1e-6, 1e-3, 1.0, 1e6):
            assert isinstance(SoftSort(tau, power=power)(s), WindowedPermutation)
            compare(lambda s: SoftSort(tau, power=power)(s), s, x, tol, tau, power, {k: v for k, v in CALLS.items() if k != "dense"})


@pytest.mark.parametrize("kind", ("uniform", "ties", "clusters", "heavy", "far"))
def test_sums_of_squares_agree_with_the_float64_definition(kind, large, rng):
    "Prop W3.1 over twelve decades, values and gradients."
    left_out = ("dense", "values") if kind == "far" else ("dense",)  # scores as a payload far from zero cost the definition itself digits
    for dtype, tol in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        scores = 1e3 + adversarial("uniform", 520, rng) if kind == "far" else adversarial(kind, 520, rng)
        s, x = scores.to(dtype).requires_grad_(), torch.randn(520, 2, generator=rng).to(dtype).requires_grad_()
        for tau in (1e-6, 1e-3, 1.0, 1e6):
            assert isinstance(SoftSort(tau, power=2)(s), SquarePermutation)
            compare(lambda s: SoftSort(tau, power=2)(s), s, x, tol, tau, 2, {k: v for k, v in CALLS.items() if k not in left_out})


@pytest.mark.parametrize("kind", ("uniform", "ties", "clusters", "heavy"))
@pytest.mark.parametrize("power", (0.5, 1.5, 3, 8))
def test_sums_of_powers_agree_with_the_float64_definition(power, kind, rng):
    "Prop W3.1 with (W3.3) over twelve decades; gradients where the power has them at near ties."
    scores = adversarial(kind, 300, rng)
    for dtype, tol in ((torch.float32, 2e-5), (torch.float64, 1e-11)):
        s, x = scores.to(dtype), torch.randn(300, 2, generator=rng).to(dtype)
        for tau in (1e-6, 1e-3, 1.0, 1e6):
            P, Q = PowerPermutation(s, tau, Power(power), False, dtype), twin(s, tau, power)
            P.power = power
            assert_close((P @ x).double(), Q @ x.double(), rtol=tol, atol=tol)
            assert_close((P.mT @ x).double(), Q.mT @ x.double(), rtol=tol, atol=10 * tol)


def test_wide_windows_go_to_the_tree(rng):
    "The estimate of 131: short windows are visited, wide ones summed, in both directions and with padded elements."
    s = torch.randn(2, 3000, generator=rng, dtype=torch.float64)
    mask = torch.rand(2, 3000, generator=rng) < 0.9
    for descending in (False, True):
        for m in (None, mask):
            for power in (1.5, 3):
                types = [type(SoftSort(tau, power=power, descending=descending)(s, m)) for tau in (1e-6, 1.0)]
                assert types == [WindowedPermutation, PowerPermutation]
    assert type(SoftSort(1.0, power=12)(s)) is WindowedPermutation  # no cheap plan
    def f(s): return SoftSort(torch.ones(2, dtype=s.dtype), power=3)(s) @ s
    leaf = s.clone().requires_grad_()
    g, = torch.autograd.grad(f(leaf).square().sum(), leaf)
    windows = WindowedPermutation(leaf, 1.0, Power(3), False, s.dtype)
    windows.power = 3
    h, = torch.autograd.grad((windows @ leaf[..., None]).square().sum(), leaf)
    assert_close(g, h, rtol=1e-9, atol=1e-10)


def test_a_lonely_score_keeps_its_digits(rng):
    "Prop W3.1: the normaliser of a score beside a crowd is right in terms of itself; also in plain torch."
    s = torch.cat([torch.randn(3000, generator=rng, dtype=torch.float64) / 10, torch.tensor([0.9, 1.5, 2.5, 40.0], dtype=torch.float64)])
    x = torch.randn(3004, generator=rng, dtype=torch.float64)
    for backend in (None, "torch"):
        for tau in (0.02, 0.05, 0.3):
            P, Q = SquarePermutation(s, tau, Power(2), False, s.dtype), twin(s, tau, 2)
            P.backend = backend
            assert_close(P.log_prob(P.hard()), Q.log_prob(Q.hard()), rtol=1e-12, atol=1e-12)
            assert_close(P @ x, Q @ x, rtol=1e-11, atol=1e-12)


def test_sums_of_squares_under_transforms(rng):
    s, x = torch.randn(2, 510, generator=rng, dtype=torch.float64), torch.randn(2, 510, generator=rng, dtype=torch.float64)
    def f(s, x): return SoftSort(0.3, power=2)(s) @ x
    assert_close(torch.func.vmap(f)(s, x), f(s, x), rtol=1e-12, atol=1e-12)
    leaf = s.clone().requires_grad_()
    g, = torch.autograd.grad(f(leaf, x).square().sum(), leaf)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(compiled(leaf, x).square().sum(), leaf)[0], g, rtol=1e-12, atol=1e-12)


def windows(t, tau, power):
    "The windows of the kernels for sorted scores, [(first column, last column + 1)], for each row."
    a, n, cut = t.double().flip(-1).numpy(), len(t), 1 + math.log(len(t) / torch.finfo(t.dtype).eps)
    found = [window(n - 1 - i, n - 1 - i, False, (cut * tau) ** (1 / power), a, np.empty((2, n))) for i in range(n)]
    return [(n - hi, n - lo) for lo, hi in found]


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("power", (0.5, 1.5, 2))
def test_what_a_window_leaves_out_is_below_rounding(power, dtype, rng):
    eps = torch.finfo(dtype).eps
    for kind in ("uniform", "ties", "clusters", "heavy"):
        for tau in (1e-6, 1e-3, 0.1, 1e6):
            t = adversarial(kind, 300, rng).to(dtype).sort().values
            for row, (lo, hi) in zip(twin(t, tau, power).to_dense(), windows(t, tau, power)):
                assert row[:lo].sum() + row[hi:].sum() < eps


def test_windows_are_narrow_where_tau_is_small(rng):
    t = torch.rand(2000, generator=rng).sort().values
    assert sum(hi - lo for lo, hi in windows(t, 1e-8, 2)) < 0.002 * len(t) ** 2


def test_rows_of_a_window_are_made_alone(rng):
    "The median of a million scores: one row of a few thousand entries."
    s = torch.rand(1_000_000, generator=rng).requires_grad_()
    row = SoftSort(1e-8, power=2)(s)[..., [500_000], :] @ s
    g, = torch.autograd.grad(row.sum(), s)
    assert abs(row.item() - s.median().item()) < 1e-4 and math.isclose(g.sum().item(), 1, rel_tol=1e-3) and (g != 0).sum() < 5000


@pytest.mark.parametrize("power", (1, 2))
def test_batches_masks_and_tensor_temperatures(power, large, rng):
    s, x = torch.randn(3, 160, generator=rng, dtype=torch.float64).requires_grad_(), torch.randn(3, 160, 2, generator=rng, dtype=torch.float64).requires_grad_()
    mask = torch.rand(3, 160, generator=rng) < torch.tensor([[0.3], [1.1], [-1.0]])       # some, all and none
    tau = torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    for descending in (False, True):
        P, Q = SoftSort(tau, power=power, descending=descending)(s, mask), twin(s * mask, tau, power, descending, mask)
        assert type(P) is (LaplacePermutation if power == 1 else WindowedPermutation)
        dense = P.to_dense()
        assert dense.mT.masked_select(~mask[..., None]).eq(0).all()                      # padded elements get probability zero
        assert_close(dense.sum(-1), (torch.arange(160) < mask.sum(-1, keepdim=True)).double())
        assert P.hard().sort(-1).values.equal(torch.arange(160).expand(3, 160))
        target = P.hard()
        for call in (lambda P: P @ x, lambda P: P.mT @ x, lambda P: P[..., 3:40, :] @ x, lambda P: P.log_prob(target), lambda P: P.to_dense()):
            a, b = call(P), call(Q)
            assert_close(a, b, rtol=1e-11, atol=1e-12)
            G = torch.randn(a.shape, generator=rng, dtype=torch.float64)
            for g, h in zip(torch.autograd.grad(a, (s, tau, x), G, retain_graph=True, allow_unused=True), torch.autograd.grad(b, (s, tau, x), G, retain_graph=True, allow_unused=True)):
                if h is None: continue
                assert g.isfinite().all()
                assert_close(g, h, rtol=1e-9, atol=1e-10)


def derivatives(f, v):
    "The gradients of f at the leaves v, by autograd, with a graph, by `torch.func`, and those of the second order."
    leaves = [a.clone().requires_grad_() for a in v]
    plain = torch.autograd.grad(f(*leaves), leaves)
    graph = torch.autograd.grad(f(*leaves), leaves, create_graph=True)
    functional = torch.func.grad(f, tuple(range(len(v))))(*v)
    return {"autograd": plain, "graph": graph, "func": functional, "second": torch.autograd.grad(sum(g.cos().sum() for g in graph), leaves)}


@pytest.mark.parametrize("descending", (False, True))
@pytest.mark.parametrize("backend, n, pads", (("numba", 7, 5), ("torch", 7, 5), (None, 250, 6), (None, 250, 7)))
def test_padding_changes_no_derivative(backend, n, pads, descending, rng):
    "Scores of one sign and padding once made a rising row look like a falling one: gradients of the wrong sign."
    x, G = torch.randn(2, n, 2, generator=rng, dtype=torch.float64).unbind(0)
    at = torch.randperm(n + pads, generator=rng)[:n].sort().values
    mask = torch.zeros(n + pads, dtype=torch.bool).index_fill(0, at, True)
    tau = torch.tensor(0.5, dtype=torch.float64)
    op = lambda tau: SoftSort(tau, backend=backend, descending=descending)
    calls = {"product": lambda P, x: P @ x, "rows": lambda P, x: P[..., :3, :] @ x, "transposed": lambda P, x: P.mT @ x,
             "likelihood": lambda P, x: P.log_prob(P.hard())[:n, None] * x[:n]}
    for shift, padding in ((0.0, 0.0), (9.0, 0.0), (-9.0, 0.0), (9.0, 1e30), (-9.0, -1e30), (9.0, math.nan)):
        s = shift + torch.randn(n, generator=rng, dtype=torch.float64)
        for name, call in calls.items():
            def padded(s, x, tau):
                wide = torch.full((n + pads,), padding, dtype=s.dtype).index_copy(0, at, s)
                inputs = name in ("product", "rows")                              # the payload of the others has places, not inputs
                payload = torch.zeros(n + pads, 2, dtype=x.dtype).index_copy(0, at if inputs else torch.arange(n), x)
                y = call(op(tau)(wide, mask), payload)
                y = y[at] if name == "transposed" else y[:n]
                return (y * G[: len(y)]).sum()

            def alone(s, x, tau):
                y = call(twin(s, tau, descending=descending), x)
                return (y * G[: len(y)]).sum()

            ours, theirs = derivatives(padded, (s, x, tau)), derivatives(alone, (s, x, tau))
            for mode in ours:
                for a, b in zip(ours[mode], theirs[mode]): assert_close(a, b, rtol=1e-9, atol=1e-9, msg=lambda m: f"{name}, {mode}, {shift}, {padding}: {m}")


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_half_types_are_computed_in_float32(dtype, rng):
    s, x = torch.randn(2, 200, generator=rng).to(dtype).requires_grad_(), torch.randn(2, 200, 3, generator=rng).to(dtype)
    P, Q = SoftSort(0.1)(s), twin(s, 0.1)
    assert (P @ x).dtype == P.to_dense().dtype == P.log_prob(P.hard()).dtype == dtype
    assert_close((P @ x).double(), Q @ x.double(), rtol=1e-2, atol=1e-2)
    (P @ x).sum().backward()
    assert s.grad.dtype == dtype and s.grad.isfinite().all()


@pytest.mark.parametrize("power", (1, 2))
def test_nan_stays_in_its_batch_row(power, rng):
    s = torch.randn(3, 100, generator=rng)
    s[1, 5] = float("nan")
    s.requires_grad_()
    P = SoftSort(0.5, power=power)(s)
    for y in (P @ torch.ones(3, 100), P.to_dense(), P.log_prob(P.hard())):
        assert y[[0, 2]].isfinite().all()
    (P @ s.detach().nan_to_num())[[0, 2]].sum().backward()
    assert s.grad[[0, 2]].isfinite().all()


@pytest.mark.parametrize("power", (0.5, 1, 2))
def test_ties(power, rng):
    s = torch.randint(4, (2, 100), generator=rng).double().requires_grad_()
    P = SoftSort(0.7, power=power)(s)
    order = s.detach().argsort(dim=-1, stable=True)
    assert P.hard().equal(order)
    dense, t = P.to_dense(), s.detach().sort(-1).values
    same = t[:, 1:] == t[:, :-1]
    assert_close(dense[:, 1:][same], dense[:, :-1][same], rtol=1e-12, atol=1e-15)        # rows are equal
    for loss in ((P @ s.detach()).square().sum(), dense.square().sum(), (P.mT @ torch.ones(2, 100, dtype=torch.float64)).pow(3).sum()):
        g, = torch.autograd.grad(loss, s, retain_graph=True)
        assert g.isfinite().all()
        for b in range(2):
            for v in range(4): assert_close(g[b][s[b] == v], g[b][s[b] == v].mean().expand(int((s[b] == v).sum())), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("power", (1, 2))
def test_gradients_of_gradients(power, rng):
    s = torch.randn(2, 6, generator=rng, dtype=torch.float64).requires_grad_()
    x = torch.randn(2, 6, 2, generator=rng, dtype=torch.float64).requires_grad_()
    tau = torch.tensor([0.5, 1.5], dtype=torch.float64).requires_grad_()
    def fast(s, tau): return (LaplacePermutation if power == 1 else WindowedPermutation)(s, tau[..., None], Power(power), False, s.dtype)
    for call in (lambda s, x, tau: fast(s, tau) @ x, lambda s, x, tau: fast(s, tau).mT @ x, lambda s, x, tau: fast(s, tau).log_prob(s.argsort(-1)),
                 lambda s, x, tau: fast(s, tau).to_dense()):
        assert torch.autograd.gradcheck(call, (s, x, tau))
        assert torch.autograd.gradgradcheck(call, (s, x, tau))


@pytest.mark.parametrize("power", (1, 1.5, 2))
def test_func_transforms_on_the_kernels(power, rng):
    s, x = torch.randn(3, 7, generator=rng, dtype=torch.float64), torch.randn(3, 7, 2, generator=rng, dtype=torch.float64)
    fast, plain = SoftSort(0.5, power, backend="numba"), lambda s: SoftSort(0.5, distance=Power(power))(s)
    for call in (lambda P, x: P @ x, lambda P, x: P.mT @ x, lambda P, x: P.to_dense(), lambda P, x: P.log_prob(torch.arange(7))):
        f, g = (lambda s, x, op=op: call(op(s), x) for op in (fast, plain))
        assert_close(torch.func.vmap(f)(s, x), torch.func.vmap(g)(s, x))
        assert_close(torch.func.vmap(f, in_dims=(0, None))(s, x[0]), g(s, x[0]))
        assert_close(torch.func.vmap(torch.func.jacrev(f))(s, x), torch.func.vmap(torch.func.jacrev(g))(s, x))
        scalar = lambda h: lambda s: h(s, x[0]).square().sum()
        assert_close(torch.func.jacrev(torch.func.grad(scalar(f)))(s[0]), torch.func.jacrev(torch.func.grad(scalar(g)))(s[0]))


@pytest.mark.parametrize("kwargs", (dict(), dict(power=2), dict(power=0.5), dict(distance=Power(1))))
def test_compiles_without_graph_breaks(kwargs, rng):
    op = SoftSort(0.3, **kwargs)
    s, x = torch.randn(2, 200, generator=rng, requires_grad=True), torch.randn(2, 200, 2, generator=rng)
    def f(s, x):
        P = op(s)
        return (P @ x).square().sum() + (P.mT @ x).sum() + P.log_prob(P.hard()).sum() + P.to_dense().square().sum()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert_close(compiled(s, x), f(s, x), rtol=1e-4, atol=1e-4)
    assert_close(torch.autograd.grad(compiled(s, x), s), torch.autograd.grad(f(s, x), s), rtol=1e-3, atol=1e-3)


def test_autocast_does_not_change_the_precision(rng):
    s, x = torch.randn(2, 200, generator=rng), torch.randn(2, 200, 2, generator=rng)
    for op in (SoftSort(0.3), SoftSort(0.3, power=2)):
        with torch.autocast("cpu", dtype=torch.bfloat16): inside = op(s) @ x
        assert inside.dtype == torch.float32
        assert_close(inside, op(s) @ x)


def test_unimodal_at_every_temperature(rng):
    s = torch.randn(2, 80, generator=rng)
    for tau in (1e-6, 1e-2, 1.0): assert is_unimodal_row_stochastic(SoftSort(tau, backend="numba")(s)).all()


def test_a_learnable_temperature_on_a_long_list(rng):
    tau = torch.nn.Parameter(torch.tensor(0.1))
    op = SoftSort(tau)
    s = torch.randn(5000, generator=rng)
    (op(s) @ s).square().sum().backward()
    t64 = tau.detach().double().requires_grad_()
    (twin(s, t64) @ s.double()).square().sum().backward()
    assert math.isclose(tau.grad.item(), t64.grad.item(), rel_tol=1e-4)


def test_saved_graph_is_linear(rng):
    "Nothing of size n x n is kept for the backward pass."
    kept = []
    def note(v):
        kept.append(v.numel())
        return v
    for op in (SoftSort(0.01), SoftSort(1e-6, power=2), SoftSort(10.0, power=2), SoftSort(0.1, distance=Power(1))):
        s = torch.rand(3000, generator=rng, requires_grad=True)
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda v: v):
            P = op(s)
            P @ s, P.mT @ s, P.log_prob(P.hard())
        assert max(kept) <= 10 * 3000
    kept.clear()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda v: v): SoftSort(0.01)(s).to_dense()
    assert max(kept) <= 10 * 3000


@pytest.mark.parametrize("backend", BACKENDS)
def test_opcheck_of_the_dense_matrix(backend, rng):
    s, tau = torch.rand(2, 6, generator=rng, dtype=torch.float64).requires_grad_(), torch.tensor([0.5, 2.0], dtype=torch.float64).requires_grad_()
    facts = s.argsort(-1, descending=True), torch.tensor([6, 5]), tau, s.detach()[:, :0, None], torch.empty(2, 0, dtype=torch.long)
    utils = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(row_answer.op, (s, *facts, None, int(Asked.MATRIX), 1.0, True, backend), test_utils=utils)


@pytest.mark.parametrize("backend", [None, "torch"])
@pytest.mark.parametrize("n", [5, 100])
def test_a_learnable_temperature_and_padding_have_derivatives_twice(n, backend, rng):
    "The gap to a padded column is infinite, and its mass is zero."
    s, tau = torch.randn(2, n, generator=rng, dtype=torch.float64).requires_grad_(), torch.tensor([0.5, 0.7], dtype=torch.float64).requires_grad_()
    mask = torch.arange(n) != torch.tensor([[n], [2]])
    def energy(s, mask): return SoftSort(tau, backend=backend)(s, mask).to_dense().square().sum()
    first = torch.autograd.grad(energy(s, mask), (s, tau), create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), (s, tau))
    assert all(g.isfinite().all() for g in (*first, *second))
    assert_close(first[1][1], torch.autograd.grad(SoftSort(tau[1], backend=backend)(s[1, mask[1]]).to_dense().square().sum(), tau)[0][1])


@pytest.mark.parametrize("backend", ("", "torch"))
@pytest.mark.parametrize("asked", [Asked.MATRIX, Asked.LIKELIHOOD, Asked.PRODUCT, Asked.BACK_PRODUCT])
def test_opcheck_of_the_windowed_rows(asked, backend, rng):
    leaf = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64).requires_grad_()
    s, tau, size, rows = leaf(2, 6), torch.tensor([0.5, 2.0], dtype=torch.float64).requires_grad_(), torch.tensor([6, 4]), torch.tensor([3, 0, 5])
    x = leaf(2, *{Asked.PRODUCT: (6, 3), Asked.BACK_PRODUCT: (3, 3)}.get(asked, (0, 0)))
    args = s, s.detach().argsort(-1), size, tau, x, torch.tensor([[0, 5, 2], [1, 2, 3]])[:, :3 if asked == Asked.LIKELIHOOD else 0], rows, int(asked), 2.0, False
    torch.library.opcheck(row_answer.op, (*args, backend), test_utils=("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"))
    g = torch.randn_like(row_answer(*args, backend).detach())
    with torch.no_grad(): torch.library.opcheck(_pull.op, (g, *args, True, True, backend), test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


def test_a_chapter_that_runs_beside_the_package_does_not_take_its_name():
    "Notebooks share a process with the package in nbdev_test; a class of one's own with another name does take it."
    from softsortlib.core.operators import Operator, get_operator
    before = dict(Operator.names)
    try:
        for name in ("SoftSort", "MySort"): exec(f"class {name}(Operator, name='softsort'): pass", dict(Operator=Operator, __name__="__main__"))
        assert Operator.names["softsort"].__name__ == "MySort"
        Operator.names.update(before)
        exec("class SoftSort(Operator, name='softsort'): pass", dict(Operator=Operator, __name__="__main__"))
        assert type(get_operator("softsort")) is SoftSort
    finally: Operator.names.update(before)


@pytest.mark.parametrize("power", (0.5, 1, 1.7, 2, 3))
def test_operators_and_their_maps_are_pickled_and_copied(power, rng):
    "Between processes, into checkpoints, by ddp: an operator carries its semi-metric with it."
    s, x = torch.randn(200, generator=rng), torch.randn(200, generator=rng)
    op = SoftSort(0.5, power=power, descending=True)
    for again in (pickle.loads(pickle.dumps(op)), copy.deepcopy(op)):
        assert repr(again) == repr(op)
        for z in (s[:5], s): assert torch.equal(again(z) @ x[: len(z)], op(z) @ x[: len(z)])
    for map_of in (op, NeuralSort(0.5)):
        for n in (5, 200): assert torch.equal(pickle.loads(pickle.dumps(map_of(s[:n]))) @ x[:n], map_of(s[:n]) @ x[:n])


def test_triton_by_name_on_the_cpu_is_an_error_with_a_way_out(rng, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    from softsortlib import NeuralSort
    for n in (5, 200):
        for op in (SoftSort(backend="triton"), NeuralSort(backend="triton")):
            s = torch.randn(n, generator=rng)
            with pytest.raises(ValueError, match="backend 'triton' runs on cuda.*backend=None"): op(s) @ s


@pytest.mark.parametrize("power", [0.5, 1, 2, 3])
@pytest.mark.parametrize("n", [4, 300])
def test_the_largest_numbers_have_finite_gradients(power, n, rng):
    for dtype in (torch.float32, torch.float64):
        s = torch.randn(n, generator=rng, dtype=torch.float64).to(dtype)
        s[0], s[1] = torch.finfo(dtype).max, torch.finfo(dtype).min
        x = torch.randn(n, generator=rng, dtype=torch.float64).to(dtype)
        s.requires_grad_()
        P = SoftSort(tau=1.0, power=power)(s)
        found = P @ x
        [g] = torch.autograd.grad(found.square().sum() + (P.mT @ x).square().sum(), s)
        assert g.isfinite().all()
        torch.testing.assert_close(found[1:-1], SoftSort(tau=1.0, power=power)(s[2:]) @ x[2:], rtol=1e-4, atol=1e-5)


def test_a_mean_of_huge_numbers_in_double_precision(rng):
    "So are those of scores, of NeuralSort and of other powers: the sum may be larger than any number, the mean is not."
    from softsortlib import NeuralSort
    for op in (SoftSort(), SoftSort(backend="torch"), SoftSort(power=2), SoftSort(power=2, backend="torch"), NeuralSort()):
        s = torch.zeros(300, dtype=torch.float64).requires_grad_()
        for x in (torch.full((300,), 1e307, dtype=torch.float64), torch.full((300,), -1e307, dtype=torch.float64)):
            torch.testing.assert_close(op(s) @ x / x, torch.ones(300).double())


OF_ROWS = {"values": lambda P, s: P @ s, "payload": lambda P, s: P @ s.cos().square().detach(), "columns": lambda P, s: (P @ torch.stack([s, s.detach().sin()], -1)).sum(-1),
           "log_prob": lambda P, s: P.log_prob(torch.tensor([5, 0, 1, 2])), "transposed": lambda P, s: P.mT @ s[:4].detach().cos(), "dense": lambda P, s: P.to_dense().square().sum(-1)}
RUNS = (0, 1, 5), (2, 4)         # of equal scores in the following


def tied(n, rng):
    return torch.cat([torch.tensor([2.0, 2, 1, -2, 1, 2, 0.5], dtype=torch.float64), torch.randn(n - 7, generator=rng, dtype=torch.float64) - 4])


@pytest.mark.parametrize("n, backend", [(7, None), (7, "numba"), (7, "torch"), (40, None), (300, None), (800, None)])
@pytest.mark.parametrize("descending", (False, True))
def test_tied_scores_share_the_gradient_of_single_rows(n, backend, descending, rng):
    "It is the mean of the gradients over all orders that the tied scores may take; by autograd, torch.func, in forward mode, and to be differentiated again."
    s, rows = tied(n, rng), torch.tensor([1, 0, 3, 2])
    rows = rows if descending else n - 1 - rows
    orders = [torch.zeros(n).double().index_put((torch.tensor(RUNS[0] + RUNS[1]),), torch.tensor(p + q).double()) for p in permutations(range(3)) for q in permutations(range(2))]
    for name, of in OF_ROWS.items():
        def f(s):
            y = of(SoftSort(0.3, descending=descending, backend=backend)(s)[..., rows, :], s)
            return (y * torch.arange(1.0, len(y) + 1).sqrt()).sum()
        right = torch.stack([torch.func.grad(f)(s + 1e-9 * order) for order in orders]).mean(0)
        x = s.clone().requires_grad_()
        again, = torch.autograd.grad(f(x), x, create_graph=True)
        along, = torch.autograd.grad(again.square().sum(), x)
        for found in (torch.autograd.grad(f(x), x)[0], again, torch.func.grad(f)(s)): assert_close(found, right, rtol=1e-6, atol=1e-7 * right.abs().max(), msg=name)
        v = torch.randn(n, generator=rng, dtype=torch.float64)
        assert_close(torch.func.jvp(f, (s,), (v,))[1], right @ v, rtol=1e-5, atol=1e-6)
        assert along.isfinite().all()
        x = s.float().requires_grad_()
        assert_close(torch.autograd.grad(f(x), x)[0].double(), right, rtol=1e-3, atol=1e-4 * right.abs().max())


@pytest.mark.parametrize("n", (7, 300))
def test_padding_and_lists_share_it_alike(n, rng):
    "What is padded is as large as a tied score, and is not one of them."
    s = tied(n, rng)
    def gradient(f, x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(f(x), x)[0]
    def top(x, **options): return (soft_topk(x, 3, tau=0.3, **options)[0] * torch.tensor([1.0, -2, 3])).sum()
    right = gradient(top, s)
    assert right[0] == right[1] == right[5] and right[2] == right[4]
    padded, mask = torch.cat([torch.full((2,), 2.0), s, torch.full((3,), 1.0)]).expand(2, -1), torch.zeros(n + 5, dtype=torch.bool)
    mask[2:n + 2] = True
    assert_close(gradient(lambda x: top(x, mask=mask), padded), torch.cat([torch.zeros(2), right, torch.zeros(3)]).expand(2, -1))
    assert_close(gradient(lambda x: top(x, offsets=torch.tensor([0, n, 2 * n])), torch.cat([s, s])), torch.cat([right, right]))


def test_the_loss_of_the_largest_is_cross_entropy_at_ties():
    s = torch.tensor([2.0, 2, 1, 2]).requires_grad_()
    found, = torch.autograd.grad(topk_loss(s, torch.tensor(1), tau=0.3), s)
    assert_close(found, torch.autograd.grad(torch.nn.functional.cross_entropy(s / 0.3, torch.tensor(1)), s)[0])
