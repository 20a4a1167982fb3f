"A router whose experts take so many tokens and no more: a loop in Python over rounds, tokens and experts."
import math
from fractions import Fraction

import pytest
import torch
from torch.testing import assert_close

from softsortlib.selection import TopKRouter

METHODS = ("sparse", "sinkhorn", "threshold", "lapsum", "simple")


def by_loop(s, k, factor, overflow, mask=None):
    "[experts that take the token, in the order of asking] for s (T, n)."
    T, n = s.shape
    mask = torch.ones_like(s, dtype=torch.bool) if mask is None else mask
    room = math.ceil(Fraction(str(factor)) * k * int(mask.any(-1).sum()) / n)
    wishes = [sorted((e for e in range(n) if mask[t, e]), key=lambda e: -float(s[t, e])) for t in range(T)]
    taken, load = [[] for _ in range(T)], [0] * n
    for turn in range(k if overflow == "drop" else n):
        for t in range(T):
            if turn >= len(wishes[t]) or len(taken[t]) == k: continue
            e = wishes[t][turn]
            if load[e] < room:
                load[e] += 1
                taken[t].append(e)
    return taken


def taken_by(routing):
    "The same, read off a routing: the experts with a weight."
    flat = zip(routing.weights.flatten(0, -2).tolist(), routing.indices.flatten(0, -2).tolist())
    return [[e for weight, e in zip(*row) if weight > 0] for row in flat]


@pytest.mark.parametrize("overflow", ("drop", "next"))
@pytest.mark.parametrize("factor", (0.3, 1.0, 1.1, 1.25, 2, 100.0))
def test_it_is_the_loop(overflow, factor, rng):
    for T, n, k in ((1, 1, 1), (10, 4, 1), (23, 5, 2), (40, 8, 3), (12, 3, 3)):
        s = torch.randn(T, n, generator=rng, dtype=torch.float64) + torch.linspace(1.5, 0, n, dtype=torch.float64)
        for mask in (None, torch.rand(T, n, generator=rng) < 0.7):
            found = TopKRouter(k, tau=0.7, capacity=factor, overflow=overflow)(s, mask)
            loop = by_loop(s, k, factor, overflow, mask)
            assert taken_by(found) == loop, (T, n, k, mask is None)
            for t, experts in enumerate(loop):          # (K5.1): among the chosen, of whom some drop the token; or among those that took it
                among = found.indices[t] if overflow == "drop" else torch.tensor(experts, dtype=torch.long)
                if mask is not None: among = among[mask[t][among]]
                share = s[t].gather(0, among).softmax(0)
                weight = dict(zip(among.tolist(), share.tolist()))
                assert_close(found.weights[t][found.weights[t] > 0], torch.tensor([weight[e] for e in experts], dtype=torch.float64))
            assert all(len(set(row)) == k for row in found.indices.tolist())


