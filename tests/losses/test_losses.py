"""Losses: torchmetrics in the hard limit, padding, ties, reductions, dtypes, modules, gradients, descent to the hard optimum."""
import math

import pytest
import torch
from torch.testing import assert_close

from softsortlib import losses as L
from softsortlib.core.operators import Operator
from softsortlib.core.permutation import SoftPermutation, permutation_matrix
from softsortlib.core.rank_operators import RankOperator
from softsortlib.functional import soft_permutation, tau_schedule
from softsortlib.lab.data import optional
from softsortlib.losses import classification as C
from softsortlib.losses.contract import Loss
from softsortlib.losses.weighted import graded_pairs_plain
from softsortlib.rowwise.softsort import SoftSort

METHODS = [m for m in ("softsort", "neuralsort", "odd_even") if m in Operator.names]
RANKS = METHODS[:1] + [m for m in ("sigmoid", "laplace", "gaussian") if m in RankOperator.names]
SET_LOSSES = {  # losses of scores and relevance, with the options of a smooth case
    "spearman": (L.spearman_loss, {}), "kendall": (L.kendall_loss, {}), "kendall_sigmoid": (L.kendall_loss, dict(kind="sigmoid")),
    "approx_ndcg": (L.approx_ndcg_loss, {}), "approx_ndcg@3": (L.approx_ndcg_loss, dict(k=3, method="softsort")),
    "neural_ndcg": (L.neural_ndcg_loss, {}), "neural_ndcg@2": (L.neural_ndcg_loss, dict(k=2, iterations=0)),
    "precision@2": (L.precision_loss, dict(k=2, iterations=5)), "recall@3": (L.recall_loss, dict(k=3, iterations=5)), "recall_lapsum": (L.recall_loss, dict(k=3, method="lapsum"))}
every = pytest.mark.parametrize("f, options", SET_LOSSES.values(), ids=SET_LOSSES)


@pytest.fixture(scope="module")
def metrics():
    try: return optional("torchmetrics.functional")
    except ImportError as e: pytest.skip(str(e))


def batch(rng, b=40, n=7, grades=4):
    x = torch.stack([torch.randperm(50, generator=rng)[:n] for _ in range(b)]).double() - 25     # distinct, gaps of at least one
    y = torch.randint(0, grades, (b, n), generator=rng).double()
    y[:, 0], y[:, 1] = 0, 1                                                                       # never all equal, something relevant
    return x, y


BINARY = {L.slatk_loss, L.precision_loss, L.recall_loss, L.average_precision_loss, L.quantised_ap_loss, L.auc_loss, L.reciprocal_rank_loss}


def grades_of(f, y):
    "Grades as the loss takes them: zeros and ones for one that knows two kinds of elements."
    return (y > 0).to(y.dtype) if f in BINARY else y


def cold(method, tau=1e-3): return 1e-6 * tau if method == "odd_even" else tau                       # its sigmoid has heavy tails


def each(metric, x, y, **kw): return torch.stack([metric(a, b, **kw) for a, b in zip(x.exp(), y)]).double()


@pytest.mark.parametrize("method", RANKS)
def test_spearman(method, metrics, rng):
    x, y = batch(rng)
    assert_close(L.spearman_loss(x, y, method=method, tau=1e-3, reduction="none"), 1 - metrics.spearman_corrcoef(x.T, y.T).double(), atol=1e-5, rtol=0)
    tied = (x / 10).round()                                                                       # ties in the scores, too
    tied[(tied == tied[:, :1]).all(-1), 0] += 1
    assert_close(L.spearman_loss(tied, y, method=method, tau=1e-4, reduction="none"), 1 - metrics.spearman_corrcoef(tied.T, y.T).double(), atol=1e-5, rtol=0)


def test_kendall(metrics, rng):
    x, _ = batch(rng)
    y = torch.randn(40, 7, generator=rng, dtype=torch.float64)
    want = (1 - metrics.kendall_rank_corrcoef(x.T, y.T, variant="a").double()) / 2
    assert_close(L.kendall_loss(x, y, kind="sigmoid", tau=1e-3, reduction="none"), want, atol=1e-6, rtol=0)
    for tau in (1e-3, 0.1, 1.0, 30.0, 1e4): assert (L.kendall_loss(x, y, tau=tau, reduction="none") >= want - 1e-6).all()


