"""The hard counterparts of losses, counted by hand; the soft value beside them; gradients and curvatures."""
import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from softsortlib import losses as L
from softsortlib.lab.data import optional

LOSSES = [L.ApproxNDCGLoss(k=3, tau=1e-4), L.PiRankLoss(k=3, tau=1e-4), L.PrecisionLoss(k=2, tau=1e-4), L.RecallLoss(k=2, tau=1e-4), L.AveragePrecisionLoss(tau=1e-5), L.ReciprocalRankLoss(tau=1e-4),
          L.AUCLoss(kind="sigmoid", tau=1e-5), L.SpearmanLoss(tau=1e-5), L.KendallLoss(kind="sigmoid", tau=1e-5), L.WeightedKendallLoss(kind="sigmoid", tau=1e-5)]


def batch(rng, b=6, n=7):
    s = torch.stack([torch.randperm(40, generator=rng)[:n] for _ in range(b)]).double() / 4
    y = torch.randint(0, 3, (b, n), generator=rng).double()
    y[:, 0], y[:, 1] = 1, 0
    mask = torch.ones(b, n, dtype=torch.bool)
    mask[1, 5:], mask[2, 3] = False, False
    y[3] = 0                                                              # nothing to measure
    return s, y, mask


BINARY = (L.PrecisionLoss, L.RecallLoss, L.AveragePrecisionLoss, L.ReciprocalRankLoss, L.AUCLoss)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_a_cold_loss_is_its_hard_metric(loss, rng):
    s, y, mask = batch(rng)
    if isinstance(loss, BINARY): y = (y > 0).double()
    assert_close(L.soft_metric(loss, s, y, mask), L.hard_metric(loss, s, y, mask), atol=1e-3, rtol=0)
    each = L.hard_metric(loss, s, y, mask, reduction="none")
    for i in (0, 1, 2, 4): assert_close(each[i], L.hard_metric(loss, s[i][mask[i]], y[i][mask[i]]))
    assert each[3].isnan()


def test_by_hand():
    s, y = torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([0.0, 2.0, 0.0, 1.0])
    want = {L.PrecisionLoss(k=2): 0.5, L.RecallLoss(k=2): 0.5, L.ReciprocalRankLoss(): 0.5, L.AveragePrecisionLoss(): 0.5, L.AUCLoss(): 0.25,
            L.ApproxNDCGLoss(): (3 / math.log2(3) + 1 / math.log2(5)) / (3 + 1 / math.log2(3)), L.KendallLoss(): -0.2}
    for loss, value in want.items(): assert L.hard_metric(loss, s, y > 0 if isinstance(loss, BINARY) else y).item() == pytest.approx(value, abs=1e-6), loss
    with pytest.raises(TypeError, match="smooths a metric"): L.hard_metric(L.ListNetLoss(), s, y)


def test_curvature_is_the_diagonal_of_the_hessian(rng):
    s, y, mask = (v[:2] for v in batch(rng))
    y = (y > 0).double()
    loss = L.AUCLoss(reduction="sum")
    slope, curvature = L.gradient_and_curvature(loss, s, y, mask, floor=-math.inf)
    H = torch.autograd.functional.hessian(lambda s: loss(s, y, mask=mask), s)
    for i in range(2): assert_close(curvature[i], H[i, :, i].diagonal())
    assert (slope[~mask] == 0).all() and (curvature[~mask] == 0).all()
    assert L.gradient_and_curvature(loss, s, y, mask, floor=0.1)[1][mask].min() >= 0.1


TOP = [L.ApproxNDCGLoss(), L.NeuralNDCGLoss(k=3, gain="linear"), L.PiRankLoss(k=1), L.PrecisionLoss(k=2), L.RecallLoss(k=4), L.AveragePrecisionLoss(), L.QuantisedAPLoss(), L.ReciprocalRankLoss(),
       L.ReciprocalRankLoss(k=2), L.AUCLoss()]