@pytest.mark.parametrize("method", METHODS)
def test_ample_room_changes_nothing(method, rng):
    s = torch.randn(3, 20, 6, generator=rng, dtype=torch.float64).requires_grad_()
    mask = torch.rand(3, 20, 6, generator=rng) < 0.7
    g = torch.randn(3, 20, 2, generator=rng, dtype=torch.float64)
    for open_ in (None, mask):
        free = TopKRouter(2, method, tau=0.8, balance=0.3)(s, open_)
        for overflow in ("drop", "next"):
            ample = TopKRouter(2, method, tau=0.8, balance=0.3, capacity=6, overflow=overflow)(s, open_)
            counts = free.weights > 0
            assert torch.equal(free.indices[counts], ample.indices[counts])
            assert_close(free.weights, ample.weights)
            assert_close(free.loss, ample.loss)
            for a, b in ((free.weights * g, ample.weights * g), (free.loss, ample.loss)):
                assert_close(*(torch.autograd.grad(y.sum(), s, retain_graph=True)[0] for y in (a, b)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_those_of_the_soft_mask(method, rng):
    "Prop K5.1 for the experts that took the token: h + (m - m detached) in (K5.1)."
    s = torch.randn(30, 6, generator=rng, dtype=torch.float64).requires_grad_()
    g = torch.randn(30, 2, generator=rng, dtype=torch.float64)
    router = TopKRouter(2, method, tau=0.8, capacity=1.0, overflow="next")
    found = router(s)
    h = torch.zeros(30, 6, dtype=torch.float64)
    for t, experts in enumerate(by_loop(s.detach(), 2, 1.0, "next")): h[t, experts] = 1
    m = router.mask(s)
    aloud = (h + m - m.detach()) * s.softmax(-1)
    aloud = (aloud / aloud.sum(-1, keepdim=True)).gather(-1, found.indices)
    counts = found.weights > 0
    assert_close(found.weights, aloud)
    assert_close(*(torch.autograd.grad((y * counts * g).sum(), s, retain_graph=True)[0] for y in (found.weights, aloud)), rtol=1e-9, atol=1e-12)
    free = TopKRouter(2, method, tau=0.8)(s)
    drop = TopKRouter(2, method, tau=0.8, capacity=1.0)(s)
    kept = drop.weights > 0
    assert not kept.all() and torch.equal(drop.indices, free.indices) and torch.equal(drop.weights[kept], free.weights[kept])
    assert_close(*(torch.autograd.grad((w * g * kept).sum(), s)[0] for w in (drop.weights, free.weights)), rtol=1e-9, atol=1e-12)


def test_the_loss_of_balance_counts_wishes(rng):
    s = (torch.randn(40, 5, generator=rng) + torch.linspace(2, 0, 5)).requires_grad_()
    free = TopKRouter(2, balance=0.1)(s).loss
    for overflow in ("drop", "next"):
        loss = TopKRouter(2, balance=0.1, capacity=1.0, overflow=overflow)(s).loss
        assert_close(loss, free)
        assert_close(torch.autograd.grad(loss, s)[0], torch.autograd.grad(free, s, retain_graph=True)[0])


def test_first_choices_come_first():
    "GShard: the third token's first choice is served before the first token's second one."
    s = torch.tensor([[3.0, 2.0, 0.0], [3.0, 0.0, 2.0], [0.0, 3.0, 2.0]])
    assert taken_by(TopKRouter(2, capacity=0.5)(s)) == [[0], [2], [1]]
    assert taken_by(TopKRouter(1, capacity=1.0)(s)) == [[0], [], [1]]
    assert taken_by(TopKRouter(1, capacity=1.0, overflow="next")(s)) == [[0], [2], [1]]


def test_batches_half_precision_and_the_compiler(rng):
    s = torch.randn(2, 9, 4, generator=rng)
    for overflow in ("drop", "next"):
        router = TopKRouter(2, capacity=1.0, overflow=overflow)
        flat, many = router(s.flatten(0, 1)), router(s)
        assert all(torch.equal(a, b.flatten(0, 1) if b.ndim else b) for a, b in zip(flat, many))
        assert router(s.bfloat16()).weights.dtype == torch.bfloat16
        empty = router(s[:0])
        assert empty.weights.shape == empty.indices.shape == (0, 9, 2)
        assert router(s[0, 0]).weights.shape == (2,)
        closed = router(s, torch.zeros(4, dtype=torch.bool))
        assert not closed.weights.any()
        torch._dynamo.reset()
        for a, b in zip(torch.compile(router, fullgraph=True, backend="aot_eager")(s), many): assert_close(a, b)
    assert "capacity" not in repr(TopKRouter(2)) and "capacity=1.0, overflow='next'" in repr(router)


@pytest.mark.parametrize("wrong", [0, -1.0, math.inf, math.nan, True, "1", torch.tensor(1.0)])
def test_capacities_that_there_are_not(wrong):
    with pytest.raises(ValueError, match="capacity must be a positive finite number of even shares"): TopKRouter(2, capacity=wrong)


@pytest.mark.parametrize("wrong", ["wait", None, True, ["drop"]])
def test_overflows_that_there_are_not(wrong):
    with pytest.raises(ValueError, match="overflow must be 'drop' or 'next', got"): TopKRouter(2, overflow=wrong)
