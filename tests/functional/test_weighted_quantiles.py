"""Weighted quantiles, medians and trimmed means: 2 is the element twice, 0 is its absence, and parts of one count as parts."""
import math

import pytest
import torch
from torch.testing import assert_close

import softsortlib
from regimes import FILLERS, REGIMES
from softsortlib import soft_median, soft_quantile, soft_trimmed_mean
from softsortlib.ragged import offsets_from, offsets_of

f64 = torch.float64
MOVED = ["linear", "lower", "higher", "midpoint", "nearest"]
FUNCTIONS = {
    **{f"quantile:{i}": lambda x, i=i, **more: soft_quantile(x, torch.tensor([0.0, 0.3, 0.5, 1.0], dtype=f64), interpolation=i, **more).movedim(0, -1) for i in MOVED},
    "median": soft_median,
    "trimmed": lambda x, **more: soft_trimmed_mean(x, (0.1, 0.3), **more),
}
every = pytest.mark.parametrize("name", FUNCTIONS)
some = pytest.mark.parametrize("name", ["quantile:linear", "median", "trimmed"])


def repeated(x, w):
    "Sets x (B, n), each element as often as w (n,) says."
    return x[:, torch.arange(x.shape[-1]).repeat_interleave(w)]


def tied_sums(g, x):
    "What each run of equal scores gets: copies of a tied element share differently in a trimmed mean that cuts through them."
    return (g[:, None] * (x[:, None] == x[..., None])).sum(-1)


@every
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("tau", [None, 0.3, "spread"])
def test_weight_two_is_the_element_twice_and_weight_zero_its_absence(name, regime, tau, rng):
    f = FUNCTIONS[name]
    for n in (1, 2, 9):
        x = REGIMES[regime](2, n, f64, rng)
        w = torch.randint(0, 4, (n,), generator=rng)
        w[-1] = 2
        t = 0.7 * repeated(x, w).std().clamp(min=1e-3) if tau == "spread" else tau
        a = x.clone().requires_grad_()
        b = x.masked_fill(w == 0, FILLERS[n % len(FILLERS)] if n > 2 else math.nan).requires_grad_()
        for hard in (False, True):
            want, got = f(repeated(a, w), tau=t, hard=hard), f(b, weights=w, tau=t, hard=hard)
            size = repeated(x, w).abs().max()
            assert_close(got, want, rtol=1e-10, atol=1e-12 * size)
            g = torch.randn(want.shape, generator=rng, dtype=f64)
            wanted, slope = torch.autograd.grad((want * g).sum(), a)[0], torch.autograd.grad((got * g).sum(), b)[0]
            assert (slope[:, w == 0] == 0).all()
            reach = wanted.abs().max().clamp(min=1)
            loose = 10 if "outlier" in regime else 1                  # sums of 1e17 and 1 in the gradient of the spread
            assert_close(tied_sums(slope, x), tied_sums(wanted, x), rtol=1e-7 * loose, atol=1e-8 * reach * loose)


@some
@pytest.mark.parametrize("regime", ["normal", "offset 1e4", "integers with ties", "spread 1e-6", "two clusters"])
def test_single_precision_is_double_precision_rounded(name, regime, rng):
    f, x, w = FUNCTIONS[name], REGIMES[regime](3, 40, torch.float32, rng), 2 * torch.rand(3, 40, generator=rng)
    for tau in (None, 0.1):
        assert_close(f(x, weights=w, tau=tau), f(x.double(), weights=w.double(), tau=tau).float(), rtol=1e-6, atol=0)


@some
def test_parts_of_one(name, rng):
    "An element is the sum of its parts, all parts together up to one are one element, and the ends are mirrored."
    f, x, w = FUNCTIONS[name], torch.randn(5, generator=rng, dtype=f64), 3 * torch.rand(5, generator=rng, dtype=f64)
    split = torch.cat([0.3 * w, 0.7 * w])
    for tau in (0.3, None):
        assert_close(f(x.repeat(2), weights=split, tau=tau), f(x, weights=w, tau=tau), rtol=1e-12, atol=1e-12)
        light = f(x, weights=w / w.sum(), tau=1e-6)
        assert_close(light, (w @ x / w.sum()).expand(light.shape))
    q = torch.tensor([0.1, 0.6], dtype=f64)
    assert_close(soft_quantile(-x, q, weights=w, tau=0.3), -soft_quantile(x, 1 - q, weights=w, tau=0.3))


