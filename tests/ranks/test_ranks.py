"""The contract of the rank-only operators: shapes, dtypes, limits, masks, ties, NaN, extremes, transforms, errors."""
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import softsortlib.engine.dispatch as dispatch
from softsortlib.core.rank_operators import get_rank_operator, RankOperator
from softsortlib.engine.radix import _stable_sort, stable_sort
from softsortlib.ranks.gaussian import GaussianRank
from softsortlib.ranks.laplace import (
    _laplace_rank, LaplaceRank, lapsum_topk, LapSumTopK, _place,
)
from softsortlib.ranks.permutahedron import Permutahedron
from softsortlib.ranks.sigmoid import _pair_sum, pair_sum, SigmoidRank

NAMES = ["sigmoid", "gaussian", "laplace", "permutahedron"]
STEPS = {"sigmoid": ("logistic", 1), "gaussian": ("normal", math.sqrt(2)), "laplace": ("laplace", 1)}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
quick = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def scores(*shape, rng, dtype=torch.float64): return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)
def hard_ranks(s): return 0.5 + torch.heaviside(s[..., :, None] - s[..., None, :], s.new_tensor(0.5)).sum(-1)


def plain(name, s, tau):
    step, scale = STEPS[name]
    return (s.shape[-1] + 1) / 2 + pair_sum(s, scale * tau, torch.ones_like(s), step, plain=True)