@pytest.mark.parametrize("kind", ["logistic", "sigmoid"])
@pytest.mark.parametrize("grades", [2, 5, 10**6])
def test_kendall_without_the_pairs(kind, grades, rng):
    "Prop L1.5: many scores against the pairs of double precision, values and gradients, with padding and ties."
    y = torch.randint(grades, (2, 800), generator=rng)
    mask = torch.rand(2, 800, generator=rng) < 0.8
    for dtype, tol in ((torch.float32, 1e-5), (torch.float64, 1e-11)):
        x = torch.randn(2, 800, generator=rng).mul(4).round().div(4).to(dtype).requires_grad_()
        exact = x.detach().double().requires_grad_()
        for tau in (1e-3, 0.3, 100.0):
            got = L.kendall_loss(x, y, mask, tau=tau, kind=kind, reduction="none")
            pairs = (y[..., None] > y[..., None, :]) & mask[..., None] & mask[..., None, :]
            want = graded_pairs_plain(exact, y.double(), mask / 2, tau, kind) / pairs.sum((-2, -1))
            assert got.dtype == dtype and ((got - want).abs() <= tol * want.abs()).all()
            g, h = torch.autograd.grad(got.sum(), x)[0], torch.autograd.grad(want.sum(), exact)[0]
            assert (g - h).abs().max() <= tol * h.abs().max()


def test_kendall_leaves_tied_pairs_out_and_counts_tied_scores_half(rng):
    x, y = torch.randint(0, 4, (60, 7), generator=rng).double(), torch.randint(0, 3, (60, 7), generator=rng).double()
    got = L.kendall_loss(x, y, kind="sigmoid", tau=1e-3, reduction="none")
    for a, b, g in zip(x.tolist(), y.tolist(), got.tolist()):
        pairs = [(a[i], a[j]) for i in range(7) for j in range(7) if b[i] > b[j]]
        assert g == pytest.approx(sum((p < q) + 0.5 * (p == q) for p, q in pairs) / max(1, len(pairs)))


@pytest.mark.parametrize("k", [1, 2, 5, 7, None])
@pytest.mark.parametrize("f, method", [(L.approx_ndcg_loss, m) for m in RANKS] + [(L.neural_ndcg_loss, m) for m in METHODS])
def test_ndcg(f, method, k, metrics, rng):
    x, y = batch(rng)
    ndcg = optional("torchmetrics.functional.retrieval").retrieval_normalized_dcg
    assert_close(f(x, y, k=k, gain="linear", method=method, tau=cold(method), reduction="none"), 1 - each(ndcg, x, y, top_k=k), atol=2e-6, rtol=0)
    assert_close(f(x, y, k=k, method=method, tau=cold(method), reduction="none"), 1 - each(ndcg, x, 2 ** y - 1, top_k=k), atol=2e-6, rtol=0)


def test_neural_ndcg_is_exact_with_tied_scores(metrics, rng):
    "Rows of tied elements average their gains, which is how torchmetrics treats ties."
    x, y = torch.randint(0, 3, (40, 7), generator=rng).double(), batch(rng)[1]
    ndcg = optional("torchmetrics.functional.retrieval").retrieval_normalized_dcg
    for k in (2, None): assert_close(L.neural_ndcg_loss(x, y, k=k, gain="linear", tau=1e-3, reduction="none"), 1 - each(ndcg, x, y, top_k=k), atol=2e-6, rtol=0)


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("method", METHODS + ["lapsum"])
def test_precision_and_recall(method, k, metrics, rng):
    x, y = batch(rng, grades=2)
    R = optional("torchmetrics.functional.retrieval")
    assert_close(L.precision_loss(x, y, k=k, method=method, tau=cold(method), reduction="none"), 1 - each(R.retrieval_precision, x, y.long(), top_k=k), atol=1e-6, rtol=0)
    assert_close(L.recall_loss(x, y, k=k, method=method, tau=cold(method), reduction="none"), 1 - each(R.retrieval_recall, x, y.long(), top_k=k), atol=1e-6, rtol=0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [1, 2, 5])
def test_classification(method, k, metrics, rng):
    logits, target = torch.randn(200, 9, generator=rng, dtype=torch.float64), torch.randint(0, 9, (200,), generator=rng)
    accuracy = lambda top_k: metrics.classification.multiclass_accuracy(logits, target, 9, average="micro", top_k=top_k).double()
    close = lambda a, b: assert_close(a, b, atol=2e-3, rtol=0)
    close((-C.topk_loss(logits, target, k=k, method=method, tau=cold(method, 1e-5), reduction="none")).exp().mean(), accuracy(k))
    close(C.zero_one_loss(logits, target, k=k, method=method, tau=cold(method, 1e-5), kind="ramp"), 1 - accuracy(k))
    hinge = C.zero_one_loss(logits, target, k=k, method=method, tau=cold(method, 1e-5), reduction="none")
    above = (logits > logits.gather(-1, target[:, None])).sum(-1)
    close(hinge, (above - k + 1).clamp(min=0).double())


