"""Soft top-k masks: against enumeration, against exact solutions of other means, on every backend, and at the edges of their contract."""
import itertools
import math

import pytest
import torch
from torch.testing import assert_close

import softsortlib.selection.roots as roots
from softsortlib import soft_topk_mask
from softsortlib.engine import mechanism
from softsortlib.selection import (
    SimpleTopK, SinkhornTopK, SparseTopK, ThresholdTopK, TopKMask, TopKRouter, get_topk_mask, subset_marginals,
)
from softsortlib.selection.masks import LaplaceTopK, hard_mask
from softsortlib.selection.roots import Law, step_value, step_weights

NAMES = ("lapsum", "sinkhorn", "sparse", "threshold", "simple")
REAL = ("lapsum", "sinkhorn", "sparse")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def scores(*shape, rng, dtype=torch.float64): return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)


def subsets(n, k): return torch.tensor([[float(i in chosen) for i in range(n)] for chosen in itertools.combinations(range(n), k)], dtype=torch.float64)


# ---- against truths of other means ----

@pytest.mark.parametrize("n", range(2, 9))
def test_simple_is_the_enumeration_values_gradients_and_curvature(n, rng):
    for k in range(1, n):
        for tau in (0.05, 0.7, 20.0):
            s = scores(n, rng=rng)
            S = subsets(n, k)
            p = (S @ s / tau).softmax(0)
            w = p @ S
            x = s.clone().requires_grad_()
            assert_close(SimpleTopK(k, tau)(x), w, rtol=1e-12, atol=1e-14)
            assert_close(subset_marginals(s, k, tau), w, rtol=1e-12, atol=1e-14)
            g = scores(n, rng=rng)
            grad, = torch.autograd.grad(SimpleTopK(k, tau)(x) @ g, x, create_graph=True)
            centred = S - w
            assert_close(grad, (p * (centred @ g)) @ centred / tau, rtol=1e-9, atol=1e-12 / tau)             # (K4.2)
            third = (p * (centred @ g).square()) @ centred                                                    # d(g Cov g)
            assert_close(torch.autograd.grad(grad @ g, x)[0], third / tau ** 2, rtol=1e-8, atol=1e-11 / tau ** 2)


def capped_simplex(y, k):
    "The Euclidean projection of y (n,) onto the polytope, exact: try every number of ones and of zeros."
    t = y.sort(descending=True).values
    best = None
    for ones in range(len(y) + 1):
        for inside in range(len(y) - ones + 1):
            w = torch.zeros_like(t)
            w[:ones] = 1
            if inside:
                part = t[ones:ones + inside]
                w[ones:ones + inside] = part - (part.sum() - (k - ones)) / inside
            if abs(w.sum() - k) > 1e-9 or w.min() < -1e-12 or w.max() > 1 + 1e-12: continue
            far = (w - t).square().sum()
            if best is None or far < best[0]: best = far, w
    return torch.empty_like(y).scatter(0, y.argsort(descending=True), best[1])