def test_all_are_registered():
    assert set(NAMES) == {name for name, cls in RankOperator.names.items() if cls.__module__.startswith("softsortlib.ranks.")}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (6,), (3, 7), (2, 3, 5), (2, 100), (1, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_shapes_dtypes_and_gradients(name, shape, dtype, rng):
    s = scores(*shape, rng=rng, dtype=dtype).requires_grad_()
    r = get_rank_operator(name, tau=0.3)(s)
    assert r.shape == s.shape and r.dtype == dtype
    tol = dict(rtol=2e-2, atol=2e-2) if dtype.itemsize == 2 else dict(rtol=1e-4, atol=1e-5)
    assert_close(r.double(), get_rank_operator(name, tau=0.3)(s.detach().double()), **tol)
    r.float().square().sum().backward()
    assert s.grad.dtype == dtype and s.grad.isfinite().all()


@pytest.mark.parametrize("n", [7, 70, 300])
@pytest.mark.parametrize("name", STEPS)
def test_fast_is_plain(name, n, rng):
    "Values and gradients, tau from 1e-6 to 1e6 times the spread, both precisions."
    s = scores(2, n, rng=rng)
    for tau in [1e-6, 1e-3, 0.1, 1.0, 30.0, 1e6]:
        for dtype, tol in [(torch.float64, 1e-11), (torch.float32, 1e-5)]:
            x = s.to(dtype).requires_grad_()
            weight = torch.linspace(-1, 1, n, dtype=dtype)
            fast, slow = get_rank_operator(name, tau=tau)(x), plain(name, x, tau)
            assert_close(fast, slow, rtol=tol, atol=n * torch.finfo(dtype).eps)  # relative to the largest rank
            a, b = (torch.autograd.grad((r * weight).sum(), x)[0] for r in (fast, slow))
            noise = n / tau * torch.finfo(dtype).eps  # where tanh saturates, autograd's 1 - tanh^2 of the plain formula has no digits left
            assert (a - b).norm() <= 10 * tol * b.norm() + noise


@pytest.mark.parametrize("name", NAMES)
def test_hard_limit_over_many_cases(name, rng):
    for _ in range(100):
        n = int(torch.randint(1, 90, (), generator=rng))
        s = torch.randint(0, 30, (2, n), generator=rng).double()  # ties: at small tau they share the mean rank
        assert_close(get_rank_operator(name, tau=1e-4)(s), hard_ranks(s), rtol=1e-9, atol=1e-9)
        assert_close(get_rank_operator(name, tau=1e-4, descending=True)(s), hard_ranks(-s), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@quick
@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=80), st.floats(1e-3, 1e3))
def test_sum_order_and_range(name, values, tau):
    s = torch.tensor(values, dtype=torch.float64)
    r, n = get_rank_operator(name, tau=tau)(s), len(values)
    assert_close(r.sum(), s.new_tensor(n * (n + 1) / 2), rtol=1e-10, atol=1e-10)
    assert (r >= 1 - 1e-9).all() and (r <= n + 1e-9).all()
    assert (r[s.argsort()].diff() >= -1e-9 * n).all()
    for value in set(values):
        same = r[s == value]
        assert_close(same, same[:1].expand_as(same), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n", [5, 90])
@pytest.mark.parametrize("name", NAMES)
def test_mask_is_absence(name, n, rng):
    s, mask = scores(4, n, rng=rng).requires_grad_(), torch.rand(4, n, generator=rng) < 0.7
    mask[3], bad = False, torch.tensor([1e30, -1e30, math.inf, math.nan]).double()
    for descending in (False, True):
        noise = torch.where(mask, s, bad[torch.arange(n) % 4])  # what a padded element holds must not matter
        op = get_rank_operator(name, tau=0.4, descending=descending)
        r = op(noise, mask)
        (g,) = torch.autograd.grad(r.square().sum(), s)
        assert (r[~mask] == 0).all() and (g[~mask] == 0).all()
        for k in range(3):
            x = s[k][mask[k]].detach().requires_grad_()
            assert_close(r[k][mask[k]], op(x), rtol=1e-10, atol=1e-10)
            assert_close(g[k][mask[k]], torch.autograd.grad(op(x).square().sum(), x)[0], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("n", [5, 90])
@pytest.mark.parametrize("name", NAMES)
def test_ties_have_symmetric_gradients(name, n, rng):
    s = (scores(n, rng=rng) * 2).round().requires_grad_()
    r = get_rank_operator(name, tau=0.7)(s)
    (g,) = torch.autograd.grad(r.pow(3).sum(), s)  # a symmetric function of the scores
    assert g.isfinite().all()
    for v in s.detach().unique():
        same = g[s == v]
        assert_close(same, same[:1].expand_as(same), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("n", [5, 90])
@pytest.mark.parametrize("name", NAMES)
def test_nan_stays_in_its_row(name, n, rng):
    s = scores(3, n, rng=rng)
    bad = s.clone(); bad[1, 2] = math.nan
    op = get_rank_operator(name, tau=0.5)
    x, y = s.requires_grad_(), bad.requires_grad_()
    a, b = op(x), op(y)
    ga, gb = (torch.autograd.grad(r[[0, 2]].square().sum(), i)[0] for r, i in ((a, x), (b, y)))
    assert_close(b[[0, 2]], a[[0, 2]], rtol=0, atol=0)
    assert_close(gb[[0, 2]], ga[[0, 2]], rtol=0, atol=0)
    assert b[1].isnan().any()


@pytest.mark.parametrize("n", [5, 70])
@pytest.mark.parametrize("name", NAMES)
def test_learnable_tau(name, n, rng):
    s = scores(2, n, rng=rng)
    op = get_rank_operator(name, tau=torch.nn.Parameter(torch.tensor([0.3, 2.0], dtype=torch.float64)))
    op(s).pow(3).sum().backward()
    def f(t): return get_rank_operator(name, tau=t)(s).pow(3).sum().item()
    h = 1e-6
    for k in range(2):
        e = torch.zeros(2, dtype=torch.float64); e[k] = h
        t = op.tau.detach()
        assert_close(op.tau.grad[k].item(), (f(t + e) - f(t - e)) / (2 * h), rtol=1e-4, atol=1e-3)
    assert "tau=Parameter(2,)" in repr(op) or "tau=Tensor(2,)" in repr(op)


@pytest.mark.parametrize("n", [4, 40])
@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name, n, rng):
    s = scores(1 if n > 10 else 2, n, rng=rng).mul(3).requires_grad_()
    op = get_rank_operator(name, tau=0.9)
    torch.autograd.gradcheck(op, s)
    if n < 10: torch.autograd.gradgradcheck(op, s)


@pytest.mark.parametrize("n", [4, 80])
@pytest.mark.parametrize("name", NAMES)
def test_transforms(name, n, rng):
    op = get_rank_operator(name, tau=0.5)
    s = scores(3, n, rng=rng)
    assert_close(torch.func.vmap(op)(s), op(s), rtol=1e-12, atol=1e-12)
    assert_close(torch.func.vmap(op, in_dims=1)(s.mT.contiguous().mT.mT), op(s), rtol=1e-12, atol=1e-12)
    def loss(x): return op(x).square().sum()
    g = torch.func.grad(loss)(s)
    x = s.clone().requires_grad_()
    assert_close(g, torch.autograd.grad(loss(x), x)[0], rtol=1e-12, atol=1e-12)
    assert_close(torch.func.vmap(torch.func.grad(loss))(s), g, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_compiles_as_one_graph(name, rng):
    op = get_rank_operator(name, tau=0.5)
    s = scores(2, 80, rng=rng).requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    r = compiled(s)
    assert_close(r, op(s), rtol=1e-12, atol=1e-12)
    assert_close(*[torch.autograd.grad(y.square().sum(), s)[0] for y in (r, op(s))], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_does_not_lower_the_precision(name, rng):
    s = scores(2, 80, rng=rng, dtype=torch.float32)
    op = get_rank_operator(name, tau=0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16): r = op(s)
    assert_close(r, op(s), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_errors_name_the_argument(name):
    op = get_rank_operator(name)
    with pytest.raises(TypeError, match="scores must be floating point"): op(torch.arange(3))
    with pytest.raises(TypeError, match="scores must be a torch.Tensor"): op([1.0, 2.0])
    with pytest.raises(ValueError, match="scores must have shape"): op(torch.tensor(1.0))
    with pytest.raises(ValueError, match="scores must have shape"): op(torch.zeros(2, 0))
    with pytest.raises(TypeError, match="mask must be a bool"): op(torch.rand(3), torch.ones(3))
    with pytest.raises(ValueError, match="mask must broadcast"): op(torch.rand(3), torch.ones(4, dtype=torch.bool))
    with pytest.raises(ValueError, match="tau must be positive"): get_rank_operator(name, tau=0.0)
    with pytest.raises(ValueError, match="tau must broadcast"): get_rank_operator(name, tau=torch.ones(4))(torch.rand(2, 3))


def test_custom_operators_pass_opcheck(rng):
    s, tau = scores(2, 6, rng=rng).sort(-1).values.requires_grad_(), torch.full((2, 1), 0.5, dtype=torch.float64, requires_grad=True)
    v = torch.rand(2, 6, 1, generator=rng, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(_pair_sum.op, (s, tau, v, "logistic", 0, 0))
    torch.library.opcheck(_laplace_rank.op, (s, tau, torch.arange(6).expand(2, 6).contiguous(), torch.tensor([[6], [4]])))
    torch.library.opcheck(_stable_sort.op, (torch.randn(2, 50, generator=rng, requires_grad=True), True))


def test_sigmoid_rank_needs_linear_memory(rng):
    "n = 20000 would need 1.6 GB for one matrix in single precision; the tiles are a megabyte."
    import resource
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    s = torch.randn(6000, generator=rng).requires_grad_()
    SigmoidRank(0.1)(s).square().mean().backward()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 6000 * 6000 * 4 / 2


def test_gaussian_distribution_is_its_own_mean(rng):
    s, mask = scores(2, 3, 6, rng=rng), torch.rand(2, 3, 6, generator=rng) < 0.7
    op = GaussianRank(torch.full((2, 3), 0.8, dtype=torch.float64), descending=True)
    p = op.distribution(s, mask)
    assert_close(p @ torch.arange(1.0, 7.0, dtype=p.dtype), op(s, mask))
    assert_close(p.sum(-1), mask.double())
    assert op.distribution(s.to(torch.bfloat16)).dtype == torch.bfloat16
    torch.autograd.gradcheck(GaussianRank(0.8).distribution, scores(4, rng=rng).requires_grad_())


# ---- LapSum top-k ----

@quick
@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=60), st.floats(0.01, 1), st.floats(1e-4, 1e4))
def test_topk_weights_sum_to_k(values, share, tau):
    s, k = torch.tensor(values, dtype=torch.float64), share * len(values)
    w = lapsum_topk(s, k, tau)
    assert_close(w.sum(), s.new_tensor(k), rtol=1e-9, atol=1e-9)
    assert (w >= 0).all() and (w <= 1).all() and (w[s.argsort()].diff() >= -1e-9).all()
    if share > 0.999: return                                                # where all are chosen, the threshold is far away
    args = s[None], torch.full((1, 1), tau, dtype=s.dtype), torch.full((1, 1), k, dtype=s.dtype), s[None].argsort(-1), torch.tensor([[len(s)]])
    b = []
    for home in ("numba", "torch"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(dispatch.HOME, "cpu", home)
            x, d = _place(*args)
            b.append(x + tau * d)
    assert_close(*b, rtol=1e-8, atol=1e-7 * tau)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [True, False])
def test_topk_hard_limit(dtype, largest, rng):
    for _ in range(50):
        n = int(torch.randint(2, 90, (), generator=rng))
        s = torch.randperm(n, generator=rng).to(dtype)
        k = int(torch.randint(1, n + 1, (), generator=rng))
        w = lapsum_topk(s, k, 1e-3, largest)
        assert w.dtype == dtype
        assert_close(w, torch.zeros_like(s).scatter(-1, s.topk(k, largest=largest).indices, 1), rtol=0, atol=1e-6)


def test_topk_mask_nan_ties_and_transforms(rng):
    s, mask = scores(4, 50, rng=rng), torch.rand(4, 50, generator=rng) < 0.6
    mask[3] = False
    top = LapSumTopK(5, 0.3)
    w = top(torch.where(mask, s, math.nan), mask)
    assert (w[~mask] == 0).all()
    for k in range(3): assert_close(w[k][mask[k]], top(s[k][mask[k]]))
    bad = s.clone(); bad[1, 0] = math.nan
    assert_close(top(bad)[[0, 2, 3]], top(s)[[0, 2, 3]], rtol=0, atol=0)
    tied = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    assert_close(lapsum_topk(tied, 2, 0.1), torch.full((8,), 0.25).double())
    (g,) = torch.autograd.grad(lapsum_topk(tied, 2, 0.1).square().sum(), tied)
    assert_close(g, torch.zeros(8).double(), rtol=0, atol=1e-12)
    assert_close(torch.func.vmap(top)(s), top(s))
    torch._dynamo.reset()
    assert_close(torch.compile(top, fullgraph=True, backend="aot_eager")(s), top(s))
    (g,) = torch.autograd.grad(lapsum_topk(s.requires_grad_(), 5, 1e-6).square().sum(), s)
    assert g.isfinite().all()
    for bad, kind in [(0, ValueError), (51, ValueError), ("3", TypeError), (True, TypeError)]:
        with pytest.raises(kind, match="k must be"): lapsum_topk(s, bad)


@pytest.mark.parametrize("tau", [1e-6, 0.3, 1e4])
def test_a_long_list_of_laplace_ranks_is_one_list(tau, rng):
    "It is walked in tiles, from both sides: what a tile hears of the others is what the scan says; values, and gradients to scores and temperature."
    s, mask = scores(1, 66_000, rng=rng).requires_grad_(), torch.rand(1, 66_000, generator=rng) < 0.99
    t, g = torch.tensor(tau).double().requires_grad_(), scores(1, 66_000, rng=rng)
    found = []
    for home in ("numba", "torch"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(dispatch.HOME, "cpu", home)
            r = LaplaceRank(t)(s, mask)
            found.append((r, *torch.autograd.grad(r, (s, t), g)))
    for fast, slow in zip(*found): assert (fast - slow).norm() <= 1e-11 * slow.norm() + 1e-13 * max(1, tau**-2)  # the scan counts the score itself
    m = mask.sum().item()
    assert abs(found[0][0].sum().item() / (m * (m + 1) / 2) - 1) < 1e-12


def test_an_infinite_score_is_ranked_before_what_is_padded(rng):
    s = scores(70, rng=rng)
    s[1], s[2] = math.inf, -math.inf
    mask = torch.arange(70) % 69 != 0                                       # the first and the last are padded, at infinity as the second
    r = LaplaceRank(0.3)(s, mask)
    assert r[[0, 69]].tolist() == [0, 0] and r[1:3].tolist() == [68, 1]
    assert_close(r[1:69], LaplaceRank(0.3)(s[1:69]))


def test_ties_pull_alike_for_few_and_for_many(rng):
    "The slope of the step at a tie is 1/2 (R3.6), over all pairs as in two passes; it was zero for up to 64 scores."
    g = scores(64, rng=rng)
    for s in (torch.zeros(64).double(), scores(64, rng=rng).round()):
        x, order = s.sort()
        few, many = s.clone().requires_grad_(), x.clone().requires_grad_()
        real, tau = torch.tensor([[64]]), torch.full((1, 1), 0.7, dtype=torch.float64)
        got = torch.autograd.grad(LaplaceRank(0.7)(few), few, g)[0]
        want = torch.autograd.grad(_laplace_rank(many[None], tau, torch.arange(64)[None], real)[0], many, g[order])[0]
        assert_close(got[order], want, rtol=1e-12, atol=1e-12)
        D = torch.ones(64, 64).double() if not s.any() else (-(s[:, None] - s).abs() / 0.7).exp()
        assert_close(got, (g * D.sum(-1) - D @ g) / 1.4, rtol=1e-10, atol=1e-10)  # (R3.7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_sum_to_k_below_the_spacing_of_the_scores(dtype, rng):
    "A threshold that is a number is rounded to the scores' spacing: 60 tied scores got one half each, or one."
    for s in (torch.full((60,), 1e3), torch.full((60,), -3e4), 1000 + torch.arange(60) % 3, scores(60, rng=rng) * 100, torch.cat([scores(59, rng=rng), torch.tensor([6e4])])):
        s = s.to(dtype)
        for tau in (1e-12, 1e-6, 1.0, 1e6):
            for k in (1, 2, 29.5, 59):
                for largest in (True, False):
                    w = lapsum_topk(s, k, tau, largest).double()
                    assert (w >= 0).all() and (w <= 1).all()
                    assert_close(w.sum(), torch.tensor(float(k)).double(), rtol=max(1e-9, 2 * torch.finfo(dtype).eps), atol=0)
                    for value in s.unique(): assert (w[s == value] == w[s == value][0]).all()
    assert_close(lapsum_topk(torch.full((60,), 1e6), 2, 1e-12), torch.full((60,), 1 / 30))
    assert_close(lapsum_topk(torch.tensor([-1e300, 1e300], dtype=torch.float64), 1, 1e-30), torch.tensor([0.0, 1.0]).double())


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_that_cannot_hold_the_ranks(name):
    s = torch.zeros(70_000, dtype=torch.float16)
    with pytest.raises(ValueError, match="70000.*float16.*65504"): get_rank_operator(name)(s)


@pytest.mark.parametrize("name", NAMES)
def test_meta_tensors_have_shapes(name):
    for n in (5, 500):
        for mask in (None, torch.ones(2, n, dtype=torch.bool, device="meta")):
            r = get_rank_operator(name)(torch.empty(2, n, device="meta"), mask)
            assert r.shape == (2, n) and r.device.type == "meta"
            if name == "permutahedron":
                for kind in ("l2", "kl"): assert Permutahedron(0.5, kind).sort(torch.empty(2, n, device="meta"), mask).shape == (2, n)


# ---- the sort under them ----

@quick
@given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True), min_size=32, max_size=200))
def test_radix_sort_is_torch_sort(values):
    s = torch.tensor(values, dtype=torch.float32)
    for a, b in zip(stable_sort(s), s.sort(dim=-1, stable=True)): assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_radix_sort_of_odd_shapes(rng):
    s = torch.randn(3, 64, 4, generator=rng).mT[1:, ::2]
    for a, b in zip(stable_sort(s), s.sort(dim=-1, stable=True)): assert_close(a, b, rtol=0, atol=0)
    s = torch.randn(70_000, generator=rng)
    for a, b in zip(stable_sort(s), s.sort(dim=-1, stable=True)): assert_close(a, b, rtol=0, atol=0)


def test_lapsum_weights_of_single_precision_sum_to_k(rng):
    s = torch.randn(200_000, generator=rng)
    for k, tau in ((1000, 0.1), (70_000, 1e-6), (3, 1e-3)):
        assert abs(lapsum_topk(s, k, tau).double().sum().item() - k) < 1e-6 * k ** 0.5 + 1e-6
    assert_close(lapsum_topk(1000 + torch.tensor([1.0, 1, 1, 0]), 2, 1e-6), torch.tensor([2 / 3, 2 / 3, 2 / 3, 0]))
    x = s[:64].clone().requires_grad_()
    [g] = torch.autograd.grad(lapsum_topk(x, 5, 0.3).square().sum(), x)
    assert g.dtype == torch.float32
    y = x.detach().double().requires_grad_()
    assert_close(g.double(), torch.autograd.grad(lapsum_topk(y, 5, 0.3).square().sum(), y)[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("n", (6, 100, 300, 600))
@pytest.mark.parametrize("name", STEPS)
def test_the_gradient_to_tau_in_single_precision(name, n, rng):
    "Scores far from zero, or many temperatures apart, and padding of any value: that of the real scores in double precision."
    step, scale = STEPS[name]
    places = torch.arange(2 * n)[::2]
    mask = torch.zeros(2 * n, dtype=torch.bool).index_fill(0, places, True)
    for offset in (0.0, 1e4):
        for tau in (1e-3, 0.03, 1.0, 1e4):
            s = scores(n, rng=rng).float() + offset
            weight = torch.randn(n, generator=rng)
            t = torch.tensor(tau, requires_grad=True)
            u = (s.double()[:, None] - s.double()) / (scale * t.detach().double())
            slope = {"sigmoid": torch.sigmoid(u) * torch.sigmoid(-u), "gaussian": (-u * u / 2).exp() / math.sqrt(2 * math.pi), "laplace": (-u.abs()).exp() / 2}[name]
            terms = weight.double()[:, None] * u * slope / -tau
            for padding in (None, 0.0, 1e30, math.nan):
                x, real = (s, None) if padding is None else (torch.full((2 * n,), padding).index_copy(0, places, s), mask)
                ranks = get_rank_operator(name, tau=t)(x, real)
                got, = torch.autograd.grad(((ranks if real is None else ranks[places]) * weight).sum(), t)
                allowed = 1e-5 * terms.abs().sum() + 1e-6 / tau      # a rank's own rounding
                assert (got.double() - terms.sum()).abs() <= allowed, (offset, tau, padding, got, terms.sum())


@pytest.mark.parametrize("n", (512, 513, 600))
@pytest.mark.parametrize("step", ("logistic", "normal", "laplace"))
def test_pair_sums_take_a_temperature_without_dimensions(n, step, rng):
    s, v = torch.randn(2, n, generator=rng, dtype=torch.float64), torch.rand(2, n, generator=rng, dtype=torch.float64)
    tau = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    found, right = pair_sum(s, tau, v, step), pair_sum(s, tau.expand(2, 1), v, step)
    assert torch.equal(found, right)
    assert_close(*(torch.autograd.grad(y.square().sum(), tau)[0] for y in (found, right)))