def test_several_labels_and_several_k(rng):
    logits = torch.randn(50, 6, generator=rng, dtype=torch.float64)
    true = torch.rand(50, 6, generator=rng) < 0.4
    true[0] = False
    P = soft_permutation(logits, descending=True, tau=0.5).to_dense()
    for k, w in ((3, [1, 1, 1, 0, 0, 0]), ((0.5, 0.2, 0.3), [1, 0.5, 0.3, 0, 0, 0])):
        chance = (P * torch.tensor(w).to(P.dtype)[:, None]).sum(-2).clamp(max=1)
        want = (-chance.log() * true).sum(-1) / true.sum(-1).clamp(min=1)
        assert_close(C.topk_loss(logits, true, k=k, tau=0.5, reduction="none"), want)
        assert_close(C.topk_loss(logits, true, k=k, tau=0.5), want[true.any(-1)].mean())
    rank = (logits[:, :, None] < logits[:, None, :]).sum(-1) + 1
    want = ((rank - 2).clamp(min=0).double() * true).sum(-1) / true.sum(-1).clamp(min=1)
    assert_close(C.zero_one_loss(logits, true, k=2, tau=1e-6, reduction="none"), want, atol=1e-4, rtol=0)


def test_cross_entropy_is_the_first_row_and_stays_finite(rng):
    logits, target = 1e4 * torch.randn(20, 6, generator=rng), torch.randint(0, 6, (20,), generator=rng)
    assert_close(C.topk_loss(logits, target), torch.nn.functional.cross_entropy(logits, target))
    assert C.TopKLoss(k=2)(logits, target).isfinite()


@every
def test_a_padded_set_is_the_set_without_padding(f, options, rng):
    x, y = batch(rng, b=5)
    y = grades_of(f, y)
    mask = torch.tensor([[1] * 7, [1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 1, 0, 1], [1, 1, 1, 0, 0, 0, 1], [0] * 7], dtype=torch.bool)
    X = (x / 10).masked_fill(~mask, math.nan).requires_grad_()
    Y = y.masked_fill(~mask, math.nan)
    got = f(X, Y, mask, reduction="none", **options)
    g, = torch.autograd.grad(got.sum(), X)
    for i in range(4): assert_close(got[i], f((x / 10)[i][mask[i]], y[i][mask[i]], **options))
    assert got[4] == 0 and g.isfinite().all() and (g[~mask] == 0).all() and g[:4].abs().sum() > 0


@every
def test_undefined_sets_and_reductions(f, options, rng):
    x, y = batch(rng, b=6)
    y = grades_of(f, y)
    x, y = (x / 10).requires_grad_(), y.clone()
    y[2] = 0
    each = f(x, y, reduction="none", **options)
    defined = torch.arange(6) != 2
    assert each.shape == (6,) and (each[~defined] == 0).all()
    assert_close(f(x, y, **options), each[defined].mean()); assert_close(f(x, y, reduction="sum", **options), each.sum())
    assert torch.autograd.grad(f(x, y, **options), x)[0].isfinite().all()
    zero = f(x[2:3], y[2:3], **options)                                                           # nothing but undefined sets
    assert zero.isfinite() and torch.autograd.grad(zero, x)[0].isfinite().all()
    with pytest.raises(ValueError, match="reduction"): f(x, y, reduction="average", **options)
    with pytest.raises(ValueError, match="relevance must be"): f(x, y[:, :2], **options)
    with pytest.raises(TypeError, match="relevance must be"): f(x, [1, 2], **options)
    with pytest.raises(TypeError, match="floating point"): f(x.long(), y, **options)


