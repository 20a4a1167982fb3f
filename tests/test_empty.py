"""A batch without a set, as the last one of a data loader may be, and lists of which there is none: every operator, function and loss, forward and backward."""
import warnings

import pytest
import torch
from tables import FUNCTIONS, HOST_LOSSES, LOSSES, OPERATORS, RANKS

from softsortlib import calibrate_tau, losses, ragged, soft_argsort, soft_median, soft_permutation, soft_quantile, soft_rank, soft_sort, soft_topk, soft_topk_mask, soft_trimmed_mean

SHAPES = [(0, n) for n in (1, 2, 150)] + [(3, 0, 2), (2, 0, 150)]      # small sets have kernels of their own
ASKED = {"P @ x": lambda P, x: P @ x, "P @ columns": lambda P, x: P @ x[..., None].expand(*x.shape, 2), "P.mT @ x": lambda P, x: P.mT @ x, "to_dense": lambda P, x: P.to_dense(), "P[:1] @ x": lambda P, x: P[..., :1, :] @ x,
         "log_prob": lambda P, x: P.log_prob(torch.zeros(x.shape, dtype=torch.long)), "straight through": lambda P, x: P.straight_through() @ x, "hard": lambda P, x: P.hard()}


def goes_both_ways(y, s, batch):
    "It has the batch's shape and no number, and the gradient has the shape of the scores."
    for part in y if isinstance(y, tuple) else (y,):
        assert part.numel() == 0 and 0 in part.shape[:len(batch) + 2]
        if part.requires_grad: assert torch.autograd.grad(part.sum(), s, retain_graph=True)[0].shape == s.shape


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def scores(shape, dtype=torch.float32): return torch.zeros(shape, dtype=dtype).requires_grad_(), torch.ones(shape, dtype=torch.bool)


@pytest.mark.parametrize("row", OPERATORS, ids=lambda row: row.name)
def test_operators(row):
    for shape in SHAPES:
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            s, mask = scores(shape, dtype)
            for asked in ASKED.values():
                for m in (None, mask): goes_both_ways(asked(row.make()(s, m), s.detach()), s, shape[:-1])


@pytest.mark.parametrize("row", RANKS, ids=lambda row: row.name)
def test_ranks(row):
    for shape in SHAPES:
        s, mask = scores(shape)
        for m in (None, mask):
            r = row.make()(s, m)
            assert r.shape == shape
            goes_both_ways(r, s, shape[:-1])


@pytest.mark.parametrize("call", FUNCTIONS, ids=lambda call: call.name)
def test_functions(call):
    for shape in SHAPES:
        if call.public == "SoftKNN" and len(shape) > 2: continue       # its points have another dimension
        s, mask = scores(shape)
        for m in (None, mask) if call.masked else (None,): goes_both_ways(call.f(s, 0.5, m), s, shape[:-1])


@pytest.mark.parametrize("call", LOSSES + HOST_LOSSES, ids=lambda call: call.name)
def test_losses(call):
    for shape in SHAPES[:3] if ":lists" in call.name else SHAPES:
        s, mask = scores(shape)
        for m in (None, mask) if call.masked else (None,): goes_both_ways(call.f(s, torch.zeros(shape, dtype=torch.long), 0.5, m), s, shape[:-1])


@pytest.mark.parametrize("reduction", ("mean", "sum"))
def test_a_loss_of_no_set_is_zero(reduction):
    "As with all sets left out: a step of training goes on."
    for name in [name for name in losses.__all__ if name.endswith("_loss")]:
        for shape, lists in (((0, 4), {}), ((0,), dict(offsets=torch.tensor([0]))), ((0,), dict(offsets=torch.tensor([0, 0, 0])))):
            if lists and name in ("topk_loss", "zero_one_loss"): continue
            s, _ = scores(shape)
            y = getattr(losses, name)(s, torch.zeros(shape, dtype=torch.bool), reduction=reduction, **lists, **(dict(k=2) if name in ("precision_loss", "recall_loss", "slatk_loss", "topk_loss") else {}))
            y.backward()
            assert y == 0 and y.shape == () and s.grad.shape == shape, name


@pytest.mark.parametrize("lengths", ([], [0], [0, 0]), ids=str)
@pytest.mark.parametrize("batch", ((), (2,), (0,)), ids=str)
@pytest.mark.parametrize("hard", (False, True))
def test_lists_without_an_item(lengths, batch, hard):
    B, offsets = len(lengths), ragged.offsets_of(lengths)
    x = torch.zeros(*batch, 0, requires_grad=True)
    options = dict(offsets=offsets, hard=hard)
    for f in (soft_sort, soft_rank, soft_argsort, lambda x, **own: soft_topk_mask(x, 1, **own)): assert f(x, **options).shape == (*batch, 0)
    for f in (soft_median, soft_trimmed_mean, lambda x, **own: soft_quantile(x, 0.3, **own)):
        y = f(x, **options)
        assert y.shape == (*batch, B) and (y == 0).all() and torch.autograd.grad(y.sum(), x)[0].shape == x.shape
    assert soft_quantile(x, torch.tensor([0.1, 0.3]), **options).shape == (2, *batch, B)
    P = soft_permutation(x, **options)
    assert P.shape == P.straight_through().shape == P.to_dense().shape == (*batch, 0, 0) and (P @ x).shape == (P.mT @ x).shape == P.hard().shape == (*batch, 0)
    values, rows = soft_topk(x, 2, **options)
    assert values.shape == (*batch, B, 2) and (values == 0).all() and rows.shape == (*batch, 2 * B, 0)
    assert (rows @ x).shape == (*batch, 2 * B) and (rows @ x == 0).all() and torch.autograd.grad(values.sum() + (rows @ x).sum(), x)[0].shape == x.shape


def test_a_set_without_an_element_is_refused():
    for f in (soft_sort, soft_rank, soft_median):
        with pytest.raises(ValueError, match="x must have shape .* with at least one element"): f(torch.zeros(3, 0))


def test_no_temperature_fits_no_set():
    with pytest.raises(ValueError, match=r"scores must hold at least one set, got \(0, 3\)"): calibrate_tau(torch.zeros(0, 3))
