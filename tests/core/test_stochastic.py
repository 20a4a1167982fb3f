"""Plackett-Luce around any operator: exact law, log-density, reproducible noise, masks, shapes, errors."""
import itertools
import math

import pytest
import torch
from scipy.stats import chisquare
from torch.testing import assert_close

from softsortlib.core.permutation import is_row_stochastic
from softsortlib.rowwise.neuralsort import NeuralSort
from softsortlib.rowwise.softsort import SoftSort
from softsortlib.core.stochastic import SampleMean, Stochastic, gumbel_noise, plackett_luce_log_prob

ORDERS = torch.tensor(list(itertools.permutations(range(4))))
OPERATORS = [SoftSort, NeuralSort]


def seeded(seed=0): return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("operator", OPERATORS)
def test_hard_samples_follow_plackett_luce(operator, descending, dtype):
    "24 exact probabilities, 20,000 draws, a fixed seed; the wrong scores are seen to be wrong."
    s, N = torch.tensor([0.5, -0.3, 1.2, 0.0], dtype=dtype), 20_000
    drawn = Stochastic(operator(1.0, descending=descending), N, seeded(11))(s).hard()
    if not descending: drawn = drawn.flip(-1)
    counts = (drawn[:, None, :] == ORDERS).all(-1).sum(0)
    p = plackett_luce_log_prob(s.double(), ORDERS).exp()
    assert chisquare(counts.numpy(), (p * N / p.sum()).numpy()).pvalue > 1e-3
    other = plackett_luce_log_prob(s.double() * 1.15, ORDERS).exp()
    assert chisquare(counts.numpy(), (other * N / other.sum()).numpy()).pvalue < 1e-3


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e3])
def test_log_prob_is_the_product_of_choices(scale, rng):
    s = torch.randn(3, 6, generator=rng, dtype=torch.float64) * scale
    perm = torch.stack([torch.randperm(6, generator=rng) for _ in range(3)])
    want = sum(s.gather(-1, perm)[:, i:].log_softmax(-1)[:, 0] for i in range(6))
    assert_close(plackett_luce_log_prob(s, perm), want)
    assert_close(plackett_luce_log_prob(s[:, None], perm[:, None].expand(3, 2, 6)), want[:, None].expand(3, 2))


def test_log_prob_has_its_gradient_also_when_padded(rng):
    s, perm = torch.randn(2, 5, generator=rng, dtype=torch.float64, requires_grad=True), torch.tensor([[2, 0, 4, 1, 3], [4, 3, 0, 1, 2]])
    assert torch.autograd.gradcheck(lambda s: plackett_luce_log_prob(s, perm), s)
    mask = torch.tensor([[True, False, True, False, True], [False] * 5])
    assert torch.autograd.gradcheck(lambda s: plackett_luce_log_prob(s, perm, mask), s)
    assert plackett_luce_log_prob(s, perm, mask)[1] == 0
    assert plackett_luce_log_prob(s.half(), perm).dtype == torch.float16


def test_gumbel_noise_has_the_right_moments_and_is_finite():
    z = gumbel_noise((400_000,), seeded(), torch.float64)
    assert z.isfinite().all()
    assert abs(z.mean() - 0.5772156649) < 4 * (math.pi / 6**0.5) / 400_000**0.5 and abs(z.var() - math.pi**2 / 6) < 0.03
    for dtype in (torch.float16, torch.bfloat16, torch.float32): assert gumbel_noise((50_000,), seeded(), dtype).isfinite().all()


@pytest.mark.parametrize("operator", OPERATORS)
def test_noise_is_reproducible_and_fresh(operator, rng):
    s = torch.randn(2, 7, generator=rng)
    first, again = (Stochastic(operator(0.4), 3, seeded(5)) for _ in range(2))
    a, b, c = first(s).to_dense(), again(s).to_dense(), first(s).to_dense()
    assert torch.equal(a, b) and not torch.equal(a, c)
    state = torch.get_rng_state()
    first(s)
    assert torch.equal(state, torch.get_rng_state())      # a generator of its own leaves torch's alone
    assert not torch.equal(a[0], a[1])


@pytest.mark.parametrize("operator", OPERATORS)
def test_gradients_reparameterise(operator, rng):
    s = torch.randn(2, 5, generator=rng, dtype=torch.float64, requires_grad=True)
    x, target = torch.randn(2, 5, 3, generator=rng, dtype=torch.float64), torch.tensor([[0, 2, 1, 4, 3], [4, 1, 2, 3, 0]])

    def f(s):
        P = Stochastic(operator(0.8), 4, seeded(3))(s)
        return P @ x, P.log_prob(target), SampleMean(P).log_prob(target)

    assert torch.autograd.gradcheck(f, s)
    noisy = s.detach() + gumbel_noise((4, 2, 5), seeded(3), torch.float64)
    assert_close(f(s)[0], operator(0.8)(noisy) @ x)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_shapes_dtypes_masks(operator, dtype, rng):
    s, mask = torch.randn(2, 3, 6, generator=rng).to(dtype), torch.rand(2, 3, 6, generator=rng) < 0.6
    mask[0, 0] = False
    P = Stochastic(operator(0.5), 4, seeded())(s, mask)
    assert P.shape == (4, 2, 3, 6, 6) and P.dtype == dtype
    x = torch.randn(3, 6, 2, generator=rng).to(dtype)     # broadcasts into samples and batch
    assert (P @ x).shape == (4, 2, 3, 6, 2) and P.log_prob(P.hard()[0]).shape == (4, 2, 3, 6)
    D, size = P.to_dense(), mask.sum(-1)
    for a, b in itertools.product(range(2), range(3)):
        assert not D[:, a, b, size[a, b]:].any() and not D[:, a, b][..., ~mask[a, b]].any()
        assert P.hard()[:, a, b].sort(-1).values.eq(torch.arange(6)).all()
    mean = SampleMean(P)
    assert mean.shape == (2, 3, 6, 6) and (mean.row_mask == P.row_mask[0]).all()
    assert_close(mean.to_dense().float(), D.float().mean(0), rtol=1e-2, atol=5e-3)
    s, mask = s.detach().float().masked_fill(~mask, math.nan).requires_grad_(), mask
    out = Stochastic(operator(0.5), 4, seeded())(s, mask)
    [g] = torch.autograd.grad((out @ x.float()).square().sum() + SampleMean(out).log_prob(SampleMean(out).hard()).sum(), s)
    assert g.isfinite().all() and not g[~mask].any() and g[mask].any()


