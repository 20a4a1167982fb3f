"""One table of conventions for all losses of scores and relevance (the table of nbs/losses/01_orders.ipynb), and every loss held to it."""
import math
from typing import Any, Callable, NamedTuple

import pytest
import torch
from torch.testing import assert_close

from softsortlib import losses as L
from softsortlib.losses.pairs import PAIR_WEIGHTS
from softsortlib.rowwise.softsort import SoftSort

f64 = torch.float64


def differ(y): return y.max() > y.min()
def some(y): return bool((y > 0).any())
def both(y): return some(y) and bool((y <= 0).any())


class Row(NamedTuple):
    "A loss, a smooth case of its options, when a set counts, and what its derivatives are."
    f: Callable
    options: dict[str, Any]
    counts: Callable
    negative: bool = True           # whether grades may be negative
    gradient: bool = True           # whether its gradient is the derivative of its value: no weight in it is held constant
    smooth: bool = True             # whether it sorts by something that has a slope where scores are tied: SoftSort has none, NeuralSort has


TABLE = {
    "spearman": Row(L.spearman_loss, {}, differ, smooth=False),
    "kendall": Row(L.kendall_loss, {}, differ),
    "weighted_kendall": Row(L.weighted_kendall_loss, {}, differ),
    "weighted_kendall_sigmoid": Row(L.weighted_kendall_loss, dict(kind="sigmoid", weighting="logarithmic"), differ),
    "listnet": Row(L.listnet_loss, {}, differ),
    "listnet_share": Row(L.listnet_loss, dict(target="share"), differ, negative=False),
    "listmle": Row(L.listmle_loss, {}, differ),
    "p_listmle": Row(L.listmle_loss, dict(weighting="exp2"), differ),
    "listmle_log2": Row(L.listmle_loss, dict(weighting="log2"), differ),
    "slatk": Row(L.slatk_loss, dict(k=2), some, gradient=False, negative=False),
    **{f"lambda_{w}": Row(L.lambda_loss, dict(weighting=w, k=3), differ, negative=False) for w in PAIR_WEIGHTS},
    "approx_ndcg": Row(L.approx_ndcg_loss, {}, some, negative=False),
    "neural_ndcg": Row(L.neural_ndcg_loss, dict(iterations=5), some, negative=False, smooth=False),
    "pirank": Row(L.pirank_loss, {}, some, negative=False),
    "pirank@2": Row(L.pirank_loss, dict(k=2, method="softsort"), some, negative=False, smooth=False),
    "pirank_hard": Row(L.pirank_loss, dict(straight_through=True), some, negative=False, gradient=False),
    "precision": Row(L.precision_loss, dict(k=2, iterations=5), some, smooth=False, negative=False),
    "recall": Row(L.recall_loss, dict(k=2, iterations=5), some, smooth=False, negative=False),
    "average_precision": Row(L.average_precision_loss, {}, some, negative=False),
    "quantised_ap": Row(L.quantised_ap_loss, dict(bins=7, span=(-4.0, 4.0)), some, negative=False),
    "auc": Row(L.auc_loss, {}, both, negative=False),
    "auc_sigmoid": Row(L.auc_loss, dict(kind="sigmoid"), both, negative=False),
    "reciprocal_rank": Row(L.reciprocal_rank_loss, {}, some, smooth=False, negative=False),
    "reciprocal_rank@2": Row(L.reciprocal_rank_loss, dict(k=2), some, smooth=False, negative=False),
}
every = pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
MASK = torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0], [1, 1, 0, 1, 0, 1], [0] * 6, [1, 0, 0, 0, 0, 0]], dtype=torch.bool)


BINARY = {L.slatk_loss, L.precision_loss, L.recall_loss, L.average_precision_loss, L.quantised_ap_loss, L.auc_loss, L.reciprocal_rank_loss}


def binary(row): return row.f in BINARY or row.options.get("weighting") == "precision"


def grades_of(row, y):
    "Grades as the loss takes them: zeros and ones for one that knows two kinds of elements."
    return (y > 0).to(y.dtype) if binary(row) else y


def batch(rng, b=5, n=6, row=None):
    s = torch.randn(b, n, generator=rng, dtype=f64)
    y = torch.randint(0, 4, (b, n), generator=rng).double()
    y[:, 0], y[:, 1], y[:, 3] = 2, 0, 1
    return s, y if row is None else grades_of(row, y)


