"""Soft matchings beyond the claims of their chapter."""
import builtins
import math

import pytest
import torch
from torch.testing import assert_close

from softsortlib.core.permutation import is_doubly_stochastic, is_permutation_matrix, is_row_stochastic
from softsortlib.core.stochastic import SampleMean
from softsortlib.transport.matching import GumbelSinkhorn, hard_matching, soft_matching
from softsortlib.transport.line import ConvergenceWarning


@pytest.fixture
def rng(): return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (2, 3, 6, 6)])
def test_doubly_stochastic_to_tolerance(shape, dtype, rng):
    X = torch.randn(shape, generator=rng).to(dtype).requires_grad_()
    P = soft_matching(X, 0.7)
    assert P.shape == shape and P.dtype == dtype and is_doubly_stochastic(P, 1e-5 if dtype.itemsize > 2 else 2e-2).all()
    (P @ X.detach()).square().sum().backward()
    assert X.grad.isfinite().all() and X.grad.dtype == dtype


@pytest.mark.parametrize("tau", [1e-4, 1e-2, 1.0, 1e4])
def test_never_nan_and_rows_exact(tau, rng):
    X = torch.randn(2, 5, 5, generator=rng).requires_grad_()
    P = soft_matching(X, tau, iterations=50)
    assert is_row_stochastic(P, 1e-5).all()
    (P @ torch.randn(2, 5, generator=rng)).sum().backward()
    assert X.grad.isfinite().all()


def test_rounds_converge_to_the_tolerance_form(rng):
    X = torch.randn(3, 5, 5, generator=rng, dtype=torch.float64)
    assert_close(soft_matching(X, 0.8, iterations=500).to_dense(), soft_matching(X, 0.8, tolerance=1e-12).to_dense(), rtol=1e-9, atol=1e-10)


def test_gradients(rng):
    X = torch.randn(3, 3, generator=rng, dtype=torch.float64).requires_grad_()
    tau = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    f = lambda X, tau: soft_matching(X, tau, iterations=3).to_dense()
    assert torch.autograd.gradcheck(f, (X, tau)) and torch.autograd.gradgradcheck(f, (X, tau))


def test_not_converging_warns(rng):
    with pytest.warns(ConvergenceWarning, match="soft_matching: .*raise max_iterations"): soft_matching(torch.randn(6, 6, generator=rng), 0.01, max_iterations=2)


def test_permuting_rows_and_columns(rng):
    X, p, q = torch.randn(6, 6, generator=rng, dtype=torch.float64), torch.randperm(6, generator=rng), torch.randperm(6, generator=rng)
    assert_close(soft_matching(X[p][:, q]).to_dense(), soft_matching(X).to_dense()[p][:, q], rtol=1e-5, atol=1e-7)
    assert torch.equal(q[hard_matching(X[p][:, q])], hard_matching(X)[p])


def test_temperature_for_each_element(rng):
    X = torch.randn(2, 4, 4, generator=rng, dtype=torch.float64)
    both = soft_matching(X, torch.tensor([0.5, 5.0])).to_dense()
    assert_close(both[1], soft_matching(X[1], 5.0).to_dense(), rtol=1e-5, atol=1e-7)


def test_samples_follow_the_generator_and_vary(rng):
    layer, X = GumbelSinkhorn(0.5), torch.zeros(3, 3)
    one, two = (layer(X, samples=500, generator=torch.Generator().manual_seed(7)).to_dense() for _ in range(2))
    assert torch.equal(one, two) and one.std(0).min() > 0.05
    assert_close(one.mean(0), torch.full((3, 3), 1 / 3), atol=0.05, rtol=0)
    assert torch.equal(GumbelSinkhorn(0.5, noise=0.0)(X).to_dense(), soft_matching(X, 0.5, iterations=20).to_dense())


def test_temperature_is_learnt(rng):
    layer = GumbelSinkhorn(torch.nn.Parameter(torch.tensor(0.5)), noise=0.0)
    layer(torch.randn(4, 4, generator=rng)).to_dense().square().sum().backward()
    assert layer.tau.grad != 0 and "tau=0.5" in repr(layer)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 60])