def test_sample_mean_is_the_mean(rng):
    s = torch.randn(2, 5, generator=rng, dtype=torch.float64)
    P = Stochastic(NeuralSort(0.7), 6, seeded())(s)
    mean, D = SampleMean(P), P.to_dense().mean(0)
    x, wide = torch.randn(2, 5, 3, generator=rng, dtype=torch.float64), torch.randn(7, 2, 5, 3, generator=rng, dtype=torch.float64)
    assert is_row_stochastic(mean).all()
    for got, want in [(mean @ x, D @ x), (mean.mT @ x, D.mT @ x), (mean @ wide, D @ wide), (mean.mT @ wide, D.mT @ wide), (mean[..., 1:4, :] @ wide, D[..., 1:4, :] @ wide),
                      (mean[..., 2, :], D[..., 2, :])]: assert_close(got, want)
    target = torch.stack([torch.stack([torch.randperm(5, generator=rng) for _ in range(2)]) for _ in range(3)])
    assert_close(mean.log_prob(target), D.log().expand(3, 2, 5, 5).gather(-1, target[..., None])[..., 0])


def test_learnable_temperature_belongs_to_the_operator():
    op = Stochastic("softsort", 2, seeded(), tau=torch.nn.Parameter(torch.tensor(0.5)), descending=True)
    assert [p is op.tau for p in op.parameters()] == [True] and op.descending and "samples=2" in repr(op) and "SoftSort(tau=0.5" in repr(op)
    [g] = torch.autograd.grad((op(torch.tensor([1.0, 0.5, 2.0])) @ torch.arange(3.0)).square().sum(), op.tau)
    assert g.isfinite() and g != 0


@pytest.mark.parametrize("make, error, says", [
    (lambda: Stochastic("softsort", 0), ValueError, "samples must be a positive integer, got 0"),
    (lambda: Stochastic("softsort", 2.0), ValueError, "samples"),
    (lambda: Stochastic("softsrot"), ValueError, "did you mean 'softsort'"),
    (lambda: Stochastic("softsort", generator=0), TypeError, "generator must be a torch.Generator"),
    (lambda: Stochastic("softsort")(torch.tensor([1, 2])), TypeError, "int64"),
    (lambda: Stochastic("softsort")(torch.ones(2, 3), torch.ones(4, 3).bool()), ValueError, "mask"),
    (lambda: plackett_luce_log_prob(torch.ones(3), [0, 1, 2]), TypeError, "perm must be a tensor"),
    (lambda: plackett_luce_log_prob(torch.ones(3), torch.arange(4)), ValueError, r"perm must be \(..., 3\)"),
    (lambda: SampleMean(SoftSort()(torch.ones(3))), ValueError, "leading dimension"),
])
def test_errors_name_the_argument(make, error, says):
    with pytest.raises(error, match=says): make()


@pytest.mark.parametrize("spread", [1.0, 1e4, 1e6, 1e7])
def test_the_gradient_of_a_likelihood_in_single_precision_where_scores_are_far_apart(spread, rng):
    "Against the softmax of what is left at each choice, in double precision; also with padding."
    s = (spread * torch.randn(3, 60, generator=rng)).requires_grad_()
    perm = torch.stack([torch.randperm(60, generator=rng) for _ in range(3)])
    x = s.detach().double().gather(-1, perm)
    left = torch.stack([torch.nn.functional.pad(x[:, i:].softmax(-1), (i, 0)) for i in range(60)])
    want = torch.empty_like(x).scatter(-1, perm, 1 - left.sum(0))
    mask = torch.ones(3, 62, dtype=torch.bool).index_fill(1, torch.tensor([60, 61]), False)
    padded, longer = torch.nn.functional.pad(s, (0, 2), value=math.nan), torch.cat([perm, torch.tensor([60, 61]).expand(3, 2)], 1)
    for value in (plackett_luce_log_prob(s, perm), plackett_luce_log_prob(padded, longer, mask)):
        got, = torch.autograd.grad(value.sum(), s)
        assert got.dtype == torch.float32 and value.dtype == torch.float32
        assert_close(got.double(), want, rtol=2e-6, atol=2e-6)