def test_every_loss_of_scores_and_relevance_is_in_the_table():
    takes = {cls.function for cls in vars(L).values() if isinstance(cls, type) and hasattr(cls, "function")} - {L.permutation_nll, L.permutation_bce, L.topk_loss, L.zero_one_loss}
    assert takes == {row.f for row in TABLE.values()}


@every
def test_padding_has_no_influence_and_no_gradient(row, rng):
    s, y = batch(rng, row=row)
    hidden = s.masked_fill(~MASK, math.nan).requires_grad_()
    got = row.f(hidden, y.masked_fill(~MASK, math.nan), MASK, reduction="none", **row.options)
    g, = torch.autograd.grad(got.sum(), hidden)
    for i in range(3): assert_close(got[i], row.f(s[i][MASK[i]], y[i][MASK[i]], **row.options))
    assert g.isfinite().all() and (g[~MASK] == 0).all() and (g[:3].abs().sum(-1) > 0).all()


@every
def test_a_set_counts_when_the_table_says_so(row, rng):
    s, y = batch(rng, 7, row=row)
    y[1], y[2], y[3] = 0, 1, torch.tensor([1.0, 0, 0, 0, 0, 0])
    mask = torch.ones(7, 6, dtype=torch.bool)
    mask[4], mask[5] = False, torch.tensor([False, False, False, False, True, False])
    y[5, 4] = 0
    s.requires_grad_()
    each = row.f(s, y, mask, reduction="none", **row.options)
    counts = torch.tensor([bool(m.any()) and bool(row.counts(v[m])) for v, m in zip(y, mask)])
    assert (each[~counts] == 0).all()
    assert_close(row.f(s, y, mask, **row.options), each[counts].mean())
    assert_close(row.f(s, y, mask, reduction="sum", **row.options), each.sum())
    g, = torch.autograd.grad(each.sum(), s)
    assert g.isfinite().all() and (g[~counts] == 0).all()
    assert row.f(s[1:2], y[1:2], **row.options) == 0                       # none that counts: zero, not a number


@every
def test_grades_that_are_negative(row, rng):
    s, y = batch(rng, row=row)
    if row.negative: assert row.f(s, y - 1, **row.options).isfinite()
    elif binary(row):
        with pytest.raises(ValueError, match=r"relevance must be 0 or 1 here, got the values -1, 0: leave padding out with mask=relevance >= 0"): row.f(s, y - 1, **row.options)
        with pytest.raises(ValueError, match=r"got the values 1, 2: say from which grade on an element is relevant, such as relevance >= 2"): row.f(s, y + 1, **row.options)
    else:
        with pytest.raises(ValueError, match="relevance must be finite and not negative.*mask=relevance >= 0"): row.f(s, y - 1, **row.options)


@every
def test_the_order_of_the_input_does_not_matter_not_even_with_ties(row, rng):
    s, y = batch(rng, row=row)
    at = torch.randperm(6, generator=rng)
    for scores in (s, s.round(), torch.zeros_like(s)): assert_close(row.f(scores[:, at], y[:, at], **row.options), row.f(scores, y, **row.options))


@every
def test_learning_can_begin_where_all_scores_are_equal(row, rng):
    _, y = batch(rng, row=row)
    s = torch.zeros(5, 6, dtype=f64, requires_grad=True)
    options = row.options if row.smooth else {**row.options, "method": "neuralsort"}
    g, = torch.autograd.grad(row.f(s, y, **options), s)
    assert g.isfinite().all() and g.abs().max() > 1e-6


@every
def test_derivatives(row, rng):
    s, y = batch(rng, 2, row=row)
    s.requires_grad_()
    def f(s): return row.f(s, y, MASK[:2], reduction="none", **row.options)
    if not row.gradient: return                                       # see the tests of what is held constant
    assert torch.autograd.gradcheck(f, s)
    assert torch.autograd.gradgradcheck(f, s)


def test_the_held_constants_of_slatk(rng):
    "The threshold is a constant of the gradient; with fixed_weights so is the weight."
    s, y = batch(rng)
    y = (y > 0).double()
    s.requires_grad_()
    for fixed in (False, True):
        beta = s.detach().sort(-1, descending=True).values[:, 1:2]
        weight = ((s - beta) / 0.7).sigmoid()
        terms = (weight.detach() if fixed else weight) * -(s / 0.5).log_softmax(-1)
        want = ((terms * (y > 0)).sum(-1) / (y > 0).sum(-1)).mean()
        got = L.slatk_loss(s, y, k=2, tau=0.5, weight_tau=0.7, fixed_weights=fixed)
        assert_close(got, want)
        assert_close(*(torch.autograd.grad(v, s)[0] for v in (got, want)))