def test_the_weighted_quantile_of_type_seven(rng):
    "Akinshin (2023), equation of Q*: uniform weights on the window of one over the effective size of the sample."
    x, w = torch.randn(30, generator=rng, dtype=f64), torch.rand(30, generator=rng, dtype=f64)
    size = w.sum() ** 2 / w.square().sum()
    t, order = x.sort()
    F = torch.cat([w.new_zeros(1), (w[order] / w.sum()).cumsum(0)])
    for q in (0.05, 0.4, 0.9):
        low = (size - 1) * q / size
        U = ((F - low) * size).clamp(0, 1)
        assert_close(soft_quantile(x, q, weights=w * size / w.sum(), hard=True), U.diff() @ t)


@some
def test_shapes_go_along(name, rng):
    f, x, w = FUNCTIONS[name], torch.randn(2, 5, 3, generator=rng, dtype=f64), torch.rand(5, 1, generator=rng) + 0.5
    mask = torch.tensor([1, 1, 0, 1, 1]).bool()[:, None]
    got = f(x, dim=1, weights=w, mask=mask, tau=0.4)
    assert_close(got, f(x, dim=1, weights=w.expand(2, 5, 3).masked_fill(~mask, 0), tau=0.4))
    assert_close(f(x, dim=1, weights=w.masked_fill(~mask, math.nan), mask=mask, tau=0.4), got)
    assert_close(got[1, 2], f(x[1, mask[:, 0], 2], weights=w[mask[:, 0], 0], tau=0.4))
    both = f(x, dim=(0, 1), weights=w)
    assert_close(both[1], f(x[..., 1].flatten(), weights=w.expand(2, 5, 3)[..., 1].flatten()))
    assert_close(f(x, dim=None, weights=w), f(x.flatten(), weights=w.expand(2, 5, 3).flatten()))
    assert f(x.bfloat16(), dim=1, weights=w).dtype == torch.bfloat16
    ones = f(x, dim=1, weights=torch.ones(()))
    assert_close(ones, f(x, dim=1))
    assert soft_quantile(x, 0.5, 1, True, weights=w).shape == (2, 1, 3) and soft_trimmed_mean(x, 0.1, (0, 1), True, weights=w).shape == (1, 1, 3)


@some
def test_lists_end_to_end(name, rng):
    f, x, w = FUNCTIONS[name], torch.randn(2, 12, generator=rng, dtype=f64), torch.rand(2, 12, generator=rng) + 0.5
    offsets = offsets_of([5, 0, 4, 3])
    got = f(x, weights=w, offsets=offsets)
    got = got.movedim(-2, -1) if name == "quantile:linear" else got
    for i, (a, b) in {0: (0, 5), 2: (5, 9), 3: (9, 12)}.items():
        assert_close(got[..., i] if name != "quantile:linear" else got.movedim(-1, -2)[:, i], f(x[:, a:b], weights=w[:, a:b]))
    at = torch.randperm(12, generator=rng)
    ids = torch.tensor([0] * 5 + [2] * 4 + [3] * 3)[at]
    assert_close(soft_median(x[:, at], weights=w[:, at], offsets=offsets_from(ids=ids)), soft_median(x, weights=w, offsets=offsets_of([5, 4, 3])))


