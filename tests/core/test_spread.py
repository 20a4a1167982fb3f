"""A temperature that nobody sets: from the spread of each set, the same in every method, not owned by an outlier, differentiated with the rest."""
import math

import pytest
import torch
from torch.testing import assert_close

from softsortlib import (
    GaussianRank, LapSum, LaplaceRank, NeuralSort, SigmoidRank, SinkhornSort, SoftSort, SortingNetwork, soft_median, soft_rank, soft_sort, soft_topk_mask,
)
from softsortlib.core.spread import SAMPLED, fast_spread, in_units, plain_spread, spread_of

f64 = torch.float64
SORTS = ("softsort", "neuralsort", "lapsum", "bitonic", "odd_even", "sinkhorn", "permutahedron")
RANKS = (*SORTS, "sigmoid", "gaussian", "laplace")
MASKS = ("lapsum", "sinkhorn", "sparse", "threshold", "simple")
DRAWS = {"uniform": lambda *shape, generator: torch.rand(shape, generator=generator), "normal": torch.randn, "exponential": lambda *shape, generator: torch.empty(shape).exponential_(generator=generator)}


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, f64])
def test_a_selection_by_samples_weighs_as_the_sort_does(rng, dtype):
    for n in (SAMPLED - 1, SAMPLED, SAMPLED + 1, 3 * SAMPLED):
        x, up = torch.randn(n, generator=rng, dtype=dtype), torch.arange(n, dtype=dtype)
        pipe, saw = torch.minimum(up, n - 1 - up), up % int(n ** (1 / 3))  # the sample of which is all wrong
        for s in (x, (3 * x).round(), x.relu(), pipe, -pipe, saw, up.flip(0), x / x.flip(0), torch.where(up == 3, 1e17, x)):
            (width, _, c), fast = plain_spread(s), fast_spread(s)
            assert_close(fast[0], width)
            assert_close(fast[1], c)


@pytest.mark.parametrize("dtype", [torch.float32, f64])
def test_the_kernel_weighs_as_the_sort_does(rng, dtype):
    for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 30, 301):
        x = torch.randn(12, n, generator=rng, dtype=dtype)
        for s in (x, (1.5 * x).round(), x.relu().round(), torch.where(torch.rand(12, n, generator=rng) < 0.2, math.inf, x)):
            for mask in (None, torch.rand(12, n, generator=rng) < 0.6):
                hidden = s if mask is None else s.masked_fill(~mask, math.inf)
                (width, _, c), fast = plain_spread(hidden), fast_spread(hidden)
                assert_close(fast, (width, c), rtol=0, atol=1e-6)
                assert (width >= 0).all() and width.isfinite().all()
                assert_close(spread_of(s if mask is None else s.masked_fill(~mask, math.nan), mask), width)


def test_the_quartiles_and_where_they_tie(rng):
    for n in (2, 3, 4, 5, 8, 31):
        x = torch.randn(n, generator=rng, dtype=f64)
        low, high = torch.quantile(x, torch.tensor([0.25, 0.75], dtype=f64))
        assert_close(spread_of(x)[0], high - low)
    assert spread_of(torch.tensor([0.0] * 8 + [3.0, 1.0])).item() == 1 and abs(spread_of(torch.tensor([2.0] * 9 + [5.0])).item() - 3) < 1e-5
    assert spread_of(torch.ones(7)).item() == 0 and spread_of(torch.ones(1)).item() == 0


def test_one_outlier_does_not_own_it(rng):
    cauchy = torch.randn(100, generator=rng) / torch.randn(100, generator=rng)
    for s in (torch.randn(100, generator=rng), torch.rand(100, generator=rng), cauchy, torch.randint(10, (100,), generator=rng).float(), torch.randn(100, generator=rng).sign() + 0.01 * torch.randn(100, generator=rng),
              torch.randn(5, generator=rng)):
        far = s.clone()
        far[s.argmax()] = 1e6
        assert_close(spread_of(far), spread_of(s), rtol=1e-5, atol=0)
        kept = torch.arange(len(s)) != s.argmax()
        assert_close(soft_sort(far)[:-1], soft_sort(s)[:-1], rtol=0, atol=float(s[kept].max() - s[kept].min()) / 5)


