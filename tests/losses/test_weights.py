"""Weights of lists and of elements: 2 is the same twice, 0 is its absence, and a common factor changes nothing in a mean."""
import math
import re

import pytest
import torch
from torch.testing import assert_close

import softsortlib
from softsortlib import losses as L
from softsortlib.ragged import offsets_from, offsets_of

f64 = torch.float64
BINARY = {"slatk", "precision", "recall", "average_precision", "quantised_ap", "auc", "auc_sigmoid", "reciprocal_rank"}
LISTS = {
    "spearman": (L.spearman_loss, dict(tau=0.5)), "spearman_sigmoid": (L.spearman_loss, dict(tau=0.5, method="sigmoid")), "kendall": (L.kendall_loss, dict(tau=0.5)),
    "kendall_sigmoid": (L.kendall_loss, dict(kind="sigmoid")), "weighted_kendall": (L.weighted_kendall_loss, {}), "weighted_kendall_sigmoid": (L.weighted_kendall_loss, dict(kind="sigmoid", weighting="logarithmic")),
    "listnet": (L.listnet_loss, {}), "listnet_share": (L.listnet_loss, dict(target="share")), "listmle": (L.listmle_loss, dict(weighting="exp2")), "slatk": (L.slatk_loss, dict(k=2)), "lambda": (L.lambda_loss, dict(k=3)),
    "approx_ndcg": (L.approx_ndcg_loss, dict(tau=0.5)), "approx_ndcg@2": (L.approx_ndcg_loss, dict(tau=0.5, k=2)), "neural_ndcg": (L.neural_ndcg_loss, dict(tau=0.5, iterations=3)), "pirank": (L.pirank_loss, dict(tau=0.5)),
    "precision": (L.precision_loss, dict(tau=0.5, k=2, iterations=3)), "recall": (L.recall_loss, dict(tau=0.5, k=2, iterations=3)), "reciprocal_rank": (L.reciprocal_rank_loss, dict(tau=0.5)),
    "average_precision": (L.average_precision_loss, dict(tau=0.5)), "quantised_ap": (L.quantised_ap_loss, dict(bins=7, span=(-4.0, 4.0))), "auc": (L.auc_loss, {}), "auc_sigmoid": (L.auc_loss, dict(kind="sigmoid", tau=0.5)),
}
every_loss = pytest.mark.parametrize("name", LISTS)


def batch(rng, name, b=4, n=6):
    "Scores and grades; the last list has nothing to order."
    s, y = torch.randn(b, n, generator=rng, dtype=f64), torch.randint(0, 4, (b, n), generator=rng)
    y[:, 0], y[:, 1], y[-1] = 2, 0, 0
    return s.requires_grad_(), (y > 0).long() if name in BINARY else y


def both(f, s): return f, torch.autograd.grad(f.sum(), s, retain_graph=True)[0]


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_list_of_weight_two_is_the_list_twice_and_of_weight_zero_none(name, reduction, rng):
    loss, options = LISTS[name]
    s, y = batch(rng, name)
    twice = torch.tensor([0, 0, 2, 3])
    got = both(loss(s, y, weights=torch.tensor([2, 0, 1, 1]), reduction=reduction, **options), s)
    assert_close(got, both(loss(s[twice], y[twice], reduction=reduction, **options), s))
    assert (got[1][1] == 0).all() and got[1][0].abs().max() > 0
    if reduction == "mean": assert_close(loss(s, y, weights=torch.tensor([2e-9, 0, 1e-9, 1e-9], dtype=f64), **options), got[0])


@every_loss
def test_each_loss_is_multiplied_and_what_weighs_nothing_may_be_anything(name, rng):
    loss, options = LISTS[name]
    s, y = batch(rng, name)
    w, mask = torch.tensor([0.5, 3.0, 0.0, 1.0]), torch.tensor([1, 1, 1, 1, 0, 0]).bool()
    each = loss(s, y, mask, reduction="none", **options)
    assert_close(loss(s, y, mask, weights=w, reduction="none", **options), each * w.double())
    broken, grades = s.detach().clone(), y.double()
    broken[2], grades[2] = math.nan, math.nan
    broken.requires_grad_()
    value, slope = both(loss(broken, grades, mask, weights=w, **options), broken)
    assert_close(value, (each * w)[:2].sum() / 3.5)                  # the last list has nothing to order: its weight does not count
    assert slope.isfinite().all() and (slope[2] == 0).all()
    assert loss(s, y, weights=torch.zeros(4), **options) == 0