@every
def test_shapes_dtypes_gradients(f, options, rng):
    x, y = batch(rng, b=6)
    y = grades_of(f, y)
    x, y = (x / 10).reshape(2, 3, 7), y.reshape(2, 3, 7)
    want = f(x, y, reduction="none", **options)
    assert want.shape == (2, 3)
    assert_close(f(x[0, 1], y[0, 1], **options), want[0, 1])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        got = f(x.to(dtype), y, reduction="none", **options)
        assert got.dtype == dtype
        assert_close(got.double(), want, **(dict(atol=3e-2, rtol=3e-2) if dtype.itemsize == 2 else dict(atol=1e-5, rtol=1e-5)))
    assert_close(f(x, y.long(), **options), f(x, y, **options)); assert_close(f(x, y > 0, **options), f(x, (y > 0).double(), **options))
    assert torch.autograd.gradcheck(lambda x: f(x, y, reduction="none", **options), x.requires_grad_())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_permutation_losses(method, tied, rng):
    x, y = batch(rng, b=5)
    target = L.ideal_order(y, x, descending=True)
    P = soft_permutation(x / 10, descending=True, method=method, tau=0.5)
    D, T = P.to_dense(), permutation_matrix(target, x.dtype)
    assert_close(L.permutation_nll(P, target, reduction="none"), -(D * T).sum(-1).log().mean(-1))
    assert_close(L.permutation_bce(P, target, reduction="none"), torch.nn.functional.binary_cross_entropy(D, T, reduction="none").mean((-2, -1)))
    sharp = soft_permutation((y + 0.01 * x / 25 if tied else y * 100 + x / 25), descending=True, method=method, tau=1e-6)
    if method != "odd_even": assert L.permutation_nll(sharp, target) < 1e-3 and L.permutation_bce(sharp, target) < 1e-3   # grades are tied, the loss is not


@pytest.mark.parametrize("f", [L.permutation_nll, L.permutation_bce])
def test_permutation_losses_with_padding(f, rng):
    x, y = batch(rng, b=4)
    mask = torch.tensor([[1] * 7, [1, 1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 1, 0, 1], [0] * 7], dtype=torch.bool)
    s = (x / 10).masked_fill(~mask, math.nan).requires_grad_()
    got = f(soft_permutation(s, tau=0.4, mask=mask), L.ideal_order(y, mask=mask, descending=False), reduction="none")
    for i in range(3): assert_close(got[i], f(soft_permutation((x / 10)[i][mask[i]], tau=0.4), L.ideal_order(y[i][mask[i]], descending=False)))
    g, = torch.autograd.grad(got.sum(), s)
    assert got[3] == 0 and g.isfinite().all()
    assert_close(f(soft_permutation(s, tau=0.4, mask=mask), L.ideal_order(y, mask=mask, descending=False)), got[:3].mean())


def test_bce_of_a_confident_mistake_has_a_gradient():
    s = torch.tensor([0.0, 50.0], requires_grad=True)
    for f in (L.permutation_nll, L.permutation_bce):
        loss = f(SoftSort(0.5)(s), torch.tensor([1, 0]))
        g, = torch.autograd.grad(loss, s)
        assert loss.isfinite() and g[0] < -0.1 and g[1] > 0.1


def test_first_rows_and_matrices_have_a_likelihood(rng):
    P = SoftPermutation.from_logits(torch.randn(2, 5, 5, generator=rng))
    assert_close(L.permutation_nll(P[..., :2, :], torch.tensor([[0, 1], [2, 3]]), reduction="none"),
                 -P.log_prob(torch.tensor([[0, 1, 0, 0, 0], [2, 3, 0, 0, 0]]))[:, :2].mean(-1))
    with pytest.raises(TypeError, match="SoftPermutation"): L.permutation_nll(torch.eye(3), torch.arange(3))
    with pytest.raises(TypeError, match="SoftPermutation"): L.permutation_bce(torch.eye(3), torch.arange(3))
    with pytest.raises(ValueError, match="without group"): L.permutation_nll(P[..., :2, :], torch.tensor([[0, 1], [2, 3]]), tau=0.5)


MODULES = [c for c in vars(L).values() if isinstance(c, type) and issubclass(c, Loss)]


@pytest.mark.parametrize("module", MODULES, ids=lambda c: c.__name__)
def test_modules_are_their_functions(module, rng):
    x, y = batch(rng, b=4)
    x = x / 10
    sorts = module.function is not L.permutation_nll  # which takes what is sorted already, but from a group
    options = {k: v for k, v in dict(tau=0.7, k=2).items() if k in module.defaults and (sorts or k != "tau")}
    args = ((soft_permutation(x), x.argsort()) if "permutation" in module.function.__name__ else (x, torch.randint(0, 7, (4,), generator=rng)) if module.function.__module__ == C.__name__ else (x, grades_of(module.function, y)))
    loss = module(**options)
    assert_close(loss(*args), module.function(*args, **options))
    assert "reduction='mean'" in repr(loss) and list(module.__signature__.parameters) == list(module.defaults)
    with pytest.raises(TypeError, match="no option 'temperature'"): module(temperature=1)
    if "method" in module.defaults and sorts and module.function is not L.precision_loss:
        learnable = module(method=SoftSort(torch.nn.Parameter(torch.tensor(0.5))), **{k: v for k, v in options.items() if k != "tau"})
        learnable(*args).backward()
        assert [p.grad is not None and p.grad.isfinite().item() for p in learnable.parameters()] == [True]
    if "tau" in module.defaults: assert len(list(module(tau=torch.nn.Parameter(torch.tensor(0.5))).parameters())) == 1


