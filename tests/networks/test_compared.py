"Sorting by a comparison: a loop in Python over sets and comparators, scores, masks, dims, mistakes."
import copy
import itertools
import pickle

import pytest
import torch
from torch.testing import assert_close

from softsortlib import SortingNetwork, is_doubly_stochastic
from softsortlib.networks import compare_sort, sorting_network, swap_sigmoid

KINDS = ("bitonic", "odd_even")


def by_loop(items, compare, kind, sigmoid, tau, descending, swaps):
    "One set (n, *features), comparator by comparator: the sorted items and the matrix."
    lanes, rows = list(items), list(torch.eye(len(items), dtype=items.dtype))
    net = sorting_network(kind, len(items))
    for i, j in zip(net.lo.tolist(), net.hi.tolist()):
        d = compare(lanes[i][None], lanes[j][None])[0]
        keep = swap_sigmoid(d / tau, sigmoid)
        for some in (lanes, rows):
            a, b = some[i], some[j]
            some[i], some[j] = keep * a + (1 - keep) * b, (1 - keep) * a + keep * b
            if swaps == "error_free":
                exact = (a, b) if d >= 0 else (b, a)
                some[i], some[j] = (soft + (hard - soft).detach() for soft, hard in zip((some[i], some[j]), exact))
    if descending: lanes, rows = lanes[::-1], rows[::-1]
    return torch.stack(lanes), torch.stack(rows)


def a_rule(rng, *shape):
    "A comparison of items of that shape that is nobody's order, with a parameter."
    W = torch.randn((*shape, *shape), generator=rng, dtype=torch.float64).requires_grad_()
    def compare(a, b):
        assert a.shape == b.shape == (len(a), *shape)
        return torch.einsum("ni,ij,nj->n", a.reshape(len(a), -1), W.reshape(a[0].numel(), -1), b.reshape(len(b), -1))
    return compare, W


@pytest.mark.parametrize("swaps", ["soft", "error_free"])
@pytest.mark.parametrize("kind, n", [*itertools.product(KINDS, (1, 2, 3, 6)), ("bitonic", 9)])
def test_it_is_the_loop(kind, n, swaps, rng):
    for shape, sigmoid, descending in (((2, 3), "cauchy", False), ((), "logistic", True), ((3,), "optimal", False)):
        compare, W = a_rule(rng, *shape)
        items = torch.randn(2, n, *shape, generator=rng, dtype=torch.float64).requires_grad_()
        y, P = compare_sort(items, compare, dim=1, descending=descending, kind=kind, sigmoid=sigmoid, tau=0.7, swaps=swaps)
        loop = [by_loop(x, compare, kind, sigmoid, 0.7, descending, swaps) for x in items]
        assert y.shape == items.shape and P.shape == (2, n, n)
        rows = torch.stack([rows for _, rows in loop])
        assert_close(y, torch.stack([y for y, _ in loop]), rtol=1e-10, atol=1e-12)
        assert_close(P.to_dense(), rows, rtol=1e-10, atol=1e-12)
        assert_close(P @ items.reshape(2, n, -1), y.reshape(2, n, -1), rtol=1e-10, atol=1e-12)  # Prop N5.1
        assert is_doubly_stochastic(P, 1e-10).all()
        leaves = (items, W) if n > 1 else (items,)
        ours = torch.autograd.grad((y * y.detach().cos()).sum(), leaves, retain_graph=True)
        assert_close(ours, torch.autograd.grad(sum((y * y.detach().cos()).sum() for y, _ in loop), leaves, retain_graph=True), rtol=1e-8, atol=1e-10)
        if n > 1:
            seen, plain = (torch.autograd.grad((M * rows.detach().sin()).sum(), W, retain_graph=True)[0] for M in (P.to_dense(), rows))
            assert_close(seen, plain, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_difference_of_scores_is_the_network(kind, rng):
    for masked, descending, swaps in itertools.product((False, True), (False, True), ("soft", "error_free")):
        s = torch.randn(3, 7, generator=rng, dtype=torch.float64).requires_grad_()
        mask = torch.rand(3, 7, generator=rng) < 0.6 if masked else None
        tau = torch.tensor([0.2, 0.4, 1.0], dtype=torch.float64)
        scored = SortingNetwork(kind, tau=tau, descending=descending, swaps=swaps)(s, mask)
        for compare in (None, lambda a, b: b - a):
            y, P = compare_sort(s, compare, descending=descending, kind=kind, tau=tau, swaps=swaps, mask=mask)
            for ours, theirs in ((y, scored @ s), (P.to_dense(), scored.to_dense()), (P.mT @ s, scored.mT @ s)):
                assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
                [g], [h] = (torch.autograd.grad(z.square().sum(), s, retain_graph=True) for z in (ours, theirs))
                assert_close(g, h, rtol=1e-8, atol=1e-10)
            order = scored.hard()
            assert_close(P.soft().log_prob(order), scored.soft().log_prob(order), rtol=1e-9, atol=1e-9)
            if swaps == "error_free": assert torch.equal(P.hard(), order)


def test_padding_is_never_compared(rng):
    compare, W = a_rule(rng, 3)
    items, mask = torch.randn(6, 3, generator=rng, dtype=torch.float64), torch.tensor([True, False, True, True, False, True])
    items[~mask] = torch.nan
    items.requires_grad_()
    for kind, swaps in itertools.product(KINDS, ("soft", "error_free")):
        def careful(a, b):
            assert a.isfinite().all() and b.isfinite().all() and a.any(-1).all() and b.any(-1).all()
            return compare(a, b)
        y, P = compare_sort(items, careful, dim=0, kind=kind, swaps=swaps, mask=mask)
        alone, Q = compare_sort(items[mask], compare, dim=0, kind=kind, swaps=swaps)
        assert_close(y[:4], alone)
        assert not y[4:].any()
        assert_close(P.to_dense()[:4, mask], Q.to_dense())
        assert not P.to_dense()[:, ~mask].any() and not P.to_dense()[4:].any()
        g, h = (torch.autograd.grad(z.square().sum(), (items, W)) for z in (y, alone))
        assert g[0].isfinite().all()
        assert_close(g, h)
        assert torch.equal(P.hard()[:4], mask.nonzero()[Q.hard(), 0])
    y, P = compare_sort(items, compare, dim=0, mask=torch.zeros(6, dtype=torch.bool))
    assert not y.any() and not P.to_dense().any()


def test_the_dimension_of_the_set(rng):
    items = torch.randn(2, 3, 5, 4, generator=rng)
    def compare(a, b): return (b - a).flatten(1).sum(1)
    whole, _ = compare_sort(items, compare, dim=2, tau=0.1)
    assert_close(whole, compare_sort(items, compare, dim=-2, tau=0.1)[0])
    assert_close(whole[1, 2], compare_sort(items[1, 2], compare, dim=0, tau=0.1)[0])
    blocks, P = compare_sort(items, compare, dim=1, swaps="error_free")
    assert P.shape == (2, 3, 3) and torch.equal(blocks, items.gather(1, items.sum((2, 3)).argsort(1)[:, :, None, None].expand(items.shape)))


def test_dtypes_and_empty_batches(rng):
    items = torch.randn(2, 4, 3, generator=rng).bfloat16()
    def compare(a, b):
        assert a.dtype == torch.bfloat16
        return (b - a).sum(-1)
    y, P = compare_sort(items, compare, dim=1)
    assert y.dtype == P.dtype == (P @ items).dtype == torch.bfloat16
    x = torch.zeros(0, 4, 3, requires_grad=True)
    y, P = compare_sort(x, lambda a, b: 1 / 0, dim=1)
    y.sum().backward()
    assert y.shape == x.grad.shape == (0, 4, 3) and P.shape == (0, 4, 4)


def test_rows_copies_and_the_hard_permutation(rng):
    items = torch.randn(3, 6, 2, generator=rng, dtype=torch.float64)
    _, P = compare_sort(items, lambda a, b: a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0], dim=1, tau=0.5)
    dense, hard = P.to_dense(), P.hard()
    assert (hard.sort(-1).values == torch.arange(6)).all()
    assert_close(P[..., 1:3, :].to_dense(), dense[..., 1:3, :])
    assert torch.equal(P[..., [4, 0], :].hard(), hard[..., [4, 0]])
    assert_close(P.log_prob(hard), dense.log().gather(-1, hard[..., None])[..., 0])
    assert_close(P.straight_through() @ items, items.gather(1, hard[..., None].expand(items.shape)))
    for Q in (copy.deepcopy(P), pickle.loads(pickle.dumps(P))): assert torch.equal(Q.to_dense(), dense)


