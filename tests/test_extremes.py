"""What exploration found at the ends of the number range, each by the case that showed it."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from softsortlib import LapSum, NeuralSort, Permutahedron, SoftPermutation, SoftSort, SortingNetwork, Stochastic, functional, losses
from softsortlib.core.stochastic import SampleMean
from softsortlib.networks.swaps import SIGMOIDS
from softsortlib.ranks.sigmoid import pair_sum

HALF = (torch.float16, torch.bfloat16)


def gradient(y, *leaves):
    w = torch.arange(y.numel(), dtype=torch.float64).cos().reshape(y.shape).to(y)
    return torch.autograd.grad((w * y).sum(), leaves)


@pytest.mark.parametrize("backend", [None, "torch"])
@pytest.mark.parametrize("sigmoid", [*SIGMOIDS, "cauchy_phi"])
@pytest.mark.parametrize("dtype, far, tau", [(torch.float64, 1e306, 1e-4), (torch.float32, 1e38, 1e-4), (torch.float64, 1e306, torch.tensor(1e-4, dtype=torch.float64))])
def test_a_network_whose_gaps_over_tau_are_beyond_the_largest_number(sigmoid, dtype, far, tau, backend):
    "The slope f'(v) v of Equation N7.3 was zero times infinity."
    s = torch.tensor([-far, 0.0, 1.0], dtype=dtype, requires_grad=True)
    tau = tau.clone().requires_grad_() if isinstance(tau, torch.Tensor) else tau
    for kind in ("bitonic", "odd_even"):
        P = SortingNetwork(kind, sigmoid, tau=tau, backend=backend)(s)
        leaves = (s, tau) if isinstance(tau, torch.Tensor) else (s,)
        for g in gradient(P @ torch.arange(3.0, dtype=dtype), *leaves): assert g.isfinite().all()
        if sigmoid == "cauchy_phi": continue        # the error of |d|^(1 - lambda) grows with the outlier
        assert_close(P @ s.detach(), torch.tensor([-far, 0.0, 1.0], dtype=dtype), rtol=1e-6, atol=3.0)


def test_a_saturated_network_is_that_of_a_smaller_outlier():
    "The bound of the argument changes no digit where two ways can be compared."
    s, far = torch.tensor([0.3, -1e200, 1.0, 0.7], dtype=torch.float64), torch.tensor([0.3, -1e140, 1.0, 0.7], dtype=torch.float64)
    assert_close(SortingNetwork(tau=0.1)(s).to_dense(), SortingNetwork(tau=0.1)(far).to_dense(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [lambda tau: SoftSort(tau), lambda tau: SoftSort(tau, power=2), lambda tau: SoftSort(tau, power=0.5), NeuralSort,
                                  lambda tau: Stochastic(SoftSort(tau), 2, torch.Generator().manual_seed(0))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_masked_rows_beside_distances_beyond_the_largest_number(make, dtype):
    "A padded row is at zero: infinitely far from every real score, and a softmax of nothing but -inf is no number, nor is its gradient."
    far = torch.finfo(dtype).max ** 0.75
    s = torch.tensor([[far, -far, 0.5], [2.8e29, -2.8e29, 1.0]], dtype=dtype, requires_grad=True)
    x = torch.ones(2, 3, dtype=dtype, requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, True, False]])
    for tau in (1.5e-11, 1e-5):
        y = make(tau)(s, mask) @ x
        for g in gradient(y, s, x): assert not g.isnan().any()
        assert_close(y.double(), mask.double().expand(y.shape))


def test_the_map_of_one_score_has_gradient_zero_also_beside_an_overflow():
    s = torch.tensor([[-1.7e308]], dtype=torch.float64, requires_grad=True)
    P = SoftSort()(s)
    (g,) = torch.autograd.grad((P @ s.detach()).sum() + 10 * (P @ s.detach()).sum(), s)
    assert torch.equal(g, torch.zeros_like(g))


@pytest.mark.parametrize("dtype", HALF)
def test_pair_sum_of_half_types_is_computed_in_single_precision(dtype):
    "A tau of 1e-12 was rounded to zero in float16."
    s = torch.tensor([[0.5, 2.0, -1.0]], dtype=dtype, requires_grad=True)
    for plain in (None, True, False):
        y = pair_sum(s, 1e-12, torch.ones_like(s), plain=plain)
        assert y.dtype == dtype and y.tolist() == [[0.0, 1.0, -1.0]]
        assert gradient(y, s)[0].isfinite().all()
    many = torch.randn(2, 700, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert_close(pair_sum(many, 0.1, torch.ones_like(many)), pair_sum(many.float(), 0.1, torch.ones_like(many).float()).to(dtype))


def test_losses_of_half_types_are_rounded_once():
    "The logarithms that a loss adds up end at 65504 in float16, and entries that are no zeros are zeros there."
    s = torch.tensor([0.0, 40.0, 10.0], dtype=torch.float16, requires_grad=True)
    order = torch.tensor([1, 0, 2])
    for loss in (losses.permutation_nll, losses.permutation_bce):
        for tau in (1e-3, 1.0):
            exact = loss(SoftSort(tau)(s.float()), order)
            y = loss(SoftSort(tau)(s), order)
            assert_close(y, exact.half())
            assert gradient(y, s)[0].isfinite().all()
    assert losses.permutation_nll(SoftSort(1e-3)(s), order).isfinite()


def test_topk_loss_where_another_class_is_impossible():
    s = torch.tensor([[0.0, -1e306, 1e306]], dtype=torch.float64, requires_grad=True)
    for k in (1, 2):
        y = losses.topk_loss(s, torch.tensor([[False, False, True]]), k=k, tau=1e-5)
        assert_close(y.item(), 0.0)
        assert gradient(y, s)[0].isfinite().all()


@pytest.mark.parametrize("dtype", HALF)
def test_a_quantile_is_rounded_once(dtype):
    "The two rows were rounded before they were averaged: 33024 and -33024 are no numbers of bfloat16."
    x = torch.tensor([300.0, -301.0, 2.0, 1.0], dtype=dtype)
    for q in (0.5, torch.tensor([0.1, 0.3, 0.77])):
        for options in ({}, dict(interpolation="midpoint"), dict(mask=torch.tensor([True, True, False, True]))):
            assert torch.equal(functional.soft_quantile(x, q, tau=200.0, **options), functional.soft_quantile(x.float(), q, tau=200.0, **options).to(dtype))


@pytest.mark.parametrize("far", [1e31, -1e31, 3e38, -3e38])
def test_permutahedron_beside_an_outlier(far):
    for scores in ([far, 0.0, 0.5, 2.0], [0.3e8, far, 1e8, 3e8]):
        s = torch.tensor(scores, requires_grad=True)
        for regularization in ("l2", "kl"):
            def of(s):
                s = s.detach().requires_grad_()
                r = Permutahedron(1.6e8, regularization)(s)
                return r.double(), gradient(r, s)[0].double()
            assert_close(of(s), of(s.double()), rtol=1e-5, atol=1e-13)


def test_the_hard_permutation_of_a_mean_is_a_permutation():
    "The largest entries of its rows are none, for 400 of 1000 sets."
    s = torch.randn(1000, 6, generator=torch.Generator().manual_seed(0))
    for descending in (False, True):
        samples = Stochastic(SoftSort(0.5, descending=descending), 3, torch.Generator().manual_seed(1))(s)
        mean = SampleMean(samples)
        hard = mean.hard()
        assert torch.equal(hard.sort(-1).values, torch.arange(6).expand(1000, 6))
        assert (mean.to_dense().argmax(-1).sort(-1).values != torch.arange(6)).any(-1).sum() > 300
        near = SampleMean(Stochastic(SoftSort(1e-3, descending=descending), 5, torch.Generator().manual_seed(1))(100 * s)).hard()
        assert_close((near == (100 * s).argsort(descending=descending)).float().mean().item(), 1.0, atol=0.1, rtol=0)


def test_the_hard_permutation_of_a_masked_mean():
    s, mask = torch.tensor([3.0, 9.0, 1.0, 2.0]), torch.tensor([True, False, True, True])
    mean = SampleMean(Stochastic(SoftSort(0.1), 4, torch.Generator().manual_seed(0))(1e3 * s, mask))
    assert mean.hard().tolist() == [2, 3, 0, 1]
    assert mean[..., 1:3, :].hard().tolist() == [3, 0]
    assert mean.straight_through().to_dense().argmax(-1)[:3].tolist() == [2, 3, 0]


def test_two_opposite_samples_are_rounded_to_a_permutation():
    one_each = torch.eye(3)[torch.tensor([[0, 1, 2], [0, 2, 1]])].log().clamp(min=-99)
    assert sorted(SampleMean(SoftPermutation.from_logits(one_each)).hard().tolist()) == [0, 1, 2]


def uneven(kind, rng):
    "Scores of which a few are far larger than the others, or that lie in distant clusters, in single precision."
    s = torch.randn(700, generator=rng, dtype=torch.float64)
    if kind == "outliers": s[:2] = torch.tensor([-1e7, 1e9])
    if kind == "clusters": s = 1e-3 * s + 1e3 * torch.randint(5, s.shape, generator=rng)
    if kind == "heavy": s = s / torch.randn(s.shape, generator=rng, dtype=torch.float64)
    if kind == "offset": s = s + 1e4
    return s.float()


@pytest.mark.parametrize("kind", ["outliers", "clusters", "heavy", "offset"])
@pytest.mark.parametrize("tau", [1e-3, 10.0])
@pytest.mark.parametrize("make", [SoftSort, *(partial(SoftSort, power=p) for p in (0.7, 1.5, 2, 4)), NeuralSort, LapSum])
def test_no_row_pays_for_what_it_does_not_average(make, tau, kind):
    """The error of a row is a share of (P |x|)_i, not of the largest payload (Prop W3.1), and so is that of a gradient.

    One score of a million among three thousand cost SoftSort with the square a tenth in every value."""
    rng = torch.Generator().manual_seed(0)
    s = uneven(kind, rng).requires_grad_()
    exact = s.detach().double().requires_grad_()
    P = make(tau)(exact).to_dense()
    for x in (s.detach(), torch.randn(700, generator=rng)):
        y, right = make(tau)(s) @ x, P @ x.double()
        scale = (P @ x.double().abs()).detach() + 1e-6 * x.abs().median()
        assert ((y - right).abs() <= 3e-6 * scale + 1e-16 * x.abs().double().sum()).all()     # LapSum adds up all of the payload, in double precision
        w = torch.randn(700, generator=rng, dtype=torch.float64) / scale
        (ours,) = torch.autograd.grad((y * w).sum(), s)
        (theirs,) = torch.autograd.grad((right * w).sum(), exact, retain_graph=True)
        assert ((ours - theirs).abs() / (theirs.abs() + 1 / tau + 1e-3 * theirs.abs().max())).max() < 2e-5


@pytest.mark.parametrize("power", [2, 3])
def test_sums_of_a_payload_near_the_largest_number(power):
    s = torch.linspace(-3, 3, 3000, requires_grad=True)
    x = torch.full((3000, 2), 3e38)
    x[::2, 1] *= -1
    y = SoftSort(10.0, power=power)(s) @ x
    assert_close(y[:, 0], x[:, 0])
    assert y.isfinite().all() and y[:, 1].abs().max() < 1e36
    assert gradient(y[:, 1], s)[0].isfinite().all()


@pytest.mark.parametrize("far", [-0.999, 0.999])
def test_a_list_beside_the_largest_number(far):
    "The lists' kernel measured from the least score, so that an outlier cost the others their digits."
    s = torch.tensor([0.5, far * torch.finfo(torch.float64).max, 1.5, -0.25, 0.25], dtype=torch.float64, requires_grad=True)
    offsets = torch.tensor([0, 3, 5])
    y = functional.soft_sort(s, tau=0.1, offsets=offsets)
    alone = torch.cat([functional.soft_sort(s[a:b], tau=0.1) for a, b in ((0, 3), (3, 5))])
    assert_close(y, alone, rtol=1e-14, atol=1e-14)
    assert_close(gradient(y, s)[0], gradient(alone, s)[0], rtol=1e-12, atol=1e-12)
