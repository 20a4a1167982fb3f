"""Losses of lists end to end that take one pass: ListMLE's walks against the plain twin and each list alone, at extremes."""
import pytest
import torch
from torch.testing import assert_close

from softsortlib import losses
from softsortlib.losses import contract, listmle_loss, sets
from softsortlib.ragged import offsets_of
from softsortlib.ragged.lists import list_numbers
from softsortlib.ragged.sums import rest_of_lists, rest_plain

f64 = torch.float64
LENGTHS = [3, 0, 1, 40, 2, 1, 0, 170, 9]


@pytest.mark.parametrize("dtype, close", [(f64, 1e-12), (torch.float32, 2e-6)], ids=["double", "single"])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4], ids=["tied", "usual", "far apart"])
def test_walks_and_the_plain_twin(dtype, close, scale, rng):
    "(G6.2) and Prop G6.1: values and gradients, batches, gaps of ten thousand temperatures."
    offsets = offsets_of(LENGTHS)
    number = list_numbers(offsets)
    u = (torch.randn(2, len(number), generator=rng, dtype=f64) * scale).to(dtype).requires_grad_()
    g = torch.randn(u.shape, generator=rng, dtype=f64).to(dtype)
    r = rest_of_lists(u, offsets, number)
    exact = u.detach().double().requires_grad_()
    parts = [part.flip(-1).logcumsumexp(-1).flip(-1) for part in exact.split(LENGTHS, -1)]
    want = torch.cat(parts, -1)
    assert r.dtype == dtype
    size = max(1.0, scale)
    for found in (r, rest_plain(u, number)): assert_close(found.double() / size, want / size, rtol=0, atol=close)
    wanted, = torch.autograd.grad(want, exact, g.double())
    for y in (r, rest_plain(u, number)): assert_close(torch.autograd.grad(y, u, g)[0].double(), wanted, rtol=0, atol=max(100, size) * close)