@pytest.mark.parametrize("call, text", [
    (lambda x, y: L.kendall_loss(x, y, kind="hinge"), "kind"), (lambda x, y: L.approx_ndcg_loss(x, y, gain="log"), "gain"),
    (lambda x, y: L.approx_ndcg_loss(x, y, k=0), "k must be"), (lambda x, y: L.precision_loss(x, y, k=8), "k must be"),
    (lambda x, y: C.topk_loss(x, y), "target must be"), (lambda x, y: C.topk_loss(x, y[0].long()), "target must be"),
    (lambda x, y: C.topk_loss(x, y[:, 0].long(), k=(0.5, 0.6)), "sum to one"), (lambda x, y: C.topk_loss(x, y[:, 0].long(), k=(1.0,) + (0.0,) * 9), "at most"),
    (lambda x, y: C.zero_one_loss(x, y[:, 0].long(), kind="step"), "kind"), (lambda x, y: C.zero_one_loss(x, y[:, 0].long(), k=9), "k must be")])
def test_errors(call, text, rng):
    with pytest.raises(ValueError, match=text): call(*batch(rng, b=3))


@every
def test_descends_to_the_hard_optimum(f, options, rng):
    "From the worst order, Adam on the cooling loss reaches scores that no order improves on."
    y = torch.arange(6.0)
    s = torch.linspace(1, -1, 6).requires_grad_()
    adam = torch.optim.Adam([s], lr=0.05)
    relevance = (y >= 4).float() if "k" in options and f in (L.precision_loss, L.recall_loss) else y
    start, tau = f(s, relevance, **options).item(), tau_schedule(10.0, 1.0, 250)                   # sharp ranks have local minima
    for step in range(250):
        adam.zero_grad()
        loss = f(s, relevance, tau=tau(step), **options)
        loss.backward(); adam.step()
    hard = dict(options, tau=1e-4)
    if f is L.kendall_loss: hard["kind"] = "sigmoid"
    assert f(s.detach(), relevance, **hard) < 1e-3 and loss < 0.5 * start


@every
def test_samples_of_a_stochastic_operator_are_averaged(f, options, rng):
    Stochastic = pytest.importorskip("softsortlib.core.stochastic").Stochastic
    if f is L.kendall_loss or options.get("method") == "lapsum": pytest.skip("takes no operator")
    x, y = batch(rng, b=5)
    y = grades_of(f, y)
    y[2] = 0
    options = {k: v for k, v in options.items() if k != "method"}
    draw = lambda reduction: f(x, y, method=Stochastic("softsort", 3, torch.Generator().manual_seed(3), tau=0.5), reduction=reduction, **options)
    each = draw("none")
    defined = torch.arange(5) != 2
    assert each.shape == (3, 5)
    assert_close(draw("mean"), each[:, defined].mean())


GRADED = [L.approx_ndcg_loss, L.neural_ndcg_loss]
RELEVANT = [L.spearman_loss, L.kendall_loss, *GRADED, L.precision_loss, L.recall_loss]


@pytest.mark.parametrize("f", RELEVANT)
def test_every_wrong_argument_of_a_relevance_loss_is_named(f, rng):
    x, y = batch(rng, b=3)
    y = grades_of(f, y)
    for bad, error, says in ((y + 0j, TypeError, "relevance must be real"), (y * math.nan, ValueError, "relevance.isnan"), (None, TypeError, "relevance must be a tensor"), (y[0], ValueError, "shape")):
        with pytest.raises(error, match=says): f(x, bad)
    with pytest.raises(ValueError, match="mask=scores.isfinite"): f(x / 0, y)
    for tau, error in ((0.0, ValueError), (-1.0, ValueError), ("1", TypeError), ([1.0], TypeError), (1j, TypeError), (torch.ones(5), ValueError), (torch.tensor(1), TypeError)):
        with pytest.raises(error, match="tau must"): f(x, y, tau=tau)
    if f in GRADED:
        for bad in (-y - 1, y / 0): 
            with pytest.raises(ValueError, match="relevance must be"): f(x, bad)
        with pytest.raises(ValueError, match="gain"): f(x, y, gain=["exp2"])
    if f in (L.neural_ndcg_loss, L.precision_loss, L.recall_loss):
        for bad in (-1, 1.5, "3", None, True):
            with pytest.raises(ValueError, match="iterations"): f(x, y, iterations=bad)
    mask = torch.ones_like(y, dtype=torch.bool); mask[0, 0] = False
    hidden = y.clone(); hidden[0, 0] = math.nan
    assert f(x, hidden, mask).isfinite()                                          # what is masked may be anything


