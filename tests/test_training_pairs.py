"""Trainings that must agree, step by step: of the same lists padded, padded far, one by one, end to end and nested; shifted; scaled with the temperature; compiled. (On two processes: tests/distributed.)

Twenty steps of a linear model and a temperature, for every loss. A gradient that is wrong in one layout shows at the second step, whatever the value says."""
import os
from functools import lru_cache

import pytest
import torch
from tables import LOSSES

FULL = os.environ.get("SOFTSORTLIB_GRID") == "full"
STEPS, LENGTHS, FEATURES = 20, (4, 9, 6, 1, 7, 9, 5, 3), 4
CALLS = {call.name: call for call in LOSSES}
MASKED = [name for name, call in CALLS.items() if call.masked]
LISTS = [name for name in MASKED if not name.startswith("permutation")]
BY_TAU = [name for name in CALLS if name != "quantised_ap_loss"]        # which asks for scores in a fixed range
COMPILED = ("spearman_loss", "lambda_loss", "approx_ndcg_loss", "kendall_loss")[:4 if FULL else 2]


@lru_cache
def data():
    "Features (lists, N, FEATURES) and grades of lists of different lengths, zero where padded; features and weights are such that all scores are positive."
    rng = torch.Generator().manual_seed(0)
    B, N = len(LENGTHS), max(LENGTHS)
    mask = torch.arange(N) < torch.tensor(LENGTHS)[:, None]
    X = torch.rand(B, N, FEATURES, generator=rng, dtype=torch.float64).masked_fill(~mask[..., None], 0)
    y = torch.randint(0, 4, (B, N), generator=rng)
    y[:, 0] = 3
    return X, y.masked_fill(~mask, 0), mask


def train(loss, dtype=torch.float64, rate=0.05, start=1.0):
    "The values of loss(scores of features, tau) at each step, (STEPS,)."
    W = torch.linspace(1.0, 2.0, FEATURES, dtype=torch.float64).mul(start).to(dtype).requires_grad_()
    log_tau = torch.tensor(-0.7, dtype=dtype, requires_grad=True)
    values = []
    for _ in range(STEPS):
        value = loss(lambda X: X.to(dtype) @ W, log_tau.exp())
        grads = torch.autograd.grad(value, (W, log_tau), allow_unused=True, materialize_grads=True)
        with torch.no_grad(): [leaf.sub_(rate * g) for leaf, g in zip((W, log_tau), grads)]
        values.append(value.detach().double())
    return torch.stack(values)


def padded(name, more=0, scores=lambda s: s, scale=1.0):
    "All lists as one batch, with `more` padded places."
    X, y, mask = data()
    X, y, mask = torch.nn.functional.pad(X, (0, 0, 0, more)), torch.nn.functional.pad(y, (0, more)), torch.nn.functional.pad(mask, (0, more))
    if not CALLS[name].masked: X, y, mask = X[:, :max(LENGTHS)], y[:, :max(LENGTHS)], None
    return lambda of, tau: CALLS[name].f(scores(of(X)), y, scale * tau, mask).mean()


def one_by_one(name):
    X, y, mask = data()
    if not CALLS[name].masked: mask = torch.ones_like(mask)
    return lambda of, tau: torch.cat([CALLS[name].f(of(X[b:b + 1, mask[b]]), y[b:b + 1, mask[b]], tau, None) for b in range(len(X))]).mean()


def end_to_end(name):
    X, y, mask = data()
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    return lambda of, tau: CALLS[name].f(of(X[mask]), y[mask], tau, None, offsets=offsets).mean()


def nested(name):
    X, y, mask = data()
    parts = [X[b, mask[b]] for b in range(len(X))]
    grades = torch.nested.nested_tensor([y[b, mask[b]] for b in range(len(X))], layout=torch.jagged)
    def loss(of, tau):
        flat = of(torch.cat(parts))
        return CALLS[name].f(torch.nested.nested_tensor_from_jagged(flat, grades.offsets()), grades, tau, None).mean()
    return loss


@lru_cache
def reference(name): return train(padded(name))


def agree(found, right): torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", CALLS)
def test_one_by_one(name): agree(train(one_by_one(name)), reference(name))


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("more", [120, 400] if FULL else [120])
def test_padded_far(name, more): agree(train(padded(name, more)), reference(name))


@pytest.mark.parametrize("name", LISTS)
def test_end_to_end_and_nested(name):
    agree(train(end_to_end(name)), reference(name))
    agree(train(nested(name)), reference(name))


@pytest.mark.parametrize("name", BY_TAU)
def test_shifted_and_scaled(name):
    "The scores are compared with one another alone, in units of tau."
    agree(train(padded(name, scores=lambda s: s + 64)), reference(name))
    agree(train(padded(name, scores=lambda s: s - 64)), reference(name))
    agree(train(padded(name, scores=lambda s: 8 * s, scale=8.0)), reference(name))


@pytest.mark.parametrize("name", CALLS)
def test_in_single_precision(name):
    "As near to the training in double precision as one that begins a rounding away."
    far = padded(name, 120 if CALLS[name].masked else 0)
    moved = (train(padded(name), start=1 + 2.0**-23) - reference(name)).abs()
    bound = 64 * moved.cummax(0).values + 2e-6 * reference(name).abs().max()
    assert ((train(far, torch.float32) - reference(name)).abs() <= bound).all(), (train(far, torch.float32), reference(name))


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.filterwarnings("ignore")
def test_compiled(name):
    torch._dynamo.reset()
    plain = padded(name)
    X = data()[0]
    inner = torch.compile(lambda s, tau: plain(lambda _: s, tau), backend="aot_eager", fullgraph=True)
    agree(train(lambda of, tau: inner(of(X), tau)), reference(name))
