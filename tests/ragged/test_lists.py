"""Functions of lists end to end: each list as if it were alone, in every dtype, with every method; nested tensors; wrong arguments."""
import math
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

import softsortlib
from softsortlib import functional as F
from softsortlib import losses, ragged
from softsortlib.core.operators import Operator
from softsortlib.core.rank_operators import RankOperator
from softsortlib.ragged import each, offsets_of
from softsortlib.ragged.kernels import LONG, Of
from softsortlib.ragged.lists import WORTH, by_length

f64 = torch.float64
LENGTHS = [3, 0, 1, 40, 3, 1, 0, 170, 2, 9, 40, 0]
TOLERANCE = {torch.float64: dict(rtol=1e-12, atol=1e-12), torch.float32: dict(rtol=1e-6, atol=1e-6)}
SAMPLED = {"perturbed", "implicit", "blackbox"}              # draw noise of their own, or interpolate


def data(rng, dtype=f64, lengths=LENGTHS, batch=()):
    offsets = offsets_of(lengths)
    return torch.randn(*batch, int(offsets[-1]), generator=rng, dtype=f64).to(dtype), offsets


def alone(x, offsets): return [x[..., a:b] for a, b in zip(offsets.tolist(), offsets[1:].tolist())]


ITEMS = {
    **{f"sort-{m}": partial(F.soft_sort, method=m) for m in sorted(Operator.names) if m not in SAMPLED},
    "sort-permutahedron": partial(F.soft_sort, method="permutahedron"),
    **{f"rank-{m}": partial(F.soft_rank, method=m) for m in sorted({**Operator.names, **RankOperator.names}) if m not in SAMPLED},
    **{f"mask-{m}": partial(F.soft_topk_mask, k=1, method=m) for m in ("lapsum", "sinkhorn", "sparse", "threshold", "simple")},
    "sort-hard": partial(F.soft_sort, hard=True), "rank-hard-down": partial(F.soft_rank, hard=True, descending=True),
}


@pytest.mark.parametrize("name", ITEMS)
@pytest.mark.parametrize("dtype", (torch.float32, f64), ids=("single", "double"))
def test_each_list_as_if_it_were_alone(name, dtype, rng):
    f = partial(ITEMS[name], tau=0.3)
    x, offsets = data(rng, dtype)
    x.requires_grad_()
    w = torch.randn(x.shape, generator=rng, dtype=f64).to(dtype)
    y = f(x, offsets=offsets)
    g, = torch.autograd.grad((y * w).sum(), x)
    want = torch.cat([f(part) if part.numel() else part for part in alone(x, offsets)])
    wanted, = torch.autograd.grad((want * w).sum(), x)
    close = TOLERANCE[dtype] if "sinkhorn" not in name else dict(rtol=1e-4, atol=1e-4)      # iterates to a tolerance of its own
    if name == "rank-sigmoid" and dtype == torch.float32: close = dict(rtol=5e-6, atol=5e-6)       # what rounding takes from a list alone, see the next test
    assert y.dtype == dtype
    assert_close(y / want.abs().clamp(min=1), want / want.abs().clamp(min=1), **close)
    scale = wanted.abs().max().clamp(min=1)
    assert_close(g / scale, wanted / scale, rtol=0, atol=10 * close["atol"])