TIED = [[0, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0], [2, 1, 1, 1, 1, 0], [2, 0, 1, 0, 2, 1], [5, 4, 3, 2, 1, 0]]


@pytest.mark.parametrize("loss", TOP, ids=repr)
def test_tied_scores_give_the_mean_over_all_orders(loss):
    "Enumeration: 720 ways to break the ties. Each list, all lists as a batch, with padding that is tied too, and end to end."
    breaks = torch.tensor(list(itertools.permutations(range(6)))).double() / 100
    s, y = torch.tensor(TIED).double(), torch.tensor([[0, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 1], [0, 0, 1, 1, 1, 0], [1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1]])
    if type(loss).__name__ in ("ApproxNDCGLoss", "NeuralNDCGLoss", "PiRankLoss"): y = y * torch.arange(1, 7)
    want = torch.stack([L.hard_metric(loss, a + breaks, b.expand(720, 6), reduction="none").mean() for a, b in zip(s, y)])
    assert_close(L.hard_metric(loss, s, y, reduction="none"), want)
    padded, grades, mask = (torch.nn.functional.pad(v, (1, 2)) for v in (s, y, torch.ones_like(y, dtype=torch.bool)))
    assert_close(L.hard_metric(loss, padded, grades, mask, reduction="none"), want)
    assert_close(L.hard_metric(loss, s.flatten(), y.flatten(), offsets=torch.arange(0, 31, 6), reduction="none"), want)


@pytest.mark.parametrize("loss", [*TOP, L.SpearmanLoss(), L.KendallLoss(), L.WeightedKendallLoss()], ids=repr)
def test_the_order_of_the_input_does_not_matter(loss, rng):
    s, y = torch.randint(0, 4, (50, 12), generator=rng).double(), torch.randint(0, 2, (50, 12), generator=rng)
    at = torch.randperm(12, generator=rng)
    assert_close(L.hard_metric(loss, s[:, at], y[:, at], reduction="none"), L.hard_metric(loss, s, y, reduction="none"))


def test_ties_as_scipy_and_scikit_learn_count_them(rng):
    stats, metrics = pytest.importorskip("scipy.stats"), pytest.importorskip("sklearn.metrics")
    for _ in range(20):
        s, y = torch.randint(0, 4, (12,), generator=rng).double(), torch.randint(0, 4, (12,), generator=rng).double()
        b = (y > 1).double()
        b[:2] = torch.tensor([0.0, 1.0])
        assert L.hard_metric(L.KendallLoss(), s, y, variant="b").item() == pytest.approx(stats.kendalltau(s, y).statistic)
        assert L.hard_metric(L.SpearmanLoss(), s, y).item() == pytest.approx(stats.spearmanr(s, y).statistic)
        assert L.hard_metric(L.AUCLoss(), s, b).item() == pytest.approx(metrics.roc_auc_score(b, s))
        for k in (3, None): assert L.hard_metric(L.ApproxNDCGLoss(k=k, gain="linear"), s, y).item() == pytest.approx(metrics.ndcg_score(y[None], s[None], k=k))


def test_weighted_tau_b_counts_pairs(rng):
    s, y = torch.randint(0, 4, (12,), generator=rng).double(), torch.randint(0, 4, (12,), generator=rng).double()
    rank = torch.stack([(y > v).sum() + ((y == v).sum() + 1) / 2 for v in y])
    w = 1 / rank[:, None] + 1 / rank
    of_s, of_y = ((v[:, None] - v).sign() for v in (s, y))
    want = (w * of_s * of_y).sum() / ((w * of_s.square()).sum() * (w * of_y.square()).sum()).sqrt()
    assert_close(L.hard_metric(L.WeightedKendallLoss(), s, y, variant="b"), want)
    mask = torch.rand(12, generator=rng) < 0.6
    assert_close(L.hard_metric(L.WeightedKendallLoss(), s, y, mask, variant="b"), L.hard_metric(L.WeightedKendallLoss(), s[mask], y[mask], variant="b"))
    assert L.hard_metric(L.KendallLoss(), torch.zeros(12), y, variant="b") == 0
    with pytest.raises(ValueError, match="variant must be 'b'"): L.hard_metric(L.KendallLoss(), s, y, variant="c")
    with pytest.raises(ValueError, match="variant chooses among Kendall's"): L.hard_metric(L.AUCLoss(), s, y > 1, variant="b")