@some
def test_nothing_to_weigh(name, rng):
    f, x = FUNCTIONS[name], torch.randn(2, 4, generator=rng, requires_grad=True)
    w = torch.tensor([[0.0] * 4, [1.0, 2, 0, 1]], requires_grad=True)
    for tau in (None, 0.1):
        y = f(x, weights=w, tau=tau)
        slopes = torch.autograd.grad(y.sum(), (x, w))
        assert (y[0] == 0).all() and all((g[0] == 0).all() and g.isfinite().all() for g in slopes)
        assert slopes[1][1, 2] == 0 and slopes[1][1, 0] != 0
    assert f(x[:0], weights=w[:0]).shape[0] == 0
    alone = f(x[:, :1], weights=torch.tensor(0.25))
    assert_close(alone, x[:, :1].expand(alone.shape[0], -1).reshape(2, -1).expand(2, alone.numel() // 2).reshape(alone.shape))
    bad = x.detach().clone()
    bad[0, 0] = math.nan
    y = f(bad, weights=w.detach() + 1, tau=0.1)
    assert y[0].isnan().all() and y[1].isfinite().all()


@some
def test_derivatives(name, rng):
    f = FUNCTIONS[name]
    x, w = torch.randn(2, 6, generator=rng, dtype=f64, requires_grad=True), (torch.rand(2, 6, generator=rng, dtype=f64) + 0.5).requires_grad_()
    tau = torch.tensor([0.5, 0.8], dtype=f64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w, tau: f(x, weights=w, tau=tau), (x, w, tau))
    assert torch.autograd.gradcheck(lambda x, w: f(x, weights=w), (x, w))                     # the spread of the weighted set included
    assert torch.autograd.gradcheck(lambda x, w: f(x, weights=w), (torch.tensor([[1.0, 1, 1, 1, 1, 3], [0, 5, 5, 5, 5, 7]], dtype=f64), w))
    assert torch.autograd.gradgradcheck(lambda x: f(x, weights=w.detach(), tau=tau.detach()), x)
    each = torch.func.vmap(torch.func.grad(lambda x, w: f(x, weights=w).sum(), (0, 1)))(x.detach(), w.detach())
    assert_close(each, torch.autograd.grad(f(x, weights=w).sum(), (x, w)))
    level = torch.tensor([0.3, 0.8], dtype=f64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda q: soft_quantile(x.detach(), q, weights=w.detach(), tau=0.3), level)


@some
@pytest.mark.parametrize("tau", [None, 0.4])
def test_whole_weights_get_the_mean_of_both_sides_whatever_constant_is_added(name, tau, rng):
    x, step = torch.randn(1, 7, generator=rng, dtype=f64), 1e-6
    w = torch.tensor([2.0, 1, 3, 1, 4, 1, 1], dtype=f64)
    value = lambda w, shift=0.0: FUNCTIONS[name](x + shift, weights=w, tau=tau).sum()
    slopes = torch.func.grad(value)(w)
    assert_close(torch.func.grad(lambda w: value(w, 1e4))(w), slopes, rtol=1e-7, atol=1e-9)
    assert_close(torch.stack([(value(w + h) - value(w - h)) / (2 * step) for h in step * torch.eye(7, dtype=f64)]), slopes, rtol=1e-4, atol=1e-5)


@some
def test_traced(name, rng):
    f, x, w = FUNCTIONS[name], torch.randn(2, 6, generator=rng, requires_grad=True), (torch.rand(2, 6, generator=rng) + 0.5).requires_grad_()
    compiled = torch.compile(lambda x, w: f(x, weights=w), fullgraph=True, backend="aot_eager")
    plain, traced = f(x, weights=w), compiled(x, w)
    assert_close(traced, plain)
    assert_close(torch.autograd.grad(traced.sum(), (x, w)), torch.autograd.grad(plain.sum(), (x, w)))


def test_a_weight_that_falls_to_nothing_goes_without_a_step(rng):
    x, w = torch.randn(6, generator=rng, dtype=f64), torch.ones(6, dtype=f64)
    for tau in (None, 0.2):
        for f in (soft_median, lambda x, **more: soft_quantile(x, 0.8, **more)):
            gone = f(x, weights=w.index_fill(0, torch.tensor(2), 0), tau=tau)
            assert_close(f(x, weights=w.index_fill(0, torch.tensor(2), 1e-9), tau=tau), gone, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("call, kind, says", [
    (lambda x, w: soft_median(x, weights=torch.ones(5)), ValueError, r"weights must broadcast to the shape of x, \(2, 3\), got \(5,\)"),
    (lambda x, w: soft_median(x, weights=[1, 2, 3]), TypeError, "weights must be a tensor that broadcasts"),
    (lambda x, w: soft_quantile(x, 0.5, weights=-w), ValueError, "weights must be finite and not negative"),
    (lambda x, w: soft_trimmed_mean(x, weights=w * math.nan), ValueError, "weights must be finite and not negative, got nan"),
    (lambda x, w: soft_median(x, weights=w, method="neuralsort"), ValueError, "method must be 'softsort' .power 1. where there are weights"),
    (lambda x, w: soft_trimmed_mean(x, weights=w, method=softsortlib.SoftSort(power=2)), ValueError, "method must be 'softsort'"),
    (lambda x, w: soft_median(x[0], weights=w, offsets=offsets_of([1, 2])), ValueError, "weights must be a tensor that broadcasts"),
], ids=range(7))
def test_mistakes(call, kind, says, rng):
    with pytest.raises(kind, match=says): call(torch.randn(2, 3, generator=rng), torch.ones(2, 3))


def test_weights_and_group_exclude_each_other(alone):
    assert_close(soft_median(torch.arange(3.0), group=alone, tau=1e-3), torch.tensor(1.0))
    assert_close(soft_median(torch.arange(3.0), group=alone, tau=1e-3, gather=True), torch.tensor(1.0))
    with pytest.raises(ValueError, match="weights and group exclude each other"): soft_median(torch.randn(3), weights=torch.ones(3), group=alone, tau=0.1)