@pytest.mark.parametrize("k", [1, 2.4, 3, 5])
def test_sparse_is_the_projection(k, rng):
    for tau in (0.03, 0.5, 3.0, 100.0):
        s = scores(6, rng=rng)
        assert_close(SparseTopK(k, tau)(s), capped_simplex(s / tau, k), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("k", [1, 2.4, 5])
def test_the_cube_meets_the_conditions_of_its_optimum(k, rng):
    "s - tau w^(1/3) is one number for weights inside, no more at ones, no less at zeros."
    for tau in (0.3, 3.0, 100.0):
        s = scores(40, rng=rng)
        w = SparseTopK(k, tau, p=4 / 3)(s)
        assert_close(w.sum().item(), float(k), rtol=1e-12, atol=0)
        slope = s - tau * w.clamp(min=0) ** (1 / 3)
        inside = (w > 0) & (w < 1)
        b = slope[inside].mean() if inside.any() else slope[w == 1].min()   # Prop K6.4: the hard mask
        assert ((slope[inside] - b).abs() < 1e-9 * tau).all()
        assert (slope[w == 1] >= b - 1e-9 * tau).all() and (slope[w == 0] <= b + 1e-9 * tau).all()


@pytest.mark.parametrize("law, law_value", [(Law.LINEAR, lambda v: v.clamp(0, 1)), (Law.CUBE, lambda v: v.clamp(0, 1) ** 3), (Law.LOGISTIC, torch.sigmoid)])
def test_a_threshold_by_bisection_gives_the_same(law, law_value, rng):
    for n, k, tau in [(3, 1, 0.2), (30, 4.7, 1.0), (300, 250, 5.0)]:
        s = scores(n, rng=rng)
        low, high = s.min() - 60 * tau, s.max() + 60 * tau
        for _ in range(200):
            b = (low + high) / 2
            low, high = (b, high) if law_value((s - b) / tau).sum() > k else (low, b)
        assert_close(step_weights(s[None], torch.full((1, 1), tau, dtype=s.dtype), torch.full((1, 1), k, dtype=s.dtype), law)[0], law_value((s - b) / tau), rtol=1e-9, atol=1e-10)


# ---- fast and plain ----

@pytest.mark.parametrize("law", list(Law))
@pytest.mark.parametrize("decade", [-6, -3, -1, 0, 1, 3, 6])
@pytest.mark.parametrize("kind", ["normal", "ties", "outlier"])
def test_the_kernel_is_the_plain_twin(law, decade, kind, rng, monkeypatch):
    for n, k in [(2, 1.0), (9, 3.5), (200, 7.0), (200, 150.0)]:
        s = scores(3, n, rng=rng)
        if kind == "ties": s = s.round()
        if kind == "outlier": s[:, 0] = -1e12
        tau, g = torch.full((3, 1), 10.0 ** decade, dtype=s.dtype), scores(3, n, rng=rng)
        ks = torch.full((3, 1), k, dtype=s.dtype)
        def both(): return step_weights(x := s.clone().requires_grad_(), tau, ks, law), x
        w, x = both()
        grad, = torch.autograd.grad(w, x, g)
        monkeypatch.setattr(mechanism, "choose", lambda *a, **b: "torch")
        plain, y = both()
        plain_grad, = torch.autograd.grad(plain, y, g)
        monkeypatch.undo()
        assert_close(w, plain, rtol=1e-12, atol=1e-12)
        assert_close(w.sum(-1, keepdim=True), ks, rtol=1e-12, atol=0)
        assert_close(grad, plain_grad, rtol=1e-10, atol=1e-11 * max(1.0, plain_grad.abs().max().item()))


def test_a_selection_by_insertion_is_that_of_torch(rng):
    for n in (1, 5, 40, 100):
        s = scores(7, n, rng=rng, dtype=torch.float32).round()
        for c in {1, min(n, 32)}:
            top, place = torch.empty(7, c, dtype=torch.float64), torch.empty(7, c, dtype=torch.long)
            assert not any(roots.largest(*row) for row in zip(s.numpy(), top.numpy(), place.numpy()))
            assert torch.equal(s.gather(-1, place), s.topk(c).values) and torch.equal(top, s.topk(c).values.double())


def test_the_tree_is_the_table(rng):
    for n, k in [(2, 1), (33, 5), (120, 60), (257, 256)]:
        s = scores(2, n, rng=rng)
        for tau in (0.02, 1.0, 100.0): assert_close(SimpleTopK(k, tau)(s), subset_marginals(s, k, tau), rtol=1e-9, atol=1e-13)


# ---- the contract ----

@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_limits_order_ties_and_dtypes(name, dtype, rng):
    for n in (2, 7, 100):
        s = torch.randperm(n, generator=rng).to(dtype)
        for k in {1, n // 2 + 1, n}:
            for largest in (True, False):
                w = get_topk_mask(name, k=k, tau=1e-3, largest=largest)(s)
                assert w.dtype == dtype
                assert_close(w, torch.zeros_like(s).scatter(-1, s.topk(k, largest=largest).indices, 1))
            w = get_topk_mask(name, k=k, tau=0.8)(s.round())
            assert (w >= 0).all() and (w <= 1).all() and (w[s.argsort()].double().diff() >= -1e-6).all()
            if name != "threshold" or k == n: assert_close(get_topk_mask(name, k=k, tau=1e6)(s), torch.full_like(s, k / n), rtol=1e-2, atol=1e-3)
    tied = get_topk_mask(name, k=2, tau=0.3)(torch.zeros(8, dtype=dtype))
    assert_close(tied, torch.full((8,), 0.5 if name == "threshold" else 0.25, dtype=dtype))


@pytest.mark.parametrize("name", NAMES)
def test_masks_sets_chosen_whole_and_nan(name, rng):
    s, mask = scores(5, 12, rng=rng), torch.rand(5, 12, generator=rng) < 0.6
    mask[3], mask[4] = False, torch.arange(12) < 2
    top = get_topk_mask(name, k=3, tau=0.4)
    x = torch.where(mask, s, math.nan).requires_grad_()
    w = top(x, mask)
    assert (w[~mask] == 0).all() and torch.equal(w[4], mask[4].double())
    for i in range(3): assert_close(w[i][mask[i]], top(s[i][mask[i]]))
    grad, = torch.autograd.grad((w * torch.where(mask, s, 0)).sum(), x)
    assert grad.isfinite().all() and (grad[~mask] == 0).all() and (grad[3:] == 0).all()
    bad = s.clone(); bad[1, 0] = math.nan
    assert_close(top(bad)[[0, 2, 3]], top(s)[[0, 2, 3]], rtol=1e-13, atol=0)
    assert_close(get_topk_mask(name, k=torch.tensor([1, 2, 3, 4, 12]), tau=0.4)(s)[2], top(s)[2])
    assert (get_topk_mask(name, k=torch.tensor([1, 2, 3, 4, 12]), tau=0.4)(s)[4] == 1).all()
    assert torch.equal(get_topk_mask(name, k=1)(torch.tensor([[0.3], [2.0]])), torch.ones(2, 1))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_twice_with_a_mask_and_a_temperature(name, rng):
    x = (scores(2, 6, rng=rng) * 2).requires_grad_()
    tau = torch.tensor([0.9, 1.7], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True] * 6, [True, False, True, True, True, True]])
    def f(x, tau): return get_topk_mask(name, k=2, tau=tau)(x, mask)
    assert torch.autograd.gradcheck(f, (x, tau))
    assert torch.autograd.gradgradcheck(f, (x, tau))