def test_a_module_refuses_a_wrong_reduction_at_construction():
    for module in (L.PermutationNLL, L.SpearmanLoss, C.TopKLoss):
        with pytest.raises(ValueError, match="reduction"): module(reduction="avg")


def test_ideal_order_sorts_as_the_operators_do(rng):
    x, y = batch(rng, b=4)
    y = y + x / 100                                                               # no ties
    assert torch.equal(L.ideal_order(y), y.argsort()) and torch.equal(L.ideal_order(y, descending=True), y.argsort(descending=True))
    for descending in (False, True):
        P = soft_permutation(y, descending=descending, tau=1e-7)
        assert L.permutation_nll(P, L.ideal_order(y, descending=descending)) < 1e-3
    for call, error, says in ((lambda: L.ideal_order([1, 2]), TypeError, "relevance"), (lambda: L.ideal_order(y, x[0]), ValueError, "scores must be"),
                              (lambda: L.ideal_order(y, [1.0]), ValueError, "scores must be"), (lambda: L.ideal_order(torch.tensor(1.0)), ValueError, "relevance"),
                              (lambda: L.ideal_order(y, descending="down"), TypeError, "descending"), (lambda: L.ideal_order(y, mask=y), TypeError, "mask")):
        with pytest.raises(error, match=says): call()


@pytest.mark.parametrize("f", [C.topk_loss, C.zero_one_loss])
def test_class_numbers_out_of_range_are_an_error(f, rng):
    x, y = torch.randn(3, 4, generator=rng), torch.tensor([0, 3, 1])
    for bad in (y + 1, y - 1, torch.tensor([0, -100, 1])):
        with pytest.raises(IndexError, match=r"class numbers 0..3"): f(x, bad)
    with pytest.raises(ValueError, match="target must be"): f(x, y + 0j)
    assert torch.equal(f(x, y.int()), f(x, y))
    if f is C.topk_loss:
        with pytest.raises(TypeError, match="k must be"): f(x, y, k=("a",))


@pytest.mark.parametrize("method", sorted({**Operator.names, **RankOperator.names}.keys() - {"blackbox", "implicit"}))   # theirs is of hard ranks a finite step away
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_spearman_of_tied_scores_has_a_gradient_of_the_size_of_others(method, dtype):
    "A last layer that begins at zero ties all scores: learning has to begin there."
    y = torch.tensor([0.0, 2.0, 1.0, 3.0])
    for n, relevance in ((4, y), (40, y.repeat(10))):
        s = torch.full((n,), 3.7, dtype=dtype, requires_grad=True)
        loss = L.spearman_loss(s, relevance, method=method)
        g, = torch.autograd.grad(loss, s)
        assert loss.isfinite() and g.isfinite().all() and g.abs().max() < 10
        if method in ("sigmoid", "gaussian", "permutahedron", "neuralsort", "lapsum"):
            assert_close(loss.item(), 1.0, atol=1e-6, rtol=0)
            assert (g[relevance == 3] < 0).all() and (g[relevance == 0] > 0).all()                  # a step down puts them in order


@pytest.mark.parametrize("method", ["softsort", "neuralsort", "sigmoid", "permutahedron"])
def test_spearman_of_a_set_without_an_order_does_not_poison_the_others(method):
    mask = torch.tensor([[True, True], [True, False], [True, True], [False, False]])
    y = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 1.0], [0.0, 1.0]])
    s = torch.tensor([[0.3, 0.1], [0.2, 0.7], [0.4, 0.4], [0.0, 1.0]], requires_grad=True)
    each = L.spearman_loss(s, y, mask, method=method, reduction="none")
    g, = torch.autograd.grad(each.sum(), s)
    assert (each[1:] == 0).all() and each[0] > 0 and g.isfinite().all() and (g[1:] == 0).all()