@every_loss
def test_lists_end_to_end_take_the_weights_of_lists(name, rng):
    loss, options = LISTS[name]
    s, y = torch.randn(12, generator=rng, dtype=f64, requires_grad=True), torch.tensor([2, 0, 1, 3, 0, 1, 0, 2, 2, 0, 1, 0])
    y = (y > 0).long() if name in BINARY else y
    offsets, w = offsets_of([3, 4, 0, 3, 2]), torch.tensor([2.0, 0.0, 5.0, 1.0, 0.25])
    alone = [loss(s[a:b], y[a:b], **options) if b > a + 2 or "k" not in options else loss(s[a:b], y[a:b], offsets=torch.tensor([0, 2]), **options) for a, b in ((0, 3), (7, 10), (10, 12))]
    total = 2 * alone[0] + alone[1] + alone[2] / 4
    broken = s.detach().clone()
    broken[3:7] = math.nan
    for scores in (s, broken.requires_grad_()):
        assert_close(both(loss(scores, y, offsets=offsets, weights=w, **options), scores), both(total / 3.25, s))
    jagged = torch.nested.nested_tensor_from_jagged(s, offsets=offsets)
    assert_close(loss(jagged, y, weights=w, reduction="sum", **options), total)
    at = torch.randperm(12, generator=rng)
    ids = torch.tensor([0, 0, 0, 1, 1, 1, 1, 3, 3, 3, 4, 4])[at]
    mixed = loss(s[at], y[at], offsets=offsets_from(ids=ids), weights=w[[0, 1, 3, 4]], reduction="none", **options)
    assert_close(mixed, torch.stack([2 * alone[0], 0 * alone[0], alone[1], alone[2] / 4]))


def test_permutations_and_classes(rng):
    s, order = torch.randn(3, 4, generator=rng, dtype=f64, requires_grad=True), torch.randn(3, 4, generator=rng).argsort(-1)
    w, twice = torch.tensor([2.0, 0.0, 1.0]), torch.tensor([0, 0, 2])
    for loss in (L.permutation_nll, L.permutation_bce):
        for reduction in ("mean", "sum"):
            got = loss(softsortlib.SoftSort(0.5)(s), order, w, reduction=reduction)
            assert_close(both(got, s), both(loss(softsortlib.SoftSort(0.5)(s[twice]), order[twice], reduction=reduction), s))
        P = softsortlib.soft_permutation(s.flatten(), tau=0.5, offsets=offsets_of([4, 4, 4]))
        assert_close(loss(P, (order + torch.tensor([[0], [4], [8]])).flatten(), w), loss(softsortlib.SoftSort(0.5)(s), order, w))
        with pytest.raises(ValueError, match="weights must be one for each list"): loss(P, (order + torch.tensor([[0], [4], [8]])).flatten(), w[:2])
    for loss in (L.topk_loss, L.zero_one_loss):
        target = torch.tensor([1, -100, 3])
        for goal in (target, torch.nn.functional.one_hot(target.clamp(min=0), 4).bool()):
            for reduction in ("mean", "sum"):
                got = loss(s, goal, weights=w, reduction=reduction)
                assert_close(both(got, s), both(loss(s[twice], goal[twice], reduction=reduction), s))
        with pytest.raises(ValueError, match="weights must be one for each list, \\(3,\\), got \\(3, 4\\)"): loss(s, target, weights=s.abs())


def test_modules_take_weights_at_the_call_and_old_names_stay(rng):
    s, y = batch(rng, "listmle")
    w = torch.tensor([2.0, 0.0, 1.0, 1.0])
    for name, cls in vars(L).items():
        if isinstance(cls, type) and hasattr(cls, "function"): assert "weights" not in cls.defaults, name
    assert_close(L.ListMLELoss(weighting="exp2")(s, y, weights=w), L.listmle_loss(s, y, weighting="exp2", weights=w))
    for loss, module, word in ((L.listmle_loss, L.ListMLELoss, "exp2"), (L.lambda_loss, L.LambdaLoss, "ndcg1"), (L.weighted_kendall_loss, L.WeightedKendallLoss, "equal")):
        want = loss(s, y, weighting=word)
        assert torch.equal(loss(s, y, weights=word), want) and torch.equal(module(weights=word)(s, y), want)
        assert not torch.equal(loss(s, y), want)
    assert_close(L.soft_metric(L.SpearmanLoss(tau=0.5), s, y), 1 - L.spearman_loss(s, y, tau=0.5))