@pytest.mark.parametrize("name", REAL)
def test_a_learned_k(name, rng):
    s = scores(3, 9, rng=rng)
    k = torch.nn.Parameter(torch.tensor([1.5, 2.2, 7.9], dtype=torch.float64))
    top = get_topk_mask(name, k=k, tau=1.3)
    assert torch.autograd.gradcheck(lambda k, x: get_topk_mask(name, k=k, tau=1.3)(x), (k, s.requires_grad_()))
    assert torch.autograd.gradgradcheck(lambda k, x: get_topk_mask(name, k=k, tau=1.3)(x), (k, s))
    assert_close(torch.autograd.grad(top(s).sum(), k)[0], torch.ones_like(k), rtol=1e-9, atol=0)
    assert [n for n, _ in top.named_parameters()] == ["k"]
    optimiser = torch.optim.Adam(top.parameters(), lr=0.1)         # as many as it takes for a sum of weighted scores of 3
    x = torch.rand(3, 9, generator=rng, dtype=torch.float64) + 0.5
    for _ in range(200):
        optimiser.zero_grad(); (((top(x) * x).sum(-1) - 3) ** 2).sum().backward(); optimiser.step()
    assert_close((top(x) * x).sum(-1), torch.full((3,), 3.0).double(), rtol=1e-2, atol=0)


@pytest.mark.parametrize("name", ("threshold", "simple"))
def test_k_is_whole_where_it_must_be(name):
    for k in (2.5, torch.tensor(2.0), torch.nn.Parameter(torch.tensor(2.0)), True):
        with pytest.raises(TypeError, match="k must be"): get_topk_mask(name, k=k)
    with pytest.raises(TypeError, match="'lapsum', 'sinkhorn' and 'sparse'"): soft_topk_mask(torch.zeros(4), 1.5, method=name)


@pytest.mark.parametrize("name", NAMES)
def test_transforms(name, rng):
    s = scores(3, 50, rng=rng)
    top = get_topk_mask(name, k=4, tau=0.3)
    assert_close(torch.func.vmap(top)(s), top(s))
    def loss(x): return top(x).square().sum()
    x = s.clone().requires_grad_()
    assert_close(torch.func.grad(loss)(s), torch.autograd.grad(loss(x), x)[0])
    torch._dynamo.reset()
    assert_close(torch.compile(top, fullgraph=True, backend="aot_eager")(s), top(s))


@pytest.mark.parametrize("name", NAMES)
def test_hard_forward_and_shapes(name, rng):
    x = scores(4, 6, 5, rng=rng).requires_grad_()
    for dim, largest in itertools.product((0, 1, -1), (True, False)):
        w = soft_topk_mask(x, 2, dim, largest, method=name, tau=0.3, hard=True)
        assert_close(w, torch.zeros_like(x).scatter(dim, x.topk(2, dim, largest).indices, 1))
        soft = soft_topk_mask(x, 2, dim, largest, method=name, tau=0.3)
        assert_close(torch.autograd.grad((w * x.detach()).sum(), x)[0], torch.autograd.grad((soft * x.detach()).sum(), x)[0])


