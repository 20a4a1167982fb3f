"""The thresholds of short rows (chapter K9) against the general search and LapSum's own, over temperatures, spacings and ties."""
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from softsortlib.ranks import lapsum_topk
from softsortlib.selection import TopKRouter
from softsortlib.selection.roots import Law, step_weights
from softsortlib.selection.short import fill_smooth

f64 = torch.float64


def slopes(s, k, tau, laplace):
    "What the kernel writes for one row."
    e, out = np.empty(len(s)), np.full(len(s), np.nan)
    fill_smooth(s.numpy(), s.topk(k + 1).indices.numpy(), tau, laplace, e, out)
    return torch.from_numpy(out)


def wanted(s, k, tau, laplace):
    "The same from the weights of the general path."
    if laplace:
        w = lapsum_topk(s, k, tau)
        return torch.minimum(w, 1 - w)
    w = step_weights(s[None], *torch.tensor([[tau], [float(k)]], dtype=f64).split(1), Law.LOGISTIC)[0]
    return w * (1 - w)


def rows(n, rng):
    "Rows of every spacing: normal, tied, two clusters, one far above, far from zero."
    s = torch.randn(n, generator=rng, dtype=f64)
    yield from (s, s.round(), torch.zeros(n, dtype=f64), torch.where(s > 0.5, 40.0, 0.0) + 1e-3 * s)
    far = s.clone()
    far[0] = 1e5
    yield from (far, 1e6 + s, 1e-9 * s)


@pytest.mark.parametrize("laplace", (False, True), ids=("logistic", "laplace"))
@pytest.mark.parametrize("n, k", [(2, 1), (3, 2), (8, 7), (64, 2), (64, 32), (300, 5)])
def test_slopes_at_every_temperature_and_spacing(n, k, laplace, rng):
    "(K9.1) to (K9.4)"
    for s in rows(n, rng):
        for tau in (1e-6, 1e-3, 0.05, 0.5, 3.0, 100.0, 1e6):
            got = slopes(s, k, tau, laplace)
            assert_close(got, wanted(s, k, tau, laplace), rtol=1e-7, atol=1e-9)
            assert (got >= 0).all()


@pytest.mark.parametrize("laplace", (False, True), ids=("logistic", "laplace"))
def test_small_slopes_keep_their_digits(laplace, rng):
    "Prop K9.1: with a gap of a hundred temperatures both sides weigh e^-50, to many digits; beyond two hundred the slopes are zero."
    s = torch.tensor([100.0, 103.0, 0.0, -1.0, -2.0], dtype=f64)
    got = slopes(s, 2, 1.0, laplace)
    upper, lower = torch.tensor([1 + np.exp(-3.0)]), torch.tensor([1 + np.exp(-1.0) + np.exp(-2.0)])
    d = 50 + (lower / upper).log().item() / 2
    share = 0.5 if laplace else 1.0
    assert_close(got, share * (-(s - d).abs()).exp(), rtol=1e-12, atol=0)
    assert slopes(3 * s, 2, 1.0, laplace).eq(0).all()


@pytest.mark.parametrize("name", ("lapsum", "sinkhorn"))
@pytest.mark.parametrize("tau", (1e-5, 0.05, 1.0, 50.0))
def test_a_router_agrees_with_the_general_path(name, tau, rng):
    "The kernel's gradient, the composed one that second derivatives need, and for LapSum that of (K5.2), operation after operation."
    x = torch.randn(300, 64, generator=rng, dtype=f64)
    x[:50] = x[:50].round()
    x[50:60, ::2] = -torch.inf
    leaf, g = x.requires_grad_(), torch.randn(300, 4, generator=rng, dtype=f64)
    one = TopKRouter(4, name, tau)(leaf)
    got = torch.autograd.grad(one.weights, leaf, g, retain_graph=True)[0]
    composed = torch.autograd.grad(one.weights, leaf, g, create_graph=True)[0].detach()
    assert_close(got, composed, rtol=1e-8, atol=1e-11)
    if name == "lapsum":
        many = TopKRouter(4, name, tau)(leaf, torch.ones(300, 64, dtype=torch.bool))          # a mask takes the long way
        assert torch.equal(one.indices[60:], many.indices[60:])                                 # ties may be broken in either way
        assert_close(got[60:], torch.autograd.grad(many.weights, leaf, g)[0][60:], rtol=1e-8, atol=1e-11)