MISTAKES = [
    ([1, 2, 3, 4], TypeError, "weights must be a tensor one for each list"), ("exp2", TypeError, "weights must be a tensor"), (torch.ones(4, 1), ValueError, "got (4, 1): call weights.squeeze(-1)"),
    (torch.ones(5), ValueError, "weights must be one for each list, (4,)"), (torch.tensor([1.0, -1, 0, 0]), ValueError, "weights must be finite and not negative, got -1 to 1"),
    (torch.tensor([1.0, math.nan, 0, 0]), ValueError, "weights must be finite"), (torch.tensor([1.0, math.inf, 0, 0]), ValueError, "weights must be finite"), (torch.ones(4, dtype=torch.complex64), TypeError, "weights must be real"),
]


@pytest.mark.parametrize("weights, kind, says", MISTAKES, ids=range(len(MISTAKES)))
def test_what_is_no_weight_is_refused(weights, kind, says, rng):
    s, y = batch(rng, "spearman")
    for loss in (L.spearman_loss, L.neural_ndcg_loss):
        with pytest.raises(kind, match=re.escape(says)): loss(s, y, weights=weights)


def test_losses_of_whole_places_refuse_weights_of_elements(rng):
    for name in ("neural_ndcg", "approx_ndcg", "pirank", "precision", "recall", "reciprocal_rank", "lambda", "listmle"):
        loss, options = LISTS[name]
        s, y = batch(rng, name)
        with pytest.raises(ValueError, match=f"got \\(4, 6\\): {loss.__name__} takes no weights of elements"): loss(s, y, weights=torch.ones(4, 6), **options)


def test_weights_and_a_group_exclude_each_other(rng):
    s, y = batch(rng, "spearman")
    with pytest.raises(ValueError, match="weights and group exclude each other"): L.spearman_loss(s, y, weights=torch.ones(4), group=object(), tau=0.5)


def test_weights_are_part_of_the_graph(rng):
    s, y = batch(rng, "spearman")
    w = torch.rand(4, generator=rng, dtype=f64, requires_grad=True)
    for reduction in ("mean", "sum", "none"):
        assert torch.autograd.gradcheck(lambda s, w: L.spearman_loss(s, y, tau=0.5, method="sigmoid", weights=w, reduction=reduction), (s, w))


ELEMENTS = ["spearman", "spearman_sigmoid", "kendall", "kendall_sigmoid", "weighted_kendall", "weighted_kendall_sigmoid", "listnet", "listnet_share", "slatk", "average_precision", "quantised_ap", "auc", "auc_sigmoid"]
FREE = {"spearman", "spearman_sigmoid", "kendall", "kendall_sigmoid", "quantised_ap", "auc", "auc_sigmoid"}      # a common factor of the weights of a list changes nothing
every_element = pytest.mark.parametrize("name", ELEMENTS)


def copies_of(w): return torch.arange(len(w)).repeat_interleave(w)


@every_element
@pytest.mark.parametrize("large", [False, True], ids=["all pairs", "sums"])
def test_an_element_of_weight_two_is_the_element_twice_and_of_weight_zero_none(name, large, rng, monkeypatch):
    if large:
        monkeypatch.setattr(L.curves, "_PAIRS", 0)
        monkeypatch.setattr(L.weighted, "_few_pairs", lambda *size: False)
    loss, options = LISTS[name]
    s, y = batch(rng, name, b=2, n=9)
    y[-1] = y[0].flip(0)
    w = torch.tensor([[2, 0, 1, 3, 1, 0, 2, 1, 1], [1, 2, 1, 0, 1, 1, 3, 1, 2]])
    many = [copies_of(row) for row in w]
    want = [loss(s[b][at], y[b][at], **options) for b, at in enumerate(many)]
    assert all(v != 0 for v in want)
    got = both(loss(s, y, weights=w, reduction="none", **options), s)
    close = dict(rtol=1e-9, atol=1e-9) if large else {}
    assert_close(got, both(torch.stack(want), s), **close)
    assert (got[1][w == 0] == 0).all()
    assert_close(loss(s, y, weights=w, **options), torch.stack(want).mean(), **close)
    broken, grades = s.detach().masked_fill(w == 0, math.nan).requires_grad_(), y.double().masked_fill(w == 0, math.nan)
    assert_close(both(loss(broken, grades, weights=w, reduction="none", **options), broken), got)
    flat = both(loss(s.flatten(), y.flatten(), offsets=offsets_of([9, 9]), weights=w.flatten(), reduction="none", **options), s)
    assert_close(flat, got, **close)
    scaled = loss(s, y, weights=w * 1e-6, reduction="none", **options)
    assert torch.allclose(scaled, got[0], rtol=1e-8) == (name in FREE)