@every
def test_half_types_and_numbers_of_any_kind(row, rng):
    s, y = batch(rng, row=row)
    want = row.f(s, y, reduction="none", **row.options)
    for dtype, atol in ((torch.float32, 1e-4), (torch.bfloat16, 0.3), (torch.float16, 0.05)):
        got = row.f(s.to(dtype), y, reduction="none", **row.options)
        assert got.dtype == dtype
        assert_close(got.double(), row.f(s.to(dtype).double(), y, reduction="none", **row.options), atol=atol / 10, rtol=1e-2)
    assert_close(row.f(s, y.long(), reduction="none", **row.options), want)




LONG = {
    "lambda": (lambda s, y, h: L.lambda_loss(s, y, weighting=h), ["ndcg1", "ndcg2++", "precision"]),
    "weighted_kendall": (lambda s, y, h: L.weighted_kendall_loss(s, y, kind=h, tau=0.3), ["sigmoid", "logistic"]),
    "auc": (lambda s, y, h: L.auc_loss(s, y, kind=h, tau=0.3), ["sigmoid", "logistic"]),
    "average_precision": (lambda s, y, h: L.average_precision_loss(s, y, tau=h), [0.01, 1.0]),
}


def by_pairs(name, s, y, how):
    "What LONG should give, from the matrix of all pairs."
    z, w = s[:, None] - s, y[:, None] > y
    step = {"sigmoid": lambda u: (-u).sigmoid(), "logistic": lambda u: torch.nn.functional.softplus(-u) / math.log(2)}
    if name == "average_precision":
        above = (-z / how).sigmoid()
        return 1 - ((0.5 + above[y > 0][:, y > 0].sum(-1)) / (0.5 + above[y > 0].sum(-1))).mean()
    if name == "auc": return step[how](z[y > 0][:, y <= 0] / 0.3).mean()
    if name == "weighted_kendall":
        rank = 0.5 + (y > y[:, None]).sum(-1) + (y == y[:, None]).sum(-1).to(s.dtype) / 2
        w = w * (1 / rank[:, None] + 1 / rank)
        return (w * step[how](z / 0.3)).sum() / w.sum()
    n = len(s)
    order = s.detach().argsort(descending=True)
    r = torch.empty_like(order).scatter(0, order, torch.arange(1, n + 1)).to(s.dtype)
    d, gain = 1 / (1 + r).log2(), 2 ** y - 1
    g = gain / (gain.sort(descending=True).values / torch.arange(2, n + 2).to(s.dtype).log2()).sum()
    far = (r[:, None] - r).abs().clamp(min=1)
    change = (g[:, None] - g).abs()
    rho = 1 / (1 + far).log2() - 1 / (2 + far).log2()
    weights = {"ndcg1": (g * d)[:, None].expand(n, n), "ndcg2++": w * change * (10 * rho + (d[:, None] - d).abs()),
               "precision": torch.zeros(n, n, dtype=s.dtype)}[how]                       # with k = n no exchange changes the precision
    return (weights * step["logistic"](z)).sum()