@every
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-6, 1e6])
def test_gradients_are_finite_for_tied_and_for_extreme_scores(f, options, scale, rng):
    x, y = batch(rng, b=5)
    mask = torch.tensor([[1] * 7, [1, 1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [0] * 7, [1] * 7], dtype=torch.bool)
    y = grades_of(f, y)
    y[4] = 1                                                                                      # all equal
    for dtype in (torch.float32, torch.float64):
        s = (x * scale).to(dtype).requires_grad_()
        loss = f(s, y, mask, **options)
        g, = torch.autograd.grad(loss, s)
        assert loss.isfinite() and g.isfinite().all()


@pytest.mark.parametrize("f", [L.approx_ndcg_loss, L.neural_ndcg_loss])
def test_powers_of_large_grades_do_not_overflow(f, rng):
    "Beyond some sixty all gains are powers of two to the last digit, and a common factor cancels; sets keep to themselves."
    s, y = torch.randn(3, 6, generator=rng), torch.randint(0, 5, (3, 6), generator=rng).float()
    want = f(s, y + 60, reduction="none")
    for more in (90.0, 130.0, 5000.0): assert_close(f(s, y + more, reduction="none"), want, rtol=1e-5, atol=1e-6)
    assert_close(f(s, y + torch.tensor([[0.0], [500.0], [0.0]]), reduction="none")[::2], f(s, y, reduction="none")[::2])
    leaf = s.clone().requires_grad_()
    assert torch.autograd.grad(f(leaf, y + 200), leaf)[0].isfinite().all()


LEARNED = {"ndcg": (L.approx_ndcg_loss, {}), "kendall": (L.kendall_loss, {}), "kendall_sigmoid": (L.kendall_loss, dict(kind="sigmoid")), "weighted": (L.weighted_kendall_loss, {}),
           "weighted_sigmoid": (L.weighted_kendall_loss, dict(kind="sigmoid")), "listmle": (L.listmle_loss, {}), "ap": (L.average_precision_loss, {}), "auc": (L.auc_loss, {}),
           **{f"lambda_{weights}": (L.lambda_loss, dict(weighting=weights, k=5)) for weights in ("lambdarank", "ndcg1", "ndcg2", "ndcg2++", "precision")}}


@pytest.mark.parametrize("n", (5, 100, 600))
@pytest.mark.parametrize("f, options", LEARNED.values(), ids=LEARNED)
def test_the_gradient_to_tau_in_single_precision(f, options, n, rng):
    "Scores of ten thousand, and temperatures from a thousandth of their spread to a thousand times it: as in double precision."
    y = torch.randint(0, 4, (n,), generator=rng).float()
    if f in BINARY or options.get("weighting") == "precision": y = (y > 1).float()
    real = torch.rand(n, generator=rng) < 0.8
    for offset in (0.0, 1e4):
        for tau in (1e-3, 0.1, 1.0, 1e3):
            s = torch.where(real, torch.randn(n, generator=rng) + offset, 0)
            found = []
            for dtype in (torch.float32, torch.float64):
                x, t = s.to(dtype).requires_grad_(), torch.tensor(tau).to(dtype).requires_grad_()
                found.append(torch.autograd.grad(f(x, y, real, tau=t, **options), (x, t)))
            (_, got), (_, exact) = found
            assert (got - exact).abs() <= 2e-5 * exact.abs() + 2e-6 / tau, (offset, tau, got.item(), exact.item())


@pytest.mark.parametrize("size", (-1e3, -1e15, -1e17, -1e300))
def test_what_cannot_matter_costs_auc_no_digits(size):
    "An irrelevant element far below all others, and a relevant one far above, alone and in a batch of lists."
    s = torch.tensor([[0.0, 1, 2, size], [0, -1, -2, -size]], dtype=torch.float64, requires_grad=True)
    y, tau = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1]]), 0.5
    near = torch.tensor([[0.0, 1, 2], [0, -1, -2]], dtype=torch.float64, requires_grad=True)
    z = (near[:, :, None] - near[:, None]) / tau
    pairs = torch.nn.functional.softplus(-z) / math.log(2) * ((y[:, :3, None] > 0) & (y[:, None, :3] <= 0))
    right = pairs.sum((1, 2)) / 4
    for found in (L.auc_loss(s, y, tau=tau, reduction="none"), L.auc_loss(s.flatten(), y.flatten(), offsets=torch.tensor([0, 4, 8]), tau=tau, reduction="none")):
        assert_close(found, right, rtol=1e-12, atol=0)
        g, h = torch.autograd.grad(found.sum(), s)[0], torch.autograd.grad(right.sum(), near, retain_graph=True)[0]
        assert_close(g, torch.nn.functional.pad(h, (0, 1)), rtol=1e-12, atol=1e-15)


def test_permutation_bce_under_vmap(rng):
    s, target = torch.randn(3, 6, generator=rng), torch.rand(3, 6, generator=rng).argsort(-1)
    def loss(s, target): return L.permutation_bce(SoftSort(0.3)(s), target)
    found = torch.func.vmap(torch.func.grad(loss))(s, target)
    assert_close(found, torch.stack([torch.func.grad(loss)(*row) for row in zip(s, target)]))


