"""The pairs of many short sets are made for some sets at a time, and their gradients with them: nothing else may change."""
import pytest
import torch
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from softsortlib import losses
from softsortlib.losses import weighted


@pytest.fixture
def data(monkeypatch, rng):
    monkeypatch.setattr(weighted, "_ROOM", 300)      # three sets of ten at a time
    s = torch.randn(8, 10, generator=rng, dtype=torch.float64, requires_grad=True)
    return s, torch.randint(0, 4, (8, 10), generator=rng), torch.rand(8, 10, generator=rng) < 0.8, torch.rand(8, generator=rng, dtype=torch.float64).add(0.5).requires_grad_()


CALLS = {f"{f.__name__}, {kind}": lambda s, y, mask, tau, f=f, kind=kind, **more: f(s, y, mask, kind=kind, tau=tau, reduction="none", **more)
         for f in (losses.kendall_loss, losses.weighted_kendall_loss) for kind in ("logistic", "sigmoid")}


def one_by_one(f, s, y, mask, tau, **more):
    return torch.stack([f(*row[:-1], tau=row[-1], **{k: v[i] for k, v in more.items()}) for i, row in enumerate(zip(s, y, mask, tau))])


@pytest.mark.parametrize("name", CALLS)
def test_sets_are_what_they_are_alone(name, data):
    f, (s, y, mask, tau) = CALLS[name], data
    w = torch.rand(8, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    c = torch.linspace(1, 2, 8, dtype=torch.float64)
    def slopes(of, graph): return torch.autograd.grad((c * of(s, y, mask, tau, weights=w)).sum(), (s, tau, w), create_graph=graph)
    many, few = (lambda graph, of=of: slopes(of, graph) for of in (f, lambda *a, **more: one_by_one(f, *a, **more)))
    for a, b in zip(many(False), few(False)): assert_close(a, b)
    second = [torch.autograd.grad(sum(v.sin().sum() for v in of(True)), (s, tau, w)) for of in (many, few)]
    for a, b in zip(*second): assert_close(a, b)
    value = f(s, y, mask, tau)
    slope, = torch.autograd.grad(value.sum(), s)
    assert_close(torch.autograd.grad(checkpoint(f, s, y, mask, tau, use_reentrant=False).sum(), s)[0], slope)
    assert_close(torch.func.grad(lambda s: f(s, y, mask, tau.detach()).sum())(s.detach()), slope)
    with torch.no_grad(): assert_close(f(s, y, mask, tau), value)
    v = torch.ones_like(s).cumsum(-1)
    assert_close(torch.func.jvp(lambda s: f(s, y, mask, tau.detach()), (s.detach(),), (v,))[1].sum(), (slope * v).sum())


def test_the_slopes_of_lambda_loss_come_with_its_value(rng):
    s, y = torch.randn(2, 600, generator=rng, dtype=torch.float64, requires_grad=True), torch.randint(0, 4, (2, 600), generator=rng)
    with torch.no_grad(): unseen = losses.lambda_loss(s, y)
    whole = losses.lambda_loss(s, y)
    assert torch.equal(whole, unseen)
    few = torch.stack([losses.lambda_loss(a, b) for a, b in zip(s, y)]).mean()
    assert_close(whole, few)
    assert_close(*(torch.autograd.grad(v, s)[0] for v in (losses.lambda_loss(s, y), few)))
