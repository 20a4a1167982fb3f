"""Weights of elements in ranks and masks: 2 is the element twice, 0 is its absence, and a mask holds k."""
import math

import pytest
import torch
from torch.testing import assert_close

import softsortlib
from softsortlib import soft_rank, soft_topk_mask
from softsortlib.ragged import offsets_from, offsets_of

f64 = torch.float64
RANKS = ["softsort", "sigmoid", "gaussian", "laplace"]
MASKS = ["lapsum", "sinkhorn"]
FUNCTIONS = {**{m: lambda x, m=m, **more: soft_rank(x, method=m, **more) for m in RANKS}, **{f"{m}:mask": lambda x, m=m, **more: soft_topk_mask(x, 3.5, method=m, **more) for m in MASKS}}
every = pytest.mark.parametrize("name", FUNCTIONS)


@every
@pytest.mark.parametrize("n", [1, 7, 300])
def test_weight_two_is_the_element_twice_and_weight_zero_its_absence(name, n, rng):
    f = FUNCTIONS[name]
    x, w = torch.randn(n, generator=rng, dtype=f64, requires_grad=True), torch.randint(0, 4, (n,), generator=rng)
    if n > 2: x = x.detach().clone().index_put((torch.tensor([0]),), x.detach()[1]).requires_grad_()           # a tie
    w[-1] = 2
    at = torch.arange(n).repeat_interleave(w)
    g = torch.randn(n, generator=rng, dtype=f64)
    for tau in (0.3, torch.tensor(0.7, dtype=f64)):
        many = x[at]
        if "mask" in name and len(at) < 3.5: many, at = many, at
        want = f(many, tau=tau) if "mask" not in name or len(at) > 3.5 else torch.ones_like(many)
        hidden = x.detach().masked_fill(w == 0, math.nan).requires_grad_()
        got = f(hidden, weights=w, tau=tau)
        assert_close(got[at], want, rtol=1e-9, atol=1e-9)
        assert (got[w == 0] == 0).all()
        slope, = torch.autograd.grad((got * g * w).sum(), hidden)
        wanted, = torch.autograd.grad((want * g[at]).sum(), x) if want.requires_grad else (torch.zeros_like(x),)
        assert_close(slope, wanted, rtol=1e-7, atol=1e-8)


@every
def test_weights_of_one_change_nothing_and_shapes_go_along(name, rng):
    f = FUNCTIONS[name]
    x = torch.randn(2, 5, 3, generator=rng, dtype=f64)
    assert_close(f(x, dim=1, tau=0.4, weights=torch.ones(2, 5, 3)), f(x, dim=1, tau=0.4))
    assert_close(f(x, dim=1, weights=torch.ones(2, 5, 3)), f(x, dim=1))                                       # the default temperature
    w = torch.rand(2, 5, 3, generator=rng)
    mask = torch.tensor([1, 1, 0, 1, 1]).bool()[:, None].expand(2, 5, 3)
    got = f(x, dim=1, tau=0.4, weights=w.masked_fill(~mask, math.nan), mask=mask)
    assert_close(got, f(x, dim=1, tau=0.4, weights=w.masked_fill(~mask, 0)))
    assert_close(got[1, :, 2], f(x[1, :, 2], tau=0.4, weights=w[1, :, 2], mask=mask[0, :, 0]))
    down = "descending" if "mask" not in name else "largest"
    assert_close(f(x, dim=1, tau=0.4, weights=w, **{down: down == "descending"}), f(-x, dim=1, tau=0.4, weights=w, **{down: down != "descending"}))
    half = f(x.bfloat16(), dim=1, tau=0.4, weights=w)
    assert half.dtype == torch.bfloat16 and half.shape == x.shape


@every
def test_lists_end_to_end(name, rng):
    f = FUNCTIONS[name]
    x, w = torch.randn(2, 12, generator=rng, dtype=f64), torch.rand(2, 12, generator=rng) + 0.5
    offsets = offsets_of([5, 0, 4, 3])
    got = f(x, tau=0.4, weights=w, offsets=offsets)
    for a, b in ((0, 5), (5, 9), (9, 12)): assert_close(got[:, a:b], f(x[:, a:b], tau=0.4, weights=w[:, a:b]))
    at = torch.randperm(12, generator=rng)
    ids = torch.tensor([0] * 5 + [2] * 4 + [3] * 3)[at]
    assert_close(f(x[:, at], tau=0.4, weights=w[:, at], offsets=offsets_from(ids=ids)), got[:, at])
    with pytest.raises(ValueError, match="weights must be a tensor that broadcasts"): f(x, weights=w[0, :5], offsets=offsets)
    assert_close(f(x, tau=0.4, weights=w[0], offsets=offsets), f(x, tau=0.4, weights=w[:1].expand(2, 12), offsets=offsets))


@every
def test_derivatives(name, rng):
    f = FUNCTIONS[name]
    x, w = torch.randn(2, 6, generator=rng, dtype=f64, requires_grad=True), (torch.rand(2, 6, generator=rng, dtype=f64) + 0.5).requires_grad_()
    tau = torch.tensor([0.5, 0.8], dtype=f64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w, tau: f(x, weights=w, tau=tau), (x, w, tau))
    assert torch.autograd.gradgradcheck(lambda x: f(x, weights=w.detach(), tau=tau.detach()), x)