@pytest.mark.parametrize("a", [1e-6, 1e-3, 1e3, 1e6])
def test_units_do_not_matter(rng, a):
    x = torch.randn(3, 12, generator=rng)
    for method in SORTS: assert_close(soft_sort(a * x + 2 * a, method=method) / a - 2, soft_sort(x, method=method), rtol=0, atol=2e-4, msg=method)
    for method in RANKS: assert_close(soft_rank(a * x + 2 * a, method=method), soft_rank(x, method=method), rtol=0, atol=2e-3, msg=method)
    for method in MASKS: assert_close(soft_topk_mask(a * x + 2 * a, 3, method=method), soft_topk_mask(x, 3, method=method), rtol=0, atol=1e-4, msg=method)
    assert_close(soft_median(a * x) / a, soft_median(x), rtol=0, atol=1e-4)


@pytest.mark.parametrize("n", [5, 30, 300])
@pytest.mark.parametrize("kind", DRAWS)
def test_sorts_keep_the_range_and_ranks_are_near(rng, n, kind):
    x = DRAWS[kind](8, n, generator=rng)
    hard = x.argsort(-1).argsort(-1) + 1
    for method in RANKS:
        assert (soft_rank(x, method=method) - hard).abs().mean() <= 0.05 * n, method
    for method in SORTS:
        y = soft_sort(x, method=method)
        assert ((y[:, -1] - y[:, 0]) / (x.amax(-1) - x.amin(-1))).mean() >= 0.87, method
    y = soft_sort(x)
    assert ((y[:, -1] - y[:, 0]) / (x.amax(-1) - x.amin(-1))).mean() >= 0.9


def test_all_operators_are_equally_soft():
    x = torch.linspace(-3, 7, 20, dtype=f64)
    for operator in (SoftSort(), SoftSort(power=2), NeuralSort(), LapSum(), *(SortingNetwork(sigmoid=sigmoid) for sigmoid in ("logistic", "gaussian", "cauchy", "reciprocal", "optimal"))):
        y = operator(x) @ x
        assert abs((y[-1] - y[0]) / 10 - 0.97) < 0.01, operator
    for operator in (SigmoidRank(), GaussianRank(), LaplaceRank()):
        r = operator(x)
        assert abs((r[-1] - r[0]) / 19 - 0.974) < 0.01, operator


@pytest.mark.parametrize("method", [m if m != "sinkhorn" else SinkhornSort(tolerance=1e-12) for m in SORTS], ids=SORTS)
def test_gradients_are_those_of_the_whole(rng, method):
    x = torch.randn(2, 6, generator=rng, dtype=f64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: soft_sort(x, method=method), x)
    torch.autograd.gradcheck(lambda x: soft_rank(x, method=method), x)
    scale = torch.ones((), dtype=f64, requires_grad=True)
    g, = torch.autograd.grad((soft_rank(scale * x, method=method) * torch.randn(2, 6, generator=rng, dtype=f64)).sum(), scale)
    assert abs(g) < 1e-9                    # no loss of ranks runs away along the scale


def test_every_mode(rng):
    x = torch.randn(3, 7, generator=rng, dtype=f64, requires_grad=True)
    torch.autograd.gradgradcheck(soft_sort, x)
    assert_close(torch.func.jvp(soft_sort, (x.detach(),), (torch.ones_like(x),))[1], torch.ones_like(x))
    assert_close(torch.vmap(soft_sort)(x), soft_sort(x))
    assert_close(torch.func.grad(lambda x: soft_sort(x).square().sum())(x.detach()), torch.autograd.grad(soft_sort(x).square().sum(), x)[0])


def test_sets_without_a_spread(rng):
    for x in (torch.full((2, 5), 3.0), torch.full((2, 1), 3.0), torch.zeros(2, 5, dtype=torch.bfloat16)):
        for method in RANKS:
            s = x.clone().requires_grad_()
            r = soft_rank(s, method=method)
            r.square().sum().backward()
            if method not in ("bitonic", "odd_even"): assert_close(r.float(), torch.full(x.shape, (x.shape[-1] + 1) / 2), rtol=0, atol=1e-2, msg=method)    # networks of ties are not even
            assert s.grad.isfinite().all()
    for method in RANKS:                    # the temperature of such a set is one, so that a first step is of the size of those with tau=1
        if method in ("sinkhorn", "permutahedron", "odd_even"): continue      # their units depend on n
        s, w = torch.full((5,), 3.0, dtype=f64, requires_grad=True), torch.arange(5.0, dtype=f64)
        g, h = (torch.autograd.grad((soft_rank(s, tau=tau, method=method) * w).sum(), s)[0] for tau in (None, 1.0))
        assert_close(g, h, msg=method)