@pytest.mark.parametrize("loss", [L.ApproxNDCGLoss(), L.PiRankLoss(), *[kind() for kind in BINARY], L.QuantisedAPLoss(), L.SpearmanLoss(), L.KendallLoss(), L.WeightedKendallLoss()], ids=lambda loss: type(loss).__name__)
def test_lists_without_anything_to_measure(loss, rng):
    "As torchmetrics names and values it, for every metric alike; padded, and end to end with an empty list."
    s, y = torch.randn(4, 5, generator=rng), torch.tensor([[0, 1, 0, 1, 0], [0] * 5, [1, 0, 0, 0, 0], [0] * 5])
    def of(**options): return L.hard_metric(loss, s, y, **options)
    each = of(reduction="none")
    assert each.isnan().tolist() == [False, True, False, True]
    assert_close(of(), each[[0, 2]].mean()); assert_close(of(reduction="sum"), each[[0, 2]].sum()); assert of(reduction="count") == 2
    for action, value in (("neg", 0.0), ("pos", 1.0)):
        filled = each.nan_to_num(value)
        assert torch.equal(of(reduction="none", empty_target_action=action), filled)
        assert_close(of(empty_target_action=action), filled.mean()); assert of(empty_target_action=action, reduction="count") == 4
    with pytest.raises(ValueError, match="relevance has nothing to measure in 2 of 4 lists: empty_target_action='skip'"): of(empty_target_action="error")
    with pytest.raises(ValueError, match="empty_target_action must be one of skip, neg, pos, error, got 'ignore'"): of(empty_target_action="ignore")
    assert L.hard_metric(loss, s[::2], y[::2], empty_target_action="error") == of()
    assert_close(L.hard_metric(loss, s.flatten(), y.flatten(), offsets=torch.tensor([0, 5, 10, 10, 15, 20]), reduction="none"), each[[0, 1, 1, 2, 3]], equal_nan=True)
    assert L.hard_metric(loss, s[1], y[1]) == 0 and L.hard_metric(loss, s[1], y[1], reduction="none").isnan()


def test_empty_targets_as_torchmetrics_counts_them(rng):
    try: retrieval = optional("torchmetrics.retrieval")
    except ImportError as e: pytest.skip(str(e))
    s, y = torch.rand(6, 5, generator=rng), torch.randint(0, 2, (6, 5), generator=rng)
    y[2], y[:, 0] = 0, torch.tensor([1, 0, 0, 1, 0, 1])
    y[4] = 0
    index = torch.arange(6).repeat_interleave(5)
    for action in ("skip", "neg", "pos"):
        for loss, theirs in ((L.AveragePrecisionLoss(), retrieval.RetrievalMAP(action)), (L.ReciprocalRankLoss(), retrieval.RetrievalMRR(action)), (L.PrecisionLoss(k=2), retrieval.RetrievalPrecision(action, top_k=2)),
                             (L.RecallLoss(k=2), retrieval.RetrievalRecall(action, top_k=2)), (L.ApproxNDCGLoss(gain="linear"), retrieval.RetrievalNormalizedDCG(action)), (L.AUCLoss(), retrieval.RetrievalAUROC(action))):
            if isinstance(loss, L.AUCLoss) and (y == 1).all(-1).any(): continue
            assert_close(L.hard_metric(loss, s, y, empty_target_action=action), theirs(s.flatten(), y.flatten(), indexes=index), atol=1e-6, rtol=0)
