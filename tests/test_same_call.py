"""One call compared with itself at another size, in another mode, at another scale: each test failed on the code of the day that it was written.

Values were right in all of these, and gradients wrong, so no test of values saw them.
"""
import math

import pytest
import torch
from torch.testing import assert_close

from softsortlib import GaussianRank, NeuralSort, SigmoidRank, SinkhornSort, SoftSort, soft_rank
from softsortlib.losses import SoftKNN, lambda_loss, spearman_loss
from softsortlib.selection import SparseTopK, TopKRouter
from softsortlib.transport import GumbelSinkhorn, soft_matching


def slope(f, *v): return torch.autograd.grad(f(*v), [a for a in v if a.requires_grad])


@pytest.mark.parametrize("n", (3, 255, 256, 257, 300, 700))
@pytest.mark.parametrize("sign", (1.0, -1.0))
def test_padding_does_not_turn_the_gradient_of_ranks(n, sign):
    def of(n):
        x = torch.cat([sign * torch.tensor([1.0, 2.0, 3.0]), torch.zeros(n - 3)])
        return slope(lambda x: soft_rank(x, tau=0.5, descending=sign < 0, mask=torch.arange(n) < 3)[0], x.requires_grad_())[0][:3]
    assert_close(of(n), of(3))


def test_a_batch_does_not_turn_the_gradient_of_a_loss(rng):
    s, y = torch.rand(40, 100, generator=rng), torch.rand(40, 100, generator=rng)
    mask = (torch.arange(100) < 60).expand(40, 100)
    one = [slope(lambda s: spearman_loss(s, y[b:b + 1], mask[b:b + 1], tau=0.1), s[b:b + 1].clone().requires_grad_())[0] for b in range(3)]
    for B in (26, 27, 40):
        g, = slope(lambda s: spearman_loss(s, y[:B], mask[:B], tau=0.1, reduction="sum"), s[:B].clone().requires_grad_())
        assert_close(g[:3], torch.cat(one), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("far", (3e3, 1e4))
def test_an_offset_of_all_points_changes_no_neighbour(far):
    x = torch.tensor([[1.0, 0.0], [0.0, 1.25], [3.0, 0.0], [0.0, 0.5]])
    knn, y = SoftKNN(1, tau=0.1), torch.tensor([0, 1, 0, 1])
    assert_close(knn(torch.zeros(1, 2) + far, x + far, y), knn(torch.zeros(1, 2), x, y), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", (5, 128, 129, 300))
@pytest.mark.parametrize("descending, huge", ((True, 1e17), (False, -1e30)))
def test_one_huge_score_does_not_tie_the_others(n, descending, huge, rng):
    s, w = torch.randn(n, generator=rng, dtype=torch.float64), torch.randn(n, generator=rng, dtype=torch.float64)
    def of(end):
        z = torch.cat([torch.tensor([end], dtype=torch.float64), s[1:]]).requires_grad_()
        return slope(lambda z: (NeuralSort(3.0 * n, descending=descending)(z) @ w)[1:].square().sum(), z)[0][1:]
    assert_close(of(huge), of(math.copysign(1e6, huge)), rtol=1e-9, atol=1e-12)


QUESTIONS = {
    "product": lambda P, w: (P @ w)[1:-1].square().sum(),
    "transposed": lambda P, w: (P.mT @ w)[1:].square().sum(),
    "likelihood": lambda P, w: P.log_prob(P.hard()).sum(),
}


@pytest.mark.parametrize("backend", ("numba", "torch"))
@pytest.mark.parametrize("again", (False, True))
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("n", (40, 300))
def test_one_huge_score_leaves_the_gradient_of_the_temperature(n, question, again, backend, rng):
    s, w = torch.randn(2, n, generator=rng, dtype=torch.float64)
    def of(end):
        z = torch.cat([torch.tensor([end], dtype=torch.float64), s[1:]])
        tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        value = QUESTIONS[question](SoftSort(tau, backend=backend)(z), w)
        return torch.autograd.grad(value, tau, create_graph=again)[0]
    for end in (1e17, -1e17):
        assert_close(of(end), of(math.copysign(1e6, end)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16))
def test_ties_that_fill_the_top_k_do_not_move(dtype):
    s, g = torch.tensor([3.0, 3.0, 2.0, 1.0, 1.0], dtype=dtype), torch.arange(1.0, 6.0).to(dtype)
    got, = slope(lambda s: (SparseTopK(2, 0.02)(s) * g).sum(), s.clone().requires_grad_())
    assert got.eq(0).all()
    weights = lambda s: TopKRouter(2, tau=0.02)(s).weights
    got, = slope(lambda s: (weights(s) * g[:weights(s).shape[-1]]).sum(), s.clone().requires_grad_())
    assert got.isfinite().all()


@pytest.mark.parametrize("Rank", (SigmoidRank, GaussianRank))
@pytest.mark.parametrize("n", (40, 700, 3000))
def test_the_gradient_of_the_temperature_far_from_zero(Rank, n, rng):
    mask = torch.arange(n) < n * 2 // 3
    s, w = torch.where(mask, torch.randn(n, generator=rng) + 1e4, 0), torch.randn(n, generator=rng)
    single, double = (slope(lambda tau: (Rank(tau)(s.to(dtype), mask) * w.to(dtype)).sum(), torch.tensor(0.5, dtype=dtype).requires_grad_())[0].double() for dtype in (torch.float32, torch.float64))
    assert abs(single - double) < 1e-4 * max(1.0, abs(double)) * math.sqrt(n / 40)


@pytest.mark.parametrize("n", (2, 5))
@pytest.mark.parametrize("kind", ("constant", "circulant"))
def test_a_balanced_matrix_has_the_gradient_of_its_fixed_point(n, kind):
    "Its loop stops at once, and a round that autograd does not see leaves half of the gradient."
    C = torch.zeros(n, n, dtype=torch.float64) if kind == "constant" else torch.stack([torch.arange(n).roll(i) for i in range(n)]).double()
    entry = lambda P: P.to_dense()[0, 0]
    long, = slope(lambda C: entry(soft_matching(C, 1.0, 200)), C.clone().requires_grad_())
    assert_close(slope(lambda C: entry(soft_matching(C, 1.0)), C.clone().requires_grad_())[0], long, rtol=0, atol=1e-8)
    assert_close(slope(lambda C: entry(GumbelSinkhorn(1.0, 0.0)(C)), C.clone().requires_grad_())[0], long, rtol=0, atol=1e-8)


@pytest.mark.parametrize("iterations", (1, 2, 3, 10))
def test_an_unrolled_sort_is_differentiated_from_its_start(iterations):
    x = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    f = lambda s, tau: (SinkhornSort(tau, gradient="unrolled", iterations=iterations)(s) @ x)[0]
    assert torch.autograd.gradcheck(f, (torch.tensor([0.1, -0.4, 0.9], dtype=torch.float64, requires_grad=True), torch.tensor(0.05, dtype=torch.float64, requires_grad=True)))


def test_one_score_has_a_rank_by_transport():
    s = torch.tensor([0.3], requires_grad=True)
    r = SinkhornSort()(s).ranks()
    assert r.tolist() == [1.0] and slope(lambda s: SinkhornSort()(s).ranks().sum(), s)[0].tolist() == [0.0]


@pytest.mark.parametrize("method", ("softsort", "sigmoid", "gaussian", "laplace", "permutahedron", "neuralsort", "lapsum"))
def test_scores_that_are_all_the_same_correlate_with_nothing(method):
    for dtype in (torch.float32, torch.float64):
        for n in (4, 300, 600, 700):
            s = torch.full((n,), 0.3, dtype=dtype, requires_grad=True)
            loss = spearman_loss(s, torch.arange(n).to(dtype), method=method)
            assert abs(loss.item() - 1) < 1e-6 and slope(lambda s: spearman_loss(s, torch.arange(n).to(dtype), method=method), s)[0].abs().max() < 100


def test_lambda_loss_far_from_zero_has_the_gradient_of_its_temperature(rng):
    s, y = torch.randn(4, 50, generator=rng) + 1e4, torch.randint(4, (4, 50), generator=rng).float()
    single, double = (slope(lambda tau: lambda_loss(s.to(dtype), y.to(dtype), tau=tau), torch.tensor(0.5, dtype=dtype).requires_grad_())[0].double() for dtype in (torch.float32, torch.float64))
    assert abs(single - double) < 1e-4 * abs(double)
