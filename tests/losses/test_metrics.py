"""The hard counterparts of losses, counted by hand; the soft value beside them; gradients and curvatures."""
import math

import pytest
import torch
from torch.testing import assert_close

from softsortlib import losses as L

LOSSES = [L.ApproxNDCGLoss(k=3, tau=1e-4), L.PiRankLoss(k=3, tau=1e-4), L.PrecisionLoss(k=2, tau=1e-4), L.RecallLoss(k=2, tau=1e-4), L.AveragePrecisionLoss(tau=1e-5), L.ReciprocalRankLoss(tau=1e-4),
          L.AUCLoss(kind="sigmoid", tau=1e-5), L.SpearmanLoss(tau=1e-5), L.KendallLoss(kind="sigmoid", tau=1e-5), L.WeightedKendallLoss(kind="sigmoid", tau=1e-5)]


def batch(rng, b=6, n=7):
    s = torch.stack([torch.randperm(40, generator=rng)[:n] for _ in range(b)]).double() / 4
    y = torch.randint(0, 3, (b, n), generator=rng).double()
    y[:, 0], y[:, 1] = 1, 0
    mask = torch.ones(b, n, dtype=torch.bool)
    mask[1, 5:], mask[2, 3] = False, False
    y[3] = 0                                                              # counts for precision only
    return s, y, mask


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_a_cold_loss_is_its_hard_metric(loss, rng):
    s, y, mask = batch(rng)
    assert_close(L.soft_metric(loss, s, y, mask), L.hard_metric(loss, s, y, mask), atol=1e-3, rtol=0)
    each = L.hard_metric(loss, s, y, mask, reduction="none")
    for i in (0, 1, 2, 4): assert_close(each[i], L.hard_metric(loss, s[i][mask[i]], y[i][mask[i]]))
    assert each[3] == 0


def test_by_hand():
    s, y = torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([0.0, 2.0, 0.0, 1.0])
    want = {L.PrecisionLoss(k=2): 0.5, L.RecallLoss(k=2): 0.5, L.ReciprocalRankLoss(): 0.5, L.AveragePrecisionLoss(): 0.5, L.AUCLoss(): 0.25,
            L.ApproxNDCGLoss(): (3 / math.log2(3) + 1 / math.log2(5)) / (3 + 1 / math.log2(3)), L.KendallLoss(): -0.2}
    for loss, value in want.items(): assert L.hard_metric(loss, s, y).item() == pytest.approx(value, abs=1e-6), loss
    with pytest.raises(TypeError, match="smooths a metric"): L.hard_metric(L.ListNetLoss(), s, y)


def test_curvature_is_the_diagonal_of_the_hessian(rng):
    s, y, mask = (v[:2] for v in batch(rng))
    loss = L.AUCLoss(reduction="sum")
    slope, curvature = L.gradient_and_curvature(loss, s, y, mask, floor=-math.inf)
    H = torch.autograd.functional.hessian(lambda s: loss(s, y, mask=mask), s)
    for i in range(2): assert_close(curvature[i], H[i, :, i].diagonal())
    assert (slope[~mask] == 0).all() and (curvature[~mask] == 0).all()
    assert L.gradient_and_curvature(loss, s, y, mask, floor=0.1)[1][mask].min() >= 0.1