KERNELS = {"sort": F.soft_sort, "rank": F.soft_rank, "laplace": partial(F.soft_rank, method="laplace"), "sigmoid": partial(F.soft_rank, method="sigmoid")}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("descending", (False, True), ids=("up", "down"))
def test_kernels_of_single_precision_are_exact_to_1e_6(name, descending, rng):
    "Against each list alone in double precision, with ties and lists of one; the list of LONG is the longest that sigmoid ranks take pair by pair."
    f = partial(KERNELS[name], descending=descending, tau=0.3)
    x, offsets = data(rng, torch.float32, [1, 40, 0, 700, 3, LONG, 1])
    x[:300] = x[:300].round(decimals=1)
    x.requires_grad_()
    w = torch.randn(x.shape, generator=rng)
    y = f(x, offsets=offsets)
    g, = torch.autograd.grad(y, x, w)
    z = x.detach().double().requires_grad_()
    want = torch.cat([f(part) if part.numel() else part for part in alone(z, offsets)])
    wanted, = torch.autograd.grad(want, z, w.double())
    assert_close(y.double() / want.abs().clamp(min=1), want / want.abs().clamp(min=1), rtol=1e-6, atol=1e-6)
    assert_close(g.double() / wanted.abs().max(), wanted / wanted.abs().max(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_and_blocks(name, rng, monkeypatch):
    "The kernels are met, also by a temperature for each list, and by batches and vmap; a tau that learns and hard values go through blocks to the same numbers."
    f, (x, offsets) = KERNELS[name], data(rng, batch=(2,))
    met = []
    monkeypatch.setattr(each, "walked", lambda *args, run=each.walked: met.append(args) or run(*args))
    tau = torch.rand(len(LENGTHS), generator=rng, dtype=f64) + 0.2
    y = f(x, tau=tau, offsets=offsets)
    assert len(met) == 1
    assert_close(y, f(x, tau=tau.clone().requires_grad_(), offsets=offsets), rtol=1e-12, atol=1e-12)
    assert_close(torch.func.vmap(lambda x: f(x, tau=0.4, offsets=offsets))(x), f(x, tau=0.4, offsets=offsets), rtol=1e-12, atol=1e-12)
    assert len(met) == 3
    f(x, tau=0.5, offsets=offsets, hard=True)
    assert len(met) == 3
    for wrong in (dict(tau=-1.0), dict(tau=-tau), dict(tau=tau[:3]), dict(descending="no")):
        with pytest.raises((ValueError, TypeError)): f(x, offsets=offsets, **wrong)
    with pytest.raises(ValueError, match="infinite"): f(x.masked_fill(x > 1, math.inf), offsets=offsets)


def test_a_common_shift_costs_the_gradient_no_digits():
    "Scores that lie a billion temperatures from zero have the gradient of the same scores near zero, also with others near zero in the same list."
    x = torch.arange(60, dtype=f64).mul(37).remainder(61) / 64
    w = torch.arange(60, dtype=f64).cos()

    def gradient(z, offsets):
        z = z.clone().requires_grad_()
        return torch.autograd.grad(F.soft_sort(z, tau=0.25, offsets=torch.tensor(offsets)), z, w)[0]

    near = gradient(x, [0, 25, 60])
    assert_close(gradient(x + 2**28, [0, 25, 60]), near, rtol=0, atol=1e-12)
    assert_close(gradient(torch.cat([x[:25], x[25:] + 2**28]), [0, 60]), near, rtol=0, atol=1e-12)


@pytest.mark.parametrize("threads", (1, 3))
def test_parts_of_the_work(threads, rng):
    "Any number of threads, one list or many, gives the same numbers."
    before = torch.get_num_threads()
    want = {}
    try:
        for lengths in ([9000], [1] * 50 + [6000, 0, 2] * 2):
            x, offsets = data(rng, lengths=lengths)
            for name, f in KERNELS.items():
                torch.set_num_threads(1)
                want = f(x, tau=0.2, offsets=offsets)
                torch.set_num_threads(threads)
                assert torch.equal(f(x, tau=0.2, offsets=offsets), want), name
    finally: torch.set_num_threads(before)


@pytest.mark.parametrize("q", (0.3, torch.tensor([0.0, 0.25, 1.0], dtype=f64)))
@pytest.mark.parametrize("options", ({}, dict(hard=True), dict(interpolation="nearest"), dict(method="sinkhorn")), ids=str)
def test_quantiles(q, options, rng):
    x, offsets = data(rng, batch=(2,))
    y = F.soft_quantile(x, q, tau=0.2, offsets=offsets, **options)
    for b, part in enumerate(alone(x, offsets)):
        if part.numel(): assert_close(y[..., b], F.soft_quantile(part, q, tau=0.2, **options), rtol=1e-5 if options.get("method") else 1e-12, atol=1e-12)
        else: assert (y[..., b] == 0).all()
    if not isinstance(q, float): assert y.shape == (3, 2, len(LENGTHS))
    assert_close(F.soft_median(x.mT, 0, tau=0.2, offsets=offsets), F.soft_quantile(x, 0.5, tau=0.2, offsets=offsets).mT)


@pytest.mark.parametrize("largest", (True, False))
@pytest.mark.parametrize("hard", (True, False))
def test_topk(largest, hard, rng):
    x, offsets = data(rng)
    values, P = F.soft_topk(x, 3, largest=largest, hard=hard, tau=0.2, offsets=offsets)
    assert values.shape == (len(LENGTHS), 3) and P.shape == (3 * len(LENGTHS), len(x))
    assert_close(P @ x, values.flatten())
    members = P.mT @ torch.ones(P.m, dtype=f64)
    for b, part in enumerate(alone(x, offsets)):
        k = min(3, len(part))
        assert (values[b, k:] == 0).all()
        if not k: continue
        want, own = F.soft_topk(part, k, largest=largest, hard=hard, tau=0.2)
        assert_close(values[b, :k], want)
        assert_close(members[offsets[b]:offsets[b + 1]], own.mT @ torch.ones(k, dtype=f64))
        assert torch.equal(P.hard()[3 * b:3 * b + k] - offsets[b], own.hard())
    assert_close(F.soft_topk_mask(x, 3, tau=0.2, offsets=offsets).sum(), torch.tensor(sum(min(3, n) for n in LENGTHS), dtype=f64))


def test_the_map_of_lists(rng):
    x, offsets = data(rng, lengths=[4, 0, 2, 4, 1])
    for hard in (False, True):
        P = F.soft_permutation(x, tau=0.3, offsets=offsets, hard=hard)
        D = torch.block_diag(*[F.soft_permutation(part, tau=0.3, hard=hard).to_dense() for part in alone(x, offsets) if part.numel()])
        v = torch.randn(11, 2, generator=rng, dtype=f64)
        for got, want in ((P.to_dense(), D), (P @ v, D @ v), (P.mT @ v, D.mT @ v), (P[..., 3:, :] @ v, D[3:] @ v), (P[..., [0, 9], :].mT @ v[:2], D[[0, 9]].mT @ v[:2])): assert_close(got, want)
    assert_close(P.straight_through() @ x, x[P.hard()])
    assert is_sorted(x[P.hard()], offsets)
    assert (P.log_prob(P.hard().roll(1)) == -math.inf).any()


def is_sorted(y, offsets): return all((part.diff() >= 0).all() for part in alone(y, offsets))


def test_neighbours_do_not_matter(rng):
    "Neither their numbers, nor how many there are, nor a NaN among them, which stays in its list."
    x, offsets = data(rng)
    r = F.soft_rank(x, tau=0.1, offsets=offsets)
    other = x + torch.randn(len(LENGTHS), generator=rng, dtype=f64).repeat_interleave(offsets.diff()) * (torch.arange(len(x)) >= offsets[4])
    other[offsets[9]] = math.nan
    s = F.soft_rank(other, tau=0.1, offsets=offsets)
    assert torch.equal(r[:offsets[4]], s[:offsets[4]])
    assert s[offsets[9]:offsets[10]].isnan().any() and s[:offsets[9]].isfinite().all() and s[offsets[10]:].isfinite().all()
    few = F.soft_rank(x[:offsets[4]], tau=0.1, offsets=offsets[:5])
    assert_close(few, r[:offsets[4]], rtol=1e-12, atol=1e-12)


def test_ties_and_lists_of_one(rng):
    offsets = offsets_of([1, 5, 1, 300])
    r = F.soft_rank(torch.zeros(307, requires_grad=True), tau=0.1, offsets=offsets)
    assert_close(r, torch.cat([torch.tensor([1.0]), torch.full((5,), 3.0), torch.tensor([1.0]), torch.full((300,), 150.5)]))


def test_a_temperature_for_each_list(rng):
    x, offsets = data(rng)
    tau = torch.rand(len(LENGTHS), generator=rng, dtype=f64).add(0.1).requires_grad_()
    y = F.soft_sort(x, tau=tau, offsets=offsets)
    want = torch.cat([F.soft_sort(part, tau=t) for part, t in zip(alone(x, offsets), tau) if part.numel()])
    assert_close(y, want)
    assert_close(*(torch.autograd.grad(v.square().sum(), tau)[0] for v in (y, want)))
    with pytest.raises(ValueError, match="tau must be a number or have one for each of the 12 lists"): F.soft_sort(x, tau=tau[:3], offsets=offsets)


def test_any_dimension(rng):
    x, offsets = data(rng, batch=(2, 3))
    for f in (F.soft_sort, F.soft_rank): assert_close(f(x.movedim(-1, 0), 0, tau=0.3, offsets=offsets), f(x, tau=0.3, offsets=offsets).movedim(-1, 0))
    values, _ = F.soft_topk(x.movedim(-1, 1), 2, 1, tau=0.3, offsets=offsets)
    assert_close(values, F.soft_topk(x, 2, tau=0.3, offsets=offsets)[0].movedim((-2, -1), (1, 2)))
    assert_close(F.soft_quantile(x.movedim(-1, 0), 0.5, 0, tau=0.3, offsets=offsets), F.soft_quantile(x, 0.5, tau=0.3, offsets=offsets).movedim(-1, 0))


def test_nested_tensors_in_and_out(rng):
    x, offsets = data(rng)
    x.requires_grad_()
    jagged = torch.nested.nested_tensor_from_jagged(x, offsets)
    r = F.soft_rank(jagged, tau=0.3)
    assert r.shape == jagged.shape and (r + jagged).is_nested
    assert torch.equal(r.values(), F.soft_rank(x, tau=0.3, offsets=offsets))
    assert_close(torch.autograd.grad(r.values().square().sum(), x), torch.autograd.grad(F.soft_rank(x, tau=0.3, offsets=offsets).square().sum(), x))
    assert torch.equal(F.soft_quantile(jagged, 0.5, tau=0.3), F.soft_quantile(x, 0.5, tau=0.3, offsets=offsets))
    wide = torch.nested.nested_tensor_from_jagged(x[:, None] * torch.ones(3, dtype=f64), offsets)
    assert_close(F.soft_sort(wide, 1, tau=0.3).values()[:, 2], F.soft_sort(x, tau=0.3, offsets=offsets))
    with pytest.raises(ValueError, match="dim must be 1"): F.soft_sort(wide, tau=0.3)
    with pytest.raises(ValueError, match="brings its offsets"): F.soft_sort(jagged, offsets=offsets)


@pytest.mark.parametrize("lengths", ([0], [0, 0], [2], [1, 1]), ids=str)
def test_few_lists(lengths):
    offsets = offsets_of(lengths)
    x = torch.arange(float(offsets[-1])).requires_grad_()
    y = F.soft_sort(x, tau=0.1, offsets=offsets)
    assert y.shape == x.shape
    y.sum().backward()
    assert F.soft_quantile(x, torch.tensor([0.5, 0.2]), offsets=offsets).shape == (2, len(lengths))


def test_wrong_arguments(rng):
    x = torch.arange(5.0)
    for offsets, kind, words in (
            ([0, 5], TypeError, "got list"), (torch.tensor([0.0, 5.0]), TypeError, "got torch.float32"), (torch.tensor([[0, 5]]), ValueError, "shape"), (torch.tensor([1, 5]), ValueError, "begin with 0, got 1"),
            (torch.tensor([0, 4]), ValueError, "end with 5, the number of items, got 4"), (torch.tensor([0, 4, 2, 5]), ValueError, "not decrease, got 4 and then 2 at index 2")):
        with pytest.raises(kind, match=words): F.soft_sort(x, offsets=offsets)
    whole = torch.tensor([0, 2, 5])
    with pytest.raises(ValueError, match="mask and offsets exclude each other"): F.soft_rank(x, mask=x > 1, offsets=whole)
    with pytest.raises(ValueError, match="group and offsets exclude each other"): F.soft_rank(x, offsets=whole, group=object())
    with pytest.raises(ValueError, match="k must be at most 3, the length of the longest list, got 4"): F.soft_topk(x, 4, offsets=whole)
    with pytest.raises(TypeError, match="x must be floating point"): F.soft_rank(x.long(), offsets=whole)
    with pytest.raises(ValueError, match="unknown method"): F.soft_rank(x, method="softrot", offsets=whole)
    with pytest.warns(UserWarning, match="prototype"): strided = torch.nested.nested_tensor([x], layout=torch.strided)
    with pytest.raises(TypeError, match="jagged"): F.soft_rank(strided)


@pytest.mark.parametrize("name", [*KERNELS, "sort-neuralsort"])
def test_torch_func_sees_what_autograd_sees(name, rng):
    f = partial({**KERNELS, **ITEMS}[name], tau=0.4)
    x, offsets = data(rng, lengths=[2, 0, 3, 1])
    def loss(x): return f(x, offsets=offsets).square().sum()
    ends = offsets.tolist()                          # which torch 2.7 cannot give inside torch.func
    def wanted(x): return sum(f(x[a:b]).square().sum() for a, b in zip(ends, ends[1:]) if a < b)
    v = torch.randn(6, generator=rng, dtype=f64)
    assert_close(torch.func.grad(loss)(x), torch.func.grad(wanted)(x), rtol=1e-11, atol=1e-12)
    assert_close(torch.func.jvp(loss, (x,), (v,))[1], torch.func.grad(wanted)(x) @ v, rtol=1e-11, atol=1e-12)
    assert_close(torch.func.hessian(loss)(x), torch.func.hessian(wanted)(x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", KERNELS)
def test_a_temperature_for_each_list_learns(name, rng):
    "In values with ties and lists of every size, as in each list alone."
    f, (x, offsets) = KERNELS[name], data(rng)
    x, w = x.mul(4).round().div(4), torch.randn(x.shape, generator=rng, dtype=f64)
    tau = torch.rand(len(LENGTHS), generator=rng, dtype=f64).add(0.2).requires_grad_()
    y = f(x, tau=tau, offsets=offsets)
    want = torch.cat([f(part, tau=t) for part, t in zip(alone(x, offsets), tau) if part.numel()])
    assert_close(y, want, rtol=1e-12, atol=1e-12)
    assert_close(*(torch.autograd.grad((v * w).sum(), tau)[0] for v in (y, want)), rtol=1e-10, atol=1e-11)


def test_gradients_twice(rng):
    x, offsets = data(rng, lengths=[2, 0, 3, 2])
    x.requires_grad_()
    def f(x): return F.soft_rank(x, method="sigmoid", offsets=offsets), F.soft_sort(x, method="neuralsort", offsets=offsets)
    assert torch.autograd.gradcheck(f, x) and torch.autograd.gradgradcheck(f, x)
    assert_close(torch.func.vmap(lambda x: f(x)[0])(torch.stack([x, -x])), torch.stack([f(x)[0], f(-x)[0]]))


def test_calls_follow_lengths_not_lists():
    "Ten thousand lists under Zipf's law are some hundred calls."
    lengths = (2000 * torch.arange(1, 10_001.0) ** -0.8).long().clamp(min=1)
    groups = by_length(offsets_of(lengths)).groups
    assert len(groups) < (2 * lengths.sum()) ** 0.5 + 1 and sum(n * c for n, c in groups) == lengths.sum()
    assert len(groups) < 400


NEAR = [3, 0, 9, 4, 5, 5, 1, 8, 2, 7, 300, 0, 6, 2]     # from one to nine they share a call
MANY = dict(soft_sort=F.soft_sort, soft_rank=F.soft_rank, soft_argsort=F.soft_argsort, topk_mask=partial(F.soft_topk_mask, k=1), median=F.soft_median)
WAYS = [(name, method) for name in ("soft_sort", "soft_rank", "soft_argsort", "median") for method in ("neuralsort", softsortlib.SoftSort(0.5, power=2), softsortlib.SoftSort(0.5, power=3), "network", "lapsum")]
WAYS += [("soft_sort", "permutahedron"), ("soft_rank", "permutahedron"), ("soft_rank", "gaussian"), ("soft_rank", "sinkhorn"), ("topk_mask", None)]


@pytest.mark.parametrize("name, method", WAYS, ids=lambda v: getattr(v, "power", v))
@pytest.mark.parametrize("descending", (False, True))
def test_lists_that_share_a_call_are_as_if_alone(name, method, descending, rng):
    "Values, gradients and their derivatives, at a temperature for each list."
    options = dict(method=method) if method else {}
    if name in ("soft_sort", "soft_rank", "soft_argsort"): options["descending"] = descending
    x, offsets = 3e3 + torch.randn(2, sum(NEAR), generator=rng, dtype=f64), offsets_of(NEAR)
    tau = 0.2 + torch.rand(len(NEAR), generator=rng, dtype=f64)
    x.requires_grad_()
    assert len(by_length(offsets, WORTH).groups) == 3
    def at(tau): return {} if isinstance(method, Operator) else dict(tau=tau)
    got = MANY[name](x, offsets=offsets, **at(tau), **options)
    want = [MANY[name](x[:, a:b], **at(t), **options) for a, b, t in zip(offsets, offsets[1:], tau) if b > a]
    if name == "median": got, want = got[:, offsets.diff() > 0], [v[:, None] for v in want]
    assert_close(got, torch.cat(want, 1), rtol=1e-10, atol=1e-10)
    w = torch.randn(got.shape, generator=rng, dtype=f64)
    slopes = [torch.autograd.grad((v * w).sin().sum(), x, create_graph=True)[0] for v in (got, torch.cat(want, 1))]
    assert_close(*slopes, rtol=1e-7, atol=1e-8)
    if slopes[0].requires_grad:
        v = torch.randn(x.shape, generator=rng, dtype=f64)
        assert_close(*(torch.autograd.grad((slope * v).sum(), x)[0] for slope in slopes), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ("neuralsort", softsortlib.SoftSort(0.5, power=2), "network", "lapsum", "permutahedron"))
def test_a_broken_list_does_not_break_those_that_share_its_call(method, rng):
    x, offsets = torch.randn(sum(NEAR), generator=rng), offsets_of(NEAR)
    options = dict(offsets=offsets, method=method) | ({} if isinstance(method, Operator) else dict(tau=0.5))
    want = F.soft_sort(x, **options)
    x[offsets[3] - 1], x[offsets[5]] = torch.nan, 1e30
    got, hit = F.soft_sort(x, **options), torch.zeros(len(x), dtype=torch.bool)
    for i in (2, 5): hit[offsets[i]:offsets[i + 1]] = True
    assert_close(got[~hit], want[~hit])
    assert got[offsets[2]:offsets[3]].isnan().any()


def test_the_functions_of_the_package_take_offsets():
    for name in ("soft_sort", "soft_rank", "soft_argsort", "soft_topk", "soft_topk_mask", "soft_quantile", "soft_permutation"):
        import inspect
        assert "offsets" in inspect.signature(getattr(softsortlib, name)).parameters


IDS = torch.tensor([7, 3, 7, 3, 3, -1, 7, 3, 3, 7])


@pytest.mark.parametrize("call", [F.soft_sort, F.soft_rank, partial(F.soft_rank, descending=True), partial(F.soft_rank, method="sigmoid"), partial(F.soft_sort, method="neuralsort"), partial(F.soft_topk_mask, k=1)], ids=["sort", "rank", "falling", "sigmoid", "neuralsort", "top k"])
@pytest.mark.parametrize("dim", (0, 1))
def test_items_of_a_list_lie_anywhere(call, dim, rng):
    "Every item gets what it gets in its list alone, at its own place; so do gradients."
    x = torch.randn(2, 10, generator=rng, dtype=f64).movedim(1, dim).contiguous().requires_grad_()
    w = torch.randn(x.shape, generator=rng, dtype=f64)
    y = call(x, dim=dim, offsets=ragged.offsets_from(ids=IDS), tau=0.3)
    want = torch.empty_like(x)
    for i in IDS.unique():
        here = (IDS == i).nonzero()[:, 0]
        want = want.index_copy(dim, here, call(x.index_select(dim, here), dim=dim, tau=0.3))
    assert_close(y, want, rtol=1e-12, atol=1e-12)
    assert_close(*(torch.autograd.grad((v * w).sum(), x)[0] for v in (y, want)), rtol=1e-9, atol=1e-12)


def test_lists_by_id_come_by_increasing_id(rng):
    x, y = torch.randn(10, generator=rng, dtype=f64), torch.randint(3, (10,), generator=rng)
    lists = ragged.offsets_from(ids=IDS)
    alone = [IDS == i for i in (-1, 3, 7)]
    assert_close(F.soft_median(x, offsets=lists, tau=0.2), torch.stack([F.soft_median(x[one], tau=0.2) for one in alone]))
    assert_close(losses.spearman_loss(x, y, offsets=lists, tau=0.2, reduction="none"), torch.stack([losses.spearman_loss(x[one], y[one], tau=0.2) for one in alone]))
    assert_close(losses.approx_ndcg_loss(x, y, offsets=lists, tau=0.2), losses.approx_ndcg_loss(x[lists.order], y[lists.order], offsets=lists.offsets, tau=0.2))
    assert losses.hard_metric(losses.ApproxNDCGLoss(), x, y, offsets=lists) == losses.hard_metric(losses.ApproxNDCGLoss(), x[lists.order], y[lists.order], offsets=lists.offsets)
    tau = torch.tensor([0.1, 1.0, 2.0], dtype=f64)
    assert_close(F.soft_rank(x, offsets=lists, tau=tau)[alone[2]], F.soft_rank(x[alone[2]], tau=2.0))


def test_ids_as_a_file_has_them():
    for ids in (IDS, IDS.int(), IDS.tolist(), IDS.numpy()):
        offsets, order = ragged.offsets_from(ids=ids)
        assert offsets.tolist() == [0, 1, 6, 10] and order.tolist() == [5, 1, 3, 4, 7, 8, 0, 2, 6, 9]
    offsets, order = ragged.offsets_from(sizes=[2, 0, 3])
    assert offsets.tolist() == [0, 2, 2, 5] and order.tolist() == [0, 1, 2, 3, 4]
    offsets, order = ragged.offsets_from(ids=[])
    assert offsets.tolist() == [0] and order.tolist() == []


@pytest.mark.parametrize("call, error, text", [
    (lambda x: ragged.offsets_from(), ValueError, "got neither"), (lambda x: ragged.offsets_from(ids=[1], sizes=[1]), ValueError, "got both"),
    (lambda x: ragged.offsets_from(ids=x), TypeError, "ids must be whole numbers, got torch.float32: torch.unique"), (lambda x: ragged.offsets_from(ids=["a", "b"]), TypeError, "ids must be whole numbers"),
    (lambda x: ragged.offsets_from(ids=torch.ones(2, 2).long()), ValueError, r"ids must have one entry for each item, \(N,\)"), (lambda x: ragged.offsets_from(sizes=[-1]), ValueError, "sizes must be"),
    (lambda x: F.soft_rank(x, offsets=ragged.offsets_from(ids=[1, 2])), ValueError, "offsets must be of the 3 items, got those of 2"),
    (lambda x: losses.spearman_loss(x, x, offsets=ragged.offsets_from(sizes=[4])), ValueError, "offsets must be of the 3 items, got those of 4"),
    (lambda x: F.soft_topk(x, 1, offsets=ragged.offsets_from(ids=[1, 2, 1])), ValueError, r"a map, got a ListOrder: unpack offsets, order"),
    (lambda x: losses.ideal_order(x, offsets=ragged.offsets_from(ids=[1, 2, 1])), ValueError, "offsets must be a tensor here"),
    (lambda x: F.soft_rank(x, offsets=torch.tensor([2, 1])), ValueError, r"as lengths do: pass ragged.offsets_from\(sizes=offsets\)"), (lambda x: F.soft_rank(x, offsets=torch.tensor([0, 0, 1])), ValueError, r"the number of its list: pass ragged.offsets_from\(ids=offsets\)"),
])
def test_what_are_no_lists_is_said(call, error, text):
    with pytest.raises(error, match=text): call(torch.randn(3))


@pytest.mark.parametrize("of", [Of.SORT, Of.RANK, Of.LAPLACE, Of.SIGMOID])
def test_a_tracer_sees_the_shapes_of_lists_in_several_rows(of):
    "What is saved for the way back has a row for each row of scores, too."
    op = torch.ops.softsortlib.lists
    args = torch.randn(2, 7), torch.ones(2, 2), torch.tensor([0, 3, 7])
    made = op(*args, int(of))
    with FakeTensorMode() as mode:
        seen = op(*map(mode.from_tensor, args), int(of))
    assert [(a.shape, a.dtype) for a in made] == [(a.shape, a.dtype) for a in seen]


def test_rows_without_a_list():
    "No list and no item in several rows: an empty result for each row, and a gradient of the shape of the scores."
    scores = torch.zeros(2, 0, requires_grad=True)
    loss = losses.spearman_loss(scores, torch.zeros(2, 0), offsets=torch.tensor([0]), reduction="none")
    assert loss.shape == (2, 0)
    loss.sum().backward()
    assert scores.grad.shape == (2, 0)
