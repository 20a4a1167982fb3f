"Newton losses: exact for a quadratic, a descent direction for anything, free of the scale of the loss."
import pytest
import torch
from torch.testing import assert_close

from softsortlib import NeuralSort, SigmoidRank, SoftSort
from softsortlib.lab.newton import fisher_curvature, hessian_curvature, newton_loss, newton_step


@pytest.mark.parametrize("n", [1, 3, 7])
def test_a_quadratic_is_solved_in_one_step(n, rng):
    "Whatever its axes and its scale (Prop B12.1)."
    for scale in (1e-6, 1.0, 1e6):
        B, M = 5, torch.randn(n, n, generator=rng, dtype=torch.float64)
        A, best, y = scale * (M @ M.T + torch.eye(n).double()), torch.randn(n, generator=rng).double(), torch.randn(B, n, generator=rng).double().requires_grad_()
        def loss(y): return (((y - best) @ A) * (y - best)).sum(-1) / 2
        [g] = torch.autograd.grad(newton_loss(loss, y, "hessian", 0.0), y)
        assert_close((y - B * g).detach(), best.expand(B, n), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("curvature", ["fisher", "hessian"])
def test_it_descends_and_does_not_see_the_scale(curvature, rng):
    "Prop B12.2; and a loss times a constant has a step over that constant (Fisher) or the same step (Hessian)."
    target = torch.tensor([2, 0, 3, 1])
    losses = (lambda y: -SoftSort(0.3)(y).log_prob(target.expand(len(y), -1)).mean(-1), lambda y: -NeuralSort(2.0)(y).log_prob(target.expand(len(y), -1)).mean(-1),
              lambda y: (SigmoidRank(0.3)(y) - target.double()).square().sum(-1))
    for loss in losses:
        y = (3 * torch.randn(6, 4, generator=rng, dtype=torch.float64)).requires_grad_()
        [plain] = torch.autograd.grad(loss(y).sum(), y)
        [step] = torch.autograd.grad(newton_loss(loss, y, curvature, 0.1), y)
        [scaled] = torch.autograd.grad(newton_loss(lambda y: 1000 * loss(y), y, curvature, 0.1), y)
        assert ((plain * step).sum(-1) > 0).all()
        assert_close(scaled, step / 1000 if curvature == "fisher" else step, rtol=1e-6, atol=1e-12)


def test_curvatures_against_their_definitions(rng):
    g = torch.randn(7, 3, generator=rng, dtype=torch.float64)
    assert_close(fisher_curvature(g), torch.stack([torch.outer(a, a) for a in g]).mean(0))
    y = torch.randn(5, 4, generator=rng, dtype=torch.float64)
    def loss(y): return (SoftSort(0.5)(y) @ y[..., None])[..., 0].cos().sum(-1)
    exact = torch.stack([torch.autograd.functional.hessian(lambda z: loss(z[None])[0], z) for z in y]).mean(0)
    assert_close(hessian_curvature(loss, y), exact, rtol=1e-8, atol=1e-9)


def test_a_direction_that_bends_down_gets_a_gradient_step(rng):
    g = torch.tensor([[1.0, 1.0]])
    assert_close(newton_step(g, torch.diag(torch.tensor([3.0, -1.0])), 0.5), torch.tensor([[1 / 4, 1.0]]))
    assert newton_step(g, torch.zeros(2, 2), 1.0).isfinite().all()
    with pytest.raises(ValueError, match="damping"): newton_step(g, torch.eye(2), -0.1)
    with pytest.raises(ValueError, match="curvature"): newton_loss(lambda y: y.sum(-1), g, "full")