@every_element
def test_no_weights_are_weights_of_one_and_masks_hide_them(name, rng):
    loss, options = LISTS[name]
    s, y = batch(rng, name)
    mask = torch.tensor([1, 1, 1, 1, 0, 1]).bool()
    w = torch.ones(4, 6).masked_fill(~mask, math.nan)
    assert_close(both(loss(s, y, mask, weights=w, **options), s), both(loss(s, y, mask, **options), s))
    assert loss(s, y, weights=torch.zeros(4, 6), **options) == 0
    with pytest.raises(ValueError, match="weights must be finite"): loss(s, y, weights=w, **options)


@every_element
def test_derivatives_with_weights_of_elements(name, rng):
    loss, options = LISTS[name]
    s, y = batch(rng, name, b=2)
    y[1, 1] = 1
    w = torch.rand(2, 6, generator=rng, dtype=f64).add(0.2).requires_grad_()
    if name == "slatk": return                                   # its weight of the threshold is a constant of the gradient
    assert torch.autograd.gradcheck(lambda s, w: loss(s, y, weights=w, reduction="none", **options), (s, w))
    assert torch.autograd.gradgradcheck(lambda s: loss(s, y, weights=w.detach(), reduction="none", **options), s)


def test_as_many_items_as_lists_are_asked_about(rng):
    s, y, w = torch.randn(3, generator=rng), torch.tensor([0, 1, 1]), torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="weights must be of lists or of elements, got \\(3,\\), and there are as many of both"): L.auc_loss(s, y, offsets=offsets_of([0, 3, 0]), weights=w)
    assert L.precision_loss(s, y, offsets=offsets_of([0, 3, 0]), weights=w) == L.precision_loss(s, y)
    square = torch.randn(3, 3, generator=rng)
    assert_close(L.auc_loss(square, y.expand(3, 3), weights=w, reduction="none"), L.auc_loss(square, y.expand(3, 3), reduction="none") * w)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_make_no_order_of_targets_that_are_all_the_same(dtype, rng):
    "Rounded weights of an undefined set left a correlation of noise with noise: one set in four hundred was 1 in place of 0."
    for n in range(2, 12):
        s, w = torch.randn(200, 50, generator=rng, dtype=dtype), torch.rand(200, 50, generator=rng, dtype=dtype) + 0.05
        w[:, ::7] = 0
        mask, y = (torch.arange(50) < n).expand(200, 50), torch.full((200, 50), 3)
        assert not L.spearman_loss(s, y, mask, weights=w, reduction="none").any()


@pytest.mark.parametrize("name", ELEMENTS)
def test_the_weight_of_an_absent_element_has_no_gradient_in_any_layout(name, rng):
    f, options = LISTS[name]
    lengths = torch.tensor([3, 40, 5, 4, 41, 6, 3])
    offsets, n = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), int(lengths.sum())
    s, w = torch.randn(n, generator=rng, dtype=torch.float64), torch.rand(n, generator=rng, dtype=torch.float64) + 0.1
    y = torch.randint(0, 2 if name in BINARY else 4, (n,), generator=rng)
    w[::4] = 0
    w.requires_grad_()
    lists, = torch.autograd.grad(f(s, y, offsets=offsets, weights=w, reduction="sum", **options), w)
    each = [f(s[a:b], y[a:b], weights=w[a:b], reduction="sum", **options) for a, b in zip(offsets[:-1], offsets[1:])]
    alone, = torch.autograd.grad(sum(each), w)
    assert_close(lists, alone)
    assert lists.any() and not lists[::4].any()