@pytest.mark.filterwarnings("ignore:every list has a single element")       # a list alone may have one
@pytest.mark.parametrize("weights", ["equal", "exp2", "log2"])
@pytest.mark.parametrize("tau", [0.3, "one for each list"])
def test_listmle_of_each_list_as_if_it_were_alone(weights, tau, rng, monkeypatch):
    offsets = offsets_of(LENGTHS)
    s = torch.randn(2, int(offsets[-1]), generator=rng, dtype=f64).mul(4).round().div(4).requires_grad_()       # ties
    y = torch.randint(0, 4, s.shape, generator=rng)
    taus = torch.rand(len(LENGTHS), generator=rng, dtype=f64) + 0.2 if isinstance(tau, str) else torch.full((len(LENGTHS),), tau, dtype=f64)
    met = []
    monkeypatch.setattr(sets, "rest_of_lists", lambda *args, apply=rest_of_lists: met.append(1) or apply(*args))
    got = listmle_loss(s, y, offsets=offsets, reduction="none", weighting=weights, tau=taus if isinstance(tau, str) else tau)
    assert len(met) == 1
    cuts = offsets.tolist()
    alone = [listmle_loss(s[:, a:b], y[:, a:b], reduction="none", weighting=weights, tau=float(t)) if b > a else s.new_zeros(2) for a, b, t in zip(cuts, cuts[1:], taus)]
    want = torch.stack(alone, -1)
    assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert_close(*(torch.autograd.grad(v.sum(), s)[0] for v in (got, want)), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("far", [-1e2, -1e4, -1e9, -1e17, 1e2, 1e4])
def test_a_far_score_neither_moves_the_derivatives_of_listmle_nor_spoils_them(far):
    "Batch and lists, first and second derivatives: the same as of the others alone."
    near, y = torch.tensor([0.15, 0.4, 0.3], dtype=f64), torch.tensor([1, 3, 2])
    low = torch.cat([near, torch.tensor([far], dtype=f64)])
    grades = torch.cat([y, torch.tensor([0 if far < 0 else 4])])
    def hessian(s, y, **how): return torch.autograd.functional.hessian(lambda s: listmle_loss(s, y, tau=0.1, **how), s)
    def gradient(s, y, **how): return torch.func.grad(lambda s: listmle_loss(s, y, tau=0.1, **how))(s)
    for how in ({}, dict(offsets=torch.tensor([0, 4]))):
        for derivative in (gradient, hessian):
            got, want = derivative(low, grades, **how) * 4, derivative(near, y) * 3     # means over the places
            assert_close(got[(slice(3),) * got.ndim], want, rtol=1e-9, atol=1e-10)
            assert got.flatten()[-1].abs() < 1e-10


def test_listmle_keeps_a_nan_in_its_list(rng):
    offsets = offsets_of(LENGTHS)
    s = torch.randn(int(offsets[-1]), generator=rng)
    s[10] = torch.nan
    s.requires_grad_()
    y = torch.arange(len(s)) % 3
    loss = listmle_loss(s, y, offsets=offsets, reduction="none")
    assert loss.isnan().tolist() == [b == 3 for b in range(len(LENGTHS))]
    g, = torch.autograd.grad(loss.sum(), s)
    assert g[:4].isfinite().all() and g[44:].isfinite().all()


def test_wrong_weights_are_named(rng):
    s = torch.randn(5, generator=rng)
    with pytest.raises(ValueError, match="weighting must be"): listmle_loss(s, s, offsets=torch.tensor([0, 2, 5]), weighting="exp3")
    with pytest.raises(ValueError, match="tau"): listmle_loss(s, s, offsets=torch.tensor([0, 2, 5]), tau=torch.tensor([1.0, -1.0]))


def test_lists_answer_as_each_of_them_would_in_a_batch(rng):
    "Every word that a loss asks of its sets."
    offsets = offsets_of([4, 0, 1, 30, 2])
    cuts, N = offsets.tolist(), 37
    s = torch.randn(N, generator=rng, dtype=f64)
    y = torch.randint(0, 4, (N,), generator=rng).to(f64)
    y[4:6] = torch.tensor([7.0, -3.0])
    tau = torch.rand(5, generator=rng, dtype=f64) + 0.5
    lists, every = sets.Lists(offsets, torch.ones(N, dtype=torch.bool)), torch.ones(N, dtype=f64)
    words = {
        "sum": lambda a, s, y, t: a.sum(s), "top": lambda a, s, y, t: a.top(s), "differ": lambda a, s, y, t: a.differ(y), "count": lambda a, s, y, t: a.count(),
        "temperature": lambda a, s, y, t: s / a.temperature(t, s), "ranks": lambda a, s, y, t: a.ranks(s, tau=0.3), "midranks": lambda a, s, y, t: a.midranks(y),
        "best": lambda a, s, y, t: a.best(y.abs()), "some": lambda a, s, y, t: a.some(y.abs()), "ideal": lambda a, s, y, t: s.gather(-1, a.ideal(y, s)), "softmax": lambda a, s, y, t: a.softmax(s),
        "log_softmax": lambda a, s, y, t: a.log_softmax(s), "rest": lambda a, s, y, t: a.rest(s), "products": lambda a, s, y, t: torch.stack(a.products(s, y)), "places": lambda a, s, y, t: a.places()[0] / a.places()[1],
    }
    for name, word in words.items():
        got = word(lists, s, y, tau)
        for b, (i, j) in enumerate(zip(cuts, cuts[1:])):
            if i == j: continue
            want = word(sets.Batch(torch.ones(1, j - i, dtype=torch.bool)), s[None, i:j], y[None, i:j], tau[b:b + 1]).squeeze()
            here = got[..., b] if got.shape[-1] == 5 else got[i:j]
            assert_close(here.squeeze(), want, rtol=1e-12, atol=1e-12, msg=lambda m, name=name: f"{name} of list {b}: {m}")
    assert every.sum() == lists.sum(every).sum()


def test_the_number_of_temperatures_is_checked(rng):
    s = torch.randn(5, generator=rng)
    for loss in (losses.listnet_loss, losses.listmle_loss):
        with pytest.raises(ValueError, match=r"tau must be a number or have one for each of the 2 lists, got \(3,\)"): loss(s, s, offsets=torch.tensor([0, 2, 5]), tau=torch.ones(3))


@pytest.mark.filterwarnings("ignore:every list has a single element")
def test_spearman_of_lists_in_one_pass(rng, monkeypatch):
    "Ties, an empty list, lists of one, a list without an order, a NaN that stays in its list; no call for each length."
    lengths = [3, 0, 1, 40, 2, 5, 170]
    offsets = offsets_of(lengths)
    s = torch.randn(2, sum(lengths), generator=rng, dtype=f64).mul(4).round().div(4).requires_grad_()
    y = torch.randint(0, 4, s.shape, generator=rng)
    y[:, 46:51] = 2
    monkeypatch.setattr(contract, "by_length", lambda *_: pytest.fail("one length at a time"))
    got = losses.spearman_loss(s, y, offsets=offsets, tau=0.3, reduction="none")
    cuts = offsets.tolist()
    want = torch.stack([losses.spearman_loss(s[:, a:b], y[:, a:b], tau=0.3, reduction="none") if b > a else s.new_zeros(2) for a, b in zip(cuts, cuts[1:])], -1)
    assert_close(got, want, rtol=1e-12, atol=1e-12)
    g = torch.randn(got.shape, generator=rng, dtype=f64)
    assert_close(*(torch.autograd.grad(v, s, g)[0] for v in (got, want)), rtol=1e-10, atol=1e-12)
    mean = losses.spearman_loss(s, y, offsets=offsets, tau=0.3)
    graded = [len(set(row[a:b])) > 1 for row in y.tolist() for a, b in zip(cuts, cuts[1:])]
    assert_close(mean, want.sum() / sum(graded))             # lists of one and of one grade do not count, and one in perfect order does
    broken = s.detach().clone()
    broken[:, 10] = torch.nan
    assert losses.spearman_loss(broken, y, offsets=offsets, tau=0.3, reduction="none").isnan().tolist() == [[b == 3 for b in range(7)]] * 2