def test_the_matching_is_that_of_scipy(n, rng):
    scipy = pytest.importorskip("scipy.optimize")
    for X in (torch.randn(4, n, n, generator=rng), torch.randint(0, 3, (4, n, n), generator=rng).float(), torch.rand(4, n, n, generator=rng) * 1e30):
        columns = hard_matching(X)
        assert torch.equal(columns.sort(-1).values, torch.arange(n).expand(4, n))
        for x, found in zip(X.double(), columns):
            rows, best = scipy.linear_sum_assignment(x.numpy(), maximize=True)
            assert_close(x[rows, found].sum(), x[rows, best].sum(), rtol=1e-12, atol=0)


def test_the_matching_needs_no_scipy(monkeypatch):
    real = builtins.__import__
    def absent(name, *args, **kwargs):
        if name.startswith("scipy"): raise ImportError(name)
        return real(name, *args, **kwargs)
    monkeypatch.setattr(builtins, "__import__", absent)
    assert hard_matching(torch.tensor([[0.0, 1.0], [1.0, 3.0]])).tolist() == [0, 1]


@pytest.mark.parametrize("iterations", [None, 1, 20])
def test_hard_is_a_permutation_and_the_matching(iterations, rng):
    "The largest entries of the rows fall into one column for two thirds of these (Prop T3.2)."
    X = torch.randn(50, 8, 8, generator=rng)
    P = soft_matching(X, 2.0, iterations)
    assert torch.equal(P.hard(), hard_matching(X))
    assert is_permutation_matrix(P.straight_through().to_dense()).all()
    assert torch.equal(P[..., [3, 0], :].hard(), hard_matching(X)[..., [3, 0]])
    samples = GumbelSinkhorn(0.5)(X[0], samples=20, generator=rng)
    assert torch.equal(samples.hard().sort(-1).values, torch.arange(8).expand(20, 8))
    mean = SampleMean(samples)
    assert torch.equal(mean.hard(), hard_matching(mean.to_dense()))


def test_forbidden_pairs_are_not_chosen(rng):
    X = torch.randn(20, 5, 5, generator=rng).masked_fill(torch.eye(5, dtype=torch.bool), -math.inf)
    assert (soft_matching(X, iterations=10).hard() != torch.arange(5)).all()


@pytest.mark.parametrize("n", [2, 4, 9])
def test_a_forbidden_pair_costs_more_than_all_others_can_gain(n):
    "Each input would rather have the next place, but then the last one has none that it may take."
    X = torch.full((n, n), -math.inf)
    X.diagonal().fill_(-1.0)
    X.diagonal(1).fill_(1.0)
    assert torch.equal(soft_matching(X, iterations=1).hard(), torch.arange(n))


@pytest.mark.parametrize("call, message", [
    (lambda: soft_matching(torch.zeros(2, 3)), "must be"), (lambda: soft_matching(torch.zeros(2, 2), 0.0), "tau must be positive"), (lambda: soft_matching(torch.zeros(2, 2), iterations=0), "iterations must be"),
    (lambda: GumbelSinkhorn(noise=-1.0), "noise must not be negative"), (lambda: GumbelSinkhorn(tau=-1.0), "tau must be positive"), (lambda: hard_matching(torch.full((2, 2), math.inf)), "must be finite")])
def test_errors(call, message):
    with pytest.raises(ValueError, match=message): call()


@pytest.mark.parametrize("iterations", (None, 20))
@pytest.mark.parametrize("tau", (1.0, 1e3, 1e6))
def test_costs_far_from_zero_have_their_digits(iterations, tau, rng):
    "Value, and gradients to costs and temperature, in single precision."
    X = (1e4 + torch.randn(5, 5, generator=rng, dtype=torch.float64)).float()
    w = torch.randn(5, 5, generator=rng, dtype=torch.float64)
    def total(X, tau):
        P = soft_matching(X, tau, iterations).to_dense()
        return (P * w.to(P)).sum()
    tau = torch.tensor(tau)
    for found, right in zip(torch.func.grad(total, (0, 1))(X, tau), torch.func.grad(total, (0, 1))(X.double(), tau.double())):
        assert_close(found.double(), right, rtol=1e-5, atol=1e-5 * right.abs().max().item())