def test_hard_masks_of_any_k(rng):
    s = scores(3, 7, rng=rng)
    mask = torch.tensor([[True] * 7, [True, True] + [False] * 5, [False] * 7])
    h = hard_mask(s, torch.tensor([[2.5], [3.0], [1.0]], dtype=torch.float64), mask)
    assert_close(h.sum(-1), torch.tensor([2.5, 2.0, 0.0]).double())
    assert_close(h[0].sort(descending=True).values, torch.tensor([1, 1, 0.5, 0, 0, 0, 0]).double())


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_at_every_temperature_and_spacing(dtype, rng):
    "A threshold that is a number would be rounded to the spacing of the scores."
    for s in (torch.full((60,), 1e3), torch.full((60,), -3e4), 1000 + torch.arange(60) % 3, scores(60, rng=rng) * 100, torch.cat([scores(59, rng=rng), torch.tensor([6e4])])):
        s = s.to(dtype)
        for tau, k, name in itertools.product((1e-12, 1e-6, 1.0, 1e6), (1, 7, 59), ("sinkhorn", "sparse", "simple")):
            w = get_topk_mask(name, k=k, tau=tau)(s).double()
            assert abs(w.sum().item() - k) < (2e-6 if dtype.itemsize > 2 else 1e-2) * max(k, 10), (name, tau, k)


def test_errors():
    x = torch.zeros(2, 5)
    for call, kind, text in [
            (lambda: soft_topk_mask(x, 6), ValueError, "at most the 5"), (lambda: soft_topk_mask(x, 0), ValueError, "more than 0"), (lambda: soft_topk_mask(x, "2"), TypeError, "k must be"),
            (lambda: soft_topk_mask(x, torch.ones(3)), ValueError, "broadcast"), (lambda: soft_topk_mask(x, 2, method="sparce"), ValueError, "did you mean 'sparse'"),
            (lambda: soft_topk_mask(x, 2, method=SparseTopK(2)), ValueError, "already"), (lambda: soft_topk_mask(x + math.inf, 2), ValueError, "finite"),
            (lambda: soft_topk_mask(x, 2, tau=0.0), ValueError, "tau"), (lambda: soft_topk_mask(x, 2, hard="no"), TypeError, "hard"), (lambda: SparseTopK(2, p=1.5), ValueError, "p must be"),
            (lambda: SinkhornTopK(torch.tensor([1.0, -1.0])), ValueError, "more than 0"), (lambda: TopKMask(2)(x), NotImplementedError, "does not say"), (lambda: ThresholdTopK(2)(x.long()), TypeError, "floating")]:
        with pytest.raises(kind, match=text): call()


# ---- samples and routers ----