x = torch.zeros(2, 4, 3)
def fine(a, b): return (b - a).sum(-1)


@pytest.mark.parametrize("call, error, says", [
    (lambda: compare_sort(x, dim=1), ValueError, r"compare must be given for items of shape \(3,\): .* leave dim=-1"),
    (lambda: compare_sort(x, "less", dim=1), TypeError, "compare must be a function of two batches of items, got str"),
    (lambda: compare_sort(x, lambda a, b: (b - a)[:, :1], dim=1), ValueError, r"shape \(4,\), got \(4, 1\): end it with .squeeze\(-1\)"),
    (lambda: compare_sort(x, lambda a, b: b - a, dim=1), ValueError, r"one number for each pair, shape \(4,\), got \(4, 3\)$"),
    (lambda: compare_sort(x, lambda a, b: (a < b).all(-1), dim=1), TypeError, "compare must return a floating point tensor, .* got torch.bool"),
    (lambda: compare_sort(x, lambda a, b: 1.0, dim=1), TypeError, "compare must return a floating point tensor, .* got float"),
    (lambda: compare_sort(x.long(), fine, dim=1), TypeError, "items must be floating point"),
    (lambda: compare_sort([1.0], fine), TypeError, "items must be a torch.Tensor"),
    (lambda: compare_sort(torch.tensor(1.0)), IndexError, "dim must be in"),
    (lambda: compare_sort(x[:, :0], fine, dim=1), ValueError, r"items must have at least one element along dim=1, got shape \(2, 0, 3\)"),
    (lambda: compare_sort(x, fine, dim=3), IndexError, "dim must be in -3..2 for items with 3 dimensions, got 3"),
    (lambda: compare_sort(x, fine, dim="1"), TypeError, "dim must be an int"),
    (lambda: compare_sort(x, fine, dim=1, kind="bubble"), ValueError, "kind must be 'bitonic' or 'odd_even'"),
    (lambda: compare_sort(x[:, :1], fine, dim=1, sigmoid="relu"), ValueError, "sigmoid must be one of"),
    (lambda: compare_sort(x, fine, dim=1, swaps="hard"), ValueError, "swaps must be 'soft' or 'error_free'"),
    (lambda: compare_sort(x, fine, dim=1, tau=0.0), ValueError, "tau must be positive"),
    (lambda: compare_sort(x, fine, dim=1, mask=torch.ones(3, dtype=torch.bool)), ValueError, "mask must broadcast"),
    (lambda: compare_sort(x, fine, dim=1, descending=1), TypeError, "descending must be True or False"),
])
def test_mistakes(call, error, says):
    with pytest.raises(error, match=says): call()