@pytest.mark.parametrize("name, how", [(name, how) for name, (_, hows) in LONG.items() for how in hows])
@pytest.mark.parametrize("n", [40, 700, 1500])
def test_long_lists_are_the_sum_over_pairs(name, how, n, rng):
    s = torch.randn(n, generator=rng, dtype=f64).requires_grad_()
    y = torch.randint(0, 4, (n,), generator=rng).double()
    if name in ("auc", "average_precision") or how == "precision": y = (y > 1).double()
    got, want = LONG[name][0](s, y, how), by_pairs(name, s, y, how)
    assert_close(got, want, rtol=1e-10, atol=1e-12)
    assert_close(*(torch.autograd.grad(v, s)[0] if v.requires_grad else torch.zeros(1) for v in (got, want)), rtol=1e-8, atol=1e-13)
    single = LONG[name][0](s.detach().float(), y, how)
    assert_close(single.double(), want.detach(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("f, options", [(L.lambda_loss, {}), (L.weighted_kendall_loss, {}), (L.auc_loss, {}), (L.average_precision_loss, {})])
def test_long_lists_have_second_derivatives_and_vmap(f, options, rng):
    n = 600
    s = torch.stack([torch.randperm(n, generator=rng) for _ in range(2)]).double().div(100).requires_grad_()      # far enough apart: no step changes a rank
    y = torch.randint(0, 2 if f in BINARY else 3, (2, n), generator=rng)
    v = torch.randn(2, n, generator=rng, dtype=f64)
    g, = torch.autograd.grad(f(s, y, reduction="sum", **options), s, create_graph=True)
    product, = torch.autograd.grad((g * v).sum(), s)
    h = 1e-5
    def slope(s): return torch.autograd.grad(f(s.requires_grad_(), y, reduction="sum", **options), s)[0]
    assert_close(product, (slope((s + h * v).detach()) - slope((s - h * v).detach())) / (2 * h), rtol=1e-4, atol=1e-7)
    each = torch.func.vmap(torch.func.grad(lambda s, y: f(s, y, **options)))(s.detach(), y)
    assert_close(each, g.detach())


def test_lambda_loss_on_long_lists_refuses_a_third_derivative(rng):
    s = torch.randn(600, generator=rng, dtype=f64).requires_grad_()
    g, = torch.autograd.grad(L.lambda_loss(s, torch.arange(600) % 3), s, create_graph=True)
    h, = torch.autograd.grad(g.square().sum(), s, create_graph=True)
    with pytest.raises(NotImplementedError, match="twice differentiable"): torch.autograd.grad(h.sum(), s)


@pytest.mark.parametrize("call, text", [
    (lambda s, y: L.listnet_loss(s, y, target="uniform"), "target must be"), (lambda s, y: L.listmle_loss(s, y, weighting="linear"), "weighting must be"),
    (lambda s, y: L.lambda_loss(s, y, weighting="map"), "weighting must be"), (lambda s, y: L.lambda_loss(s, y, k=0), "k must be"), (lambda s, y: L.lambda_loss(s, y, gain="log"), "gain must be"),
    (lambda s, y: L.slatk_loss(s, y, k=0), "k must be"), (lambda s, y: L.slatk_loss(s, y, weight_tau=0.0), "tau must"),
    (lambda s, y: L.quantised_ap_loss(s, y, bins=1), "bins must be"), (lambda s, y: L.quantised_ap_loss(s, y > 0, span=(1, 0)), "span must be"),
    (lambda s, y: L.auc_loss(s, y, kind="hinge"), "kind must be"), (lambda s, y: L.weighted_kendall_loss(s, y, weighting="top"), "weighting must be"),
    (lambda s, y: L.weighted_kendall_loss(s, y, kind="hinge"), "kind must be"), (lambda s, y: L.reciprocal_rank_loss(s, y, k=0), "k must be"),
    (lambda s, y: L.pirank_loss(s, y, gain="log"), "gain must be"),
    (lambda s, y: L.permutation_nll(SoftSort(0.3)(s), s.argsort(-1), tau=0.3), "sort scores of a group"), (lambda s, y: L.permutation_nll(SoftSort(0.3)(s), s.argsort(-1), method="lapsum"), "sort scores of a group")])
def test_errors_name_the_argument(call, text, rng):
    with pytest.raises(ValueError, match=text): call(*batch(rng))


@every
def test_every_tau_is_checked(row, rng):
    if row.f is L.quantised_ap_loss: pytest.skip("has no temperature")
    for tau, error in ((0.0, ValueError), (-1.0, ValueError), ("1", TypeError), (torch.tensor(1), TypeError)):
        with pytest.raises(error, match="tau must"): row.f(*batch(rng, row=row), **{**row.options, "tau": tau})
    s, y = batch(rng, row=row)
    tau = torch.tensor([0.5, 1.0, 2.0, 0.7, 1.3], dtype=f64, requires_grad=True)
    each = row.f(s, y, tau=tau, reduction="none", **row.options)
    for i in range(5): assert_close(each[i], row.f(s[i], y[i], tau=tau[i].item(), **row.options))
    if each.requires_grad: assert torch.autograd.grad(each.sum(), tau)[0].isfinite().all()


LENGTHS = [3, 0, 6, 1, 6, 2, 12]


@every
def test_lists_end_to_end(row, rng):
    "The losses of lists are those of padded sets, without the padding: values, reductions, gradients; empty lists do not count."
    lengths = torch.tensor(LENGTHS)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    mask = torch.arange(12) < lengths[:, None]
    s = torch.randn(int(lengths.sum()), generator=rng, dtype=f64).requires_grad_()
    y = grades_of(row, torch.randint(0, 4, s.shape, generator=rng).double())
    for reduction in ("none", "mean", "sum"):
        options = {**row.options, "reduction": reduction}
        padded, grades = (torch.zeros(7, 12, dtype=f64).masked_scatter(mask, v) for v in (s, y))
        got, want = row.f(s, y, offsets=offsets, **options), row.f(padded, grades, mask, **options)
        assert_close(got, want, rtol=1e-12, atol=1e-12)
        w = torch.randn(got.shape, generator=rng, dtype=f64)
        assert_close(*(torch.autograd.grad((v * w).sum(), s)[0] for v in (got, want)), rtol=1e-10, atol=1e-12)
    jagged, of_grades = (torch.nested.nested_tensor_from_jagged(v, offsets) for v in (s, y))
    assert_close(row.f(jagged, of_grades, **row.options), row.f(s, y, None, offsets, **row.options))
    changed = torch.where(torch.arange(len(s)) < offsets[4], s, -s).detach()
    assert_close(row.f(changed, y, offsets=offsets, **{**row.options, "reduction": "none"})[:2], row.f(s, y, offsets=offsets, **{**row.options, "reduction": "none"})[:2])


@every
def test_a_temperature_for_each_list(row, rng):
    if "quantised" in row.f.__name__: pytest.skip("it has bins, not a temperature")
    offsets, tau = torch.tensor([0, 4, 4, 10, 14]), torch.tensor([0.3, 1.0, 2.0, 0.7], dtype=f64)
    s, y = torch.randn(14, generator=rng, dtype=f64), grades_of(row, torch.randint(0, 4, (14,), generator=rng).double())
    got = row.f(s, y, offsets=offsets, **{**row.options, "tau": tau, "reduction": "none"})
    for b in (0, 2, 3):
        part = slice(offsets[b], offsets[b + 1])
        assert_close(got[b], row.f(s[part], y[part], **{**row.options, "tau": tau[b].item(), "reduction": "none"}), rtol=1e-10, atol=1e-12)


def test_wrong_lists():
    s, offsets = torch.arange(5.0), torch.tensor([0, 2, 5])
    with pytest.raises(ValueError, match="mask and offsets exclude each other"): L.spearman_loss(s, s, s > 1, offsets)
    with pytest.raises(ValueError, match="offsets must end with 5"): L.spearman_loss(s, s, offsets=offsets[:2])
    with pytest.raises(ValueError, match="relevance must be a tensor of the scores' shape"): L.spearman_loss(s, s[:3], offsets=offsets)
    with pytest.raises(ValueError, match="k must be in 1..3"): L.precision_loss(s, s, offsets=offsets, k=4)
    with pytest.raises(ValueError, match="reduction must be"): L.spearman_loss(s, s, offsets=offsets, reduction="median")
    jagged = torch.nested.nested_tensor_from_jagged(s, offsets)
    with pytest.raises(ValueError, match="nested tensors with other offsets"): L.spearman_loss(jagged, torch.nested.nested_tensor_from_jagged(s, torch.tensor([0, 1, 5])))
    with pytest.raises(ValueError, match="bring their offsets"): L.spearman_loss(jagged, s, offsets=offsets)
    assert L.SpearmanLoss()(jagged, s) == L.SpearmanLoss()(s, s, offsets=offsets)
    nothing = torch.zeros(0, requires_grad=True)
    loss = L.approx_ndcg_loss(nothing, nothing.detach(), offsets=torch.tensor([0, 0]))
    loss.backward()
    assert loss == 0


@pytest.mark.parametrize("loss", (L.permutation_nll, L.permutation_bce), ids=("nll", "bce"))
def test_permutations_of_lists(loss, rng):
    from softsortlib.functional import soft_permutation
    s, y = torch.randn(12, generator=rng, dtype=f64).requires_grad_(), torch.randn(12, generator=rng, dtype=f64)
    offsets = torch.tensor([0, 3, 3, 8, 11, 12])
    target = L.ideal_order(y, offsets=offsets)
    parts = [slice(a, b) for a, b in zip(offsets.tolist(), offsets[1:].tolist()) if b > a]
    want = torch.stack([loss(soft_permutation(s[p], tau=0.5), y[p].argsort()) for p in parts])
    P = soft_permutation(s, tau=0.5, offsets=offsets)
    each = loss(P, target, reduction="none")
    assert_close(each[offsets.diff() > 0], want)
    assert each[1] == 0
    assert_close(loss(P, target), want.mean())
    assert_close(*(torch.autograd.grad(v.sum(), s)[0] for v in (loss(P, target, reduction="sum"), want)))