def test_samples_are_subsets_with_the_right_chances(rng):
    s = scores(6, rng=rng)
    mask = torch.tensor([True, True, False, True, True, True])
    z = SimpleTopK(2, 0.8).sample(s.expand(40_000, 6), mask, rng)
    assert ((z == 0) | (z == 1)).all() and (z.sum(-1) == 2).all() and (z[:, 2] == 0).all()
    assert (z.mean(0) - SimpleTopK(2, 0.8)(s, mask)).abs().max() < 0.012
    pairs = z[:, mask] @ (2.0 ** torch.arange(5).double())
    S = subsets(5, 2)
    p = (S @ s[mask] / 0.8).softmax(0)
    for chosen, chance in zip(S, p): assert abs((pairs == chosen @ (2.0 ** torch.arange(5).double())).double().mean() - chance) < 0.012
    one = SimpleTopK(2, 0.8, largest=False)
    assert torch.equal(one.sample(s, generator=torch.Generator().manual_seed(5)), one.sample(s, generator=torch.Generator().manual_seed(5)))
    x = s.clone().requires_grad_()
    assert_close(torch.autograd.grad(one.sample(x, generator=rng) @ s, x)[0], torch.autograd.grad(one(x) @ s, x)[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_router_is_the_usual_one_with_a_gradient_for_the_choice(name, rng):
    x = scores(50, 8, rng=rng).requires_grad_()
    w, i, loss = TopKRouter(2, name, tau=0.8, balance=0.5)(x)
    assert torch.equal(i, x.topk(2).indices) and loss.ndim == 0
    assert_close(w, x.gather(-1, i).softmax(-1))
    p = x.softmax(-1)
    share = torch.bincount(i.flatten(), minlength=8) / 100
    assert_close(loss, 0.5 * 8 * (share * p.mean(0)).sum())
    grad, = torch.autograd.grad(w[:, 0].sum(), x, retain_graph=True)
    assert (grad.scatter(-1, i, 0) != 0).any()
    assert torch.autograd.grad(loss, x)[0].abs().sum() > 0


@pytest.mark.parametrize("mask", (SparseTopK, lambda k, tau: SparseTopK(k, tau, p=4 / 3), SinkhornTopK, ThresholdTopK, LaplaceTopK), ids=("line", "cube", "logistic", "middle", "laplace"))
@pytest.mark.parametrize("dtype", (torch.float64, torch.float32))
def test_a_router_in_one_pass_is_the_one_in_many(mask, dtype, rng):
    "A k that is a tensor takes the path of Prop K5.1, operation after operation (K8.3)."
    for shape, k in (((50, 8), 2), ((3, 4, 40), 3), ((2, 3), 1), ((5, 64), 20)):
        x = (3 * scores(*shape, rng=rng)).to(dtype).requires_grad_()
        g = torch.randn(*shape[:-1], k, generator=rng, dtype=dtype)
        found = [TopKRouter(k, mask(count, 0.7), balance=0.3)(x) for count in (k, torch.tensor(k))]
        assert torch.equal(found[0].indices, found[1].indices)
        for a, b in zip(found[0][::2], found[1][::2]): assert_close(a, b)
        grads = [torch.autograd.grad(r.weights, x, g)[0] for r in found]
        assert_close(*grads, rtol=1e-9 if dtype == torch.float64 else 1e-4, atol=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("name", ("sparse", "sinkhorn", "threshold", "lapsum"))
def test_a_router_with_scores_that_are_no_numbers_and_a_temperature_that_learns(name, rng):
    x = scores(3, 6, rng=rng)
    x[0, 4], x[1, 2:] = torch.nan, -torch.inf
    w, i, _ = TopKRouter(2, name)(x.requires_grad_())
    assert w[0].isnan().all() and w[1:].isfinite().all() and set(i[1].tolist()) == {0, 1}
    assert torch.autograd.grad(w[2, 0], x)[0][2].isfinite().all()
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    y = scores(4, 6, rng=rng)
    one, many = (torch.autograd.grad(TopKRouter(2, get_topk_mask(name, k=k, tau=tau))(y).weights[:, 0].sum(), tau)[0] for k in (2, torch.tensor(2)))
    assert_close(one, many)
    s = scores(4, 6, rng=rng).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda s: TopKRouter(2, name, tau=0.7)(s).weights, s)


def test_a_router_in_half_precision_and_compiled(rng):
    x = scores(20, 8, rng=rng, dtype=torch.bfloat16)
    router = TopKRouter(2, tau=0.5)
    assert router(x).weights.dtype == torch.bfloat16
    torch._dynamo.reset()
    y = x.float()
    for a, b in zip(torch.compile(router, fullgraph=True, backend="aot_eager")(y), router(y)): assert_close(a, b)


@pytest.mark.parametrize("n", (6, 40))
@pytest.mark.parametrize("call", ("mask", "tau", "func", "router"))
def test_ties_share_the_threshold_of_the_middle(call, n):
    "Those tied with the k-th or the next score have equal gradients, wherever they stand."
    for first in range(2):
        s = torch.ones(n, dtype=torch.float64)
        s[first * (n - 1)] = 2.0
        s.requires_grad_()
        tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=call == "tau")
        def top(s): return soft_topk_mask(s, 2, method="threshold", tau=tau)[first * (n - 1)]
        routed = TopKRouter(3, tau=0.5, method="threshold")(s)
        if call == "router": g, = torch.autograd.grad(routed.weights[0], s)
        elif call == "func": g = torch.func.grad(top)(s)
        else: g, = torch.autograd.grad(top(s), s)
        tied = g[(s == 1).index_fill(0, routed.indices, False)] if call == "router" else g[s == 1]      # the chosen are weighed besides
        torch.testing.assert_close(tied, tied[:1].expand(len(tied)), rtol=1e-12, atol=0)
        assert tied[0] != 0


@pytest.mark.parametrize("law", [Law.LOGISTIC, Law.LINEAR, Law.CUBE])
def test_a_dozen_steps_find_nine_roots_in_ten(law, rng, monkeypatch):
    "Newton's steps square the error, where halving the interval would leave a thousandth."
    u, k = 3 * torch.randn(200, 50, generator=rng, dtype=torch.float64), 1 + 48 * torch.rand(200, 1, generator=rng, dtype=torch.float64)
    u = u - u.sort(-1, descending=True).values.gather(-1, k.ceil().long() - 1)
    right = roots.root_plain(u, law, k)
    monkeypatch.setattr(roots, "_STEPS", 12)
    assert (roots.root_plain(u, law, k) - right).abs().flatten().quantile(0.9) < 1e-10