@pytest.mark.parametrize("weighting, of_place", [("equal", lambda i, n: 1), ("exp2", lambda i, n: 2 ** (n - i) - 1), ("log2", lambda i, n: 1 / math.log2(1 + i))])
def test_listmle_weighs_its_places(weighting, of_place):
    "(L3.2), term by term: each place against what is left at it."
    s, y = [0.3, -1.2, 2.0, 0.7], [1, 3, 0, 2]
    order = sorted(range(4), key=lambda i: -y[i])
    terms = [math.log(sum(math.exp(s[j]) for j in order[i:])) - s[order[i]] for i in range(4)]
    weights = [of_place(i, 4) for i in range(1, 5)]
    want = sum(w * t for w, t in zip(weights, terms)) / sum(weights)
    padded = torch.tensor([[*s, 9.0]], dtype=torch.float64), torch.tensor([[*y, 9]]), torch.tensor([[True] * 4 + [False]])
    assert L.listmle_loss(*padded, weighting=weighting).item() == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("weights", ("equal", "exp2", "log2"))
def test_listmle_takes_differences_before_it_divides(weights, rng):
    "Two clusters far apart, at a temperature of their width."
    s = (1e-3 * torch.randn(40, generator=rng, dtype=torch.float64) + 1e3 * torch.randint(2, (40,), generator=rng)).float()
    y, tau = torch.randint(0, 4, (40,), generator=rng), torch.tensor(1e-3)
    def loss(s, tau): return L.listmle_loss(s, y, weighting=weights, tau=tau)
    for found, right in zip(torch.func.grad(loss, (0, 1))(s, tau), torch.func.grad(loss, (0, 1))(s.double(), tau.double())):
        assert_close(found.double(), right, rtol=1e-5, atol=1e-6 * right.abs().max().item())


@pytest.mark.parametrize("spread", (1.0, 1e6, 1e7))
def test_listmle_in_single_precision_where_scores_are_far_apart(spread, rng):
    "The gradient against the softmax of what is left at each place, padded and end to end."
    s = (spread * torch.randn(3, 60, generator=rng)).requires_grad_()
    y = torch.stack([torch.randperm(60, generator=rng) for _ in range(3)])
    order = y.argsort(-1, descending=True)
    x = s.detach().double().gather(-1, order)
    left = torch.stack([torch.nn.functional.pad(x[:, i:].softmax(-1), (i, 0)) for i in range(60)])
    want = torch.empty_like(x).scatter(-1, order, left.sum(0) - 1) / 60
    padded, grades = (torch.nn.functional.pad(v, (0, 2)) for v in (s, y))
    for each in (L.listmle_loss(padded, grades, torch.arange(62) < 60, reduction="sum"), L.listmle_loss(s.flatten(), y.flatten(), offsets=torch.tensor([0, 60, 120, 180]), reduction="sum")):
        assert_close(torch.autograd.grad(each, s)[0].double(), want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("tau", [0.25, 3.0])
def test_a_number_is_a_temperature_as_its_tensor_is(tau, rng):
    "A pair's softplus takes a number as its sharpness, and divides the gaps by a tensor."
    s, y = torch.randn(2, 7, generator=rng, dtype=torch.float64), torch.randint(4, (2, 7), generator=rng)
    assert_close(L.lambda_loss(s, y, tau=tau), L.lambda_loss(s, y, tau=torch.tensor(tau, dtype=s.dtype)))


@pytest.mark.parametrize("span", [None, (-1.0, 2.0)])
@pytest.mark.parametrize("bins", [2, 5, 20])
def test_average_precision_of_bins_is_its_formula(span, bins, rng):
    "(L5.3) with the triangles written out: a score outside of the span counts at its end."
    s, y = torch.randn(6, 9, generator=rng, dtype=torch.float64), torch.randint(0, 2, (6, 9), generator=rng)
    y[:, 0] = 1
    for t, r, value in zip(s, y.double(), L.quantised_ap_loss(s, y, bins=bins, span=span, reduction="none")):
        low, high = span or (t.min().item(), t.max().item())
        width = (high - low) / (bins - 1)
        centres = high - width * torch.arange(bins, dtype=torch.float64)
        share = (1 - (t.clamp(low, high)[:, None] - centres).abs() / width).clamp(min=0)
        relevant, found = r @ share, share.sum(0)
        precision = relevant.cumsum(0) / found.cumsum(0).clamp(min=1e-300)
        assert_close(value, 1 - (precision * relevant).sum() / r.sum())