def test_the_spread_is_that_of_the_real_elements(rng):
    x, mask = torch.randn(4, 9, generator=rng), torch.arange(9) < torch.tensor([[9], [5], [2], [1]])
    wild = torch.where(mask, x, 1e4)
    offsets = torch.tensor([0, 9, 14, 16, 17])
    flat = x[mask]
    for method in ("softsort", "neuralsort", "lapsum", "bitonic", "permutahedron"):
        y, r = soft_sort(wild, mask=mask, method=method), soft_rank(wild, mask=mask, method=method)
        for b, n in enumerate(offsets.diff().tolist()):
            assert_close(y[b, :n], soft_sort(x[b, :n], method=method), rtol=0, atol=1e-5)
            assert_close(r[b, :n], soft_rank(x[b, :n], method=method), rtol=0, atol=1e-4)
        assert_close(soft_sort(flat, offsets=offsets, method=method), y[mask], rtol=0, atol=1e-5)
        assert_close(soft_rank(flat, offsets=offsets, method=method), r[mask], rtol=0, atol=1e-4)


def test_a_given_tau_stays_and_none_is_shown():
    x = torch.tensor([1.0, 3.0, 2.0])
    assert repr(SoftSort()).startswith("SoftSort(tau=None") and SoftSort().tau is None and SoftSort(0.5).tau == 0.5
    width = float(spread_of(x))
    assert_close(soft_sort(x), soft_sort(x, tau=SoftSort.softness * width), rtol=1e-6, atol=1e-6)


def test_scores_in_units_of_their_spread(rng):
    x = torch.randn(3, 9, generator=rng, dtype=f64, requires_grad=True)
    for mask in (torch.ones(3, 9, dtype=torch.bool), torch.rand(3, 9, generator=rng) < 0.7):
        for places in (torch.arange(9), torch.arange(9) // 2, torch.tensor([0, 0, 0, 0, 0, 0, 1, 2, 3])):       # ties; quartiles that tie
            w = torch.randn(3, 9, generator=rng, dtype=f64) * mask
            w = torch.where(mask, w - w.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True), 0)                   # differences alone
            v = torch.randn(3, 9, generator=rng, dtype=f64)

            def plainly(x):
                s = x[:, places]
                return (w * (s - s[:, :1]) / spread_of(s, mask)).sum().exp()

            def ours(x):
                return (w * in_units(x[:, places], mask, 0.1)).sum().exp()

            g, h = (torch.autograd.grad(f(x), x, create_graph=True)[0] for f in (plainly, ours))
            assert_close(g, h)
            assert_close(*(torch.autograd.grad((k * v).sum(), x, retain_graph=True)[0] for k in (g, h)))
            assert_close(*(torch.func.jvp(f, (x.detach(),), (v,)) for f in (plainly, ours)))


@pytest.mark.parametrize("method", ["softsort", "neuralsort", "lapsum", "bitonic", "permutahedron"])
def test_padding_with_the_smallest_number_does_no_harm(rng, method):
    "As attention masks do it, with no mask given: the others fall in order behind it."
    x = torch.rand(7, generator=rng)
    s = torch.cat([x, torch.full((2,), torch.finfo(torch.float32).min)]).requires_grad_()
    r = soft_rank(s, method=method)
    g, = torch.autograd.grad(r.square().sum(), s)
    assert r.isfinite().all() and g.isfinite().all() and (r[-2:] < 2.5).all() and (r[:-2] > 2.5).all()


def test_an_outlier_takes_no_digits():
    "The quartiles are 0 and 0.6, however far the lowest score is, and in whatever place."
    for far in (-1e16, -1e18, 1e18):
        for i in range(5):
            s = torch.tensor([0.0, 0.5, 0.6, 2.0] if far < 0 else [-1.0, 0.0, 0.5, 0.6], dtype=torch.float64)
            s = torch.cat([s[:i], torch.tensor([far], dtype=torch.float64), s[i:]])
            assert_close(spread_of(s), torch.tensor([0.6], dtype=torch.float64))


@pytest.mark.parametrize("how", [dict(power=1.5), dict(power=3), dict(squash="linear", tau=0.01), dict(squash="sigmoid"), dict(milestones=3)])
def test_gradients_of_every_way_to_place_the_scores_of_a_plan(rng, how):
    x = torch.randn(2, 5, generator=rng, dtype=f64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: SinkhornSort(tolerance=1e-12, **how)(x).to_dense(), x, atol=1e-4)


def test_a_line_of_places_is_for_squared_costs():
    with pytest.raises(ValueError, match="squash='linear' is for power=2, got power=1.5"): SinkhornSort(power=1.5, squash="linear")