@pytest.mark.parametrize("method", MASKS)
def test_a_mask_holds_k(method, rng):
    x = torch.randn(3, 200, generator=rng, requires_grad=True)
    p = (3 * x).softmax(-1)
    k = torch.tensor([0.9, 0.5, 0.1], requires_grad=True)
    for tau in (1e-4, 0.1, 10.0):
        m = soft_topk_mask(x, k, method=method, weights=p, tau=tau)
        assert_close((p * m).sum(-1), k.detach(), atol=1e-5, rtol=0)
        assert all(g.isfinite().all() for g in torch.autograd.grad(m.square().sum(), (x, k), retain_graph=True))
    m = soft_topk_mask(x.detach(), 0.5, method=method, weights=p.detach(), tau=1e-9, hard=True)
    order, held = x[0].argsort(descending=True), 0
    for i in order:
        assert_close(m[0, i], ((0.5 - held) / p[0, i]).clamp(0, 1).detach(), atol=2e-4, rtol=1e-3)
        held = held + p[0, i].item()
    assert_close(m, soft_topk_mask(x.detach(), 0.5, method=method, weights=p.detach(), tau=1e-6), atol=1e-2, rtol=0)
    assert (soft_topk_mask(x, 7.0, method=method, weights=p) == 1).all()                                        # more than there is
    flat = torch.zeros(1, 4, requires_grad=True)
    assert_close(soft_topk_mask(flat, 1.0, method=method, weights=torch.tensor([[1.0, 2, 3, 4]]), tau=0.1), torch.full((1, 4), 0.1))
    nothing = soft_topk_mask(flat, 1.0, method=method, weights=torch.zeros(1, 4))
    g, = torch.autograd.grad(nothing.sum(), flat)
    assert (nothing == 0).all() and (g == 0).all()


def test_hard_ranks_and_far_apart(rng):
    x, w = torch.tensor([3.0, 1.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 0.5, 0.25])
    assert_close(soft_rank(x, weights=w, hard=True, tau=5.0), torch.tensor([3.75, 1.75, 1.75, 3.125]))
    assert_close(soft_rank(x, weights=w, hard=True, tau=5.0, descending=True), torch.tensor([1.0, 3.0, 3.0, 1.625]))
    for method in RANKS:
        assert_close(soft_rank(x, weights=w, tau=1e-3, method=method)[[0, 3]], torch.tensor([3.75, 3.125]))
        wide = torch.tensor([0.0, 1e6, -1e6], requires_grad=True)
        r = soft_rank(wide, weights=w[:3], tau=1e-3, method=method)
        assert_close(r, torch.tensor([1.5, 3.5, 0.75]) - torch.tensor([0, 0.5, 0]))
        assert torch.autograd.grad(r.sum(), wide)[0].isfinite().all()


@pytest.mark.parametrize("call, kind, says", [
    (lambda x, w: soft_rank(x, weights=torch.ones(5)), ValueError, r"weights must broadcast to the shape of x, \(2, 3\), got \(5,\)"), (lambda x, w: soft_rank(x, weights=[1, 2, 3]), TypeError, "weights must be a tensor"),
    (lambda x, w: soft_topk_mask(x, 1, weights=-w), ValueError, "weights must be finite and not negative"), (lambda x, w: soft_rank(x, weights=w, method="neuralsort"), ValueError, "method must be 'softsort' .* where there are weights"),
    (lambda x, w: soft_rank(x, weights=w, method=softsortlib.SoftSort(power=2)), ValueError, "method must be 'softsort'"), (lambda x, w: soft_topk_mask(x, 1, weights=w, method="simple"), ValueError, "method must be 'lapsum' or 'sinkhorn'"),
    (lambda x, w: soft_topk_mask(x, torch.ones(5), weights=w), ValueError, "k must broadcast"),
], ids=range(7))
def test_mistakes(call, kind, says, rng):
    with pytest.raises(kind, match=says): call(torch.randn(2, 3, generator=rng), torch.ones(2, 3))


def test_weights_and_group_exclude_each_other(alone):
    with pytest.raises(ValueError, match="weights and group exclude each other"): soft_rank(torch.randn(3), weights=torch.ones(3), group=alone, tau=0.1)


@every
def test_a_temperature_that_nobody_sets_counts_weight(name, rng):
    f = FUNCTIONS[name]
    x = torch.randn(2, 7, generator=rng, dtype=f64, requires_grad=True)
    often, up = torch.tensor([1, 4, 0, 2, 1, 3, 1]), torch.randn(7, generator=rng, dtype=f64)
    of_copies = torch.arange(7).repeat_interleave(often)
    got, copies = f(x, weights=often.double()), f(x[:, of_copies])
    mean = torch.zeros(2, 7, dtype=f64).index_add(-1, of_copies, copies) / often.clamp(min=1)
    assert_close(got, mean, rtol=1e-9, atol=1e-9)
    mine, theirs = (torch.autograd.grad((y * up).sum(), x, retain_graph=True)[0] for y in (got, mean))
    assert_close(mine, theirs, rtol=1e-8, atol=1e-8)
    assert_close(f(x, weights=torch.ones(7, dtype=f64)), f(x), rtol=1e-9, atol=1e-9)
    assert_close(f(1000 * x + 5, weights=often.double()), got)
    assert torch.autograd.gradcheck(lambda x, w: f(x, weights=w), (x, (often + torch.rand(7, generator=rng, dtype=f64)).requires_grad_()))
    assert_close(f(torch.ones(4), weights=torch.tensor([1.0, 2, 0, 1]))[0], f(torch.ones(4), weights=torch.tensor([1.0, 2, 0, 1]), tau=1.0)[0])
