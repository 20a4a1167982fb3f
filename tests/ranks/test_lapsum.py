"""LapSum: weights, rows and products against brute force, in every form the functional face offers them."""
import math

import pytest
import torch
from torch.testing import assert_close

import softsortlib.engine.dispatch as dispatch
import softsortlib.ranks.laplace as laplace
import softsortlib.ranks.lapsum as module
import softsortlib.ranks.lapsum_matrix as matrices
import softsortlib.ranks.line as line
from softsortlib import soft_rank, soft_sort, soft_topk
from softsortlib.engine.scan import one_sided_sums
from softsortlib.ranks.laplace import lapsum_topk
from softsortlib.ranks.lapsum import LapSum, LapSumPermutation
from softsortlib.ranks.one_sided import one_sided


def cdf(x): return torch.where(x < 0, x.clamp(max=0).exp() / 2, 1 - (-x.clamp(min=0)).exp() / 2)


def brute(s, k, tau):
    "Weights of the k largest of s (n,) by bisection in double precision."
    low, high = s.min() - 60 * tau, s.max() + 60 * tau
    for _ in range(200):
        b = (low + high) / 2
        low, high = (b, high) if cdf((s - b) / tau).sum() > k else (low, b)
    return cdf((s - b) / tau)


def weights(x, k, dim=-1, **kwargs):
    P = soft_topk(x, k, dim, method="lapsum", **kwargs)[1]
    return P.mT @ torch.ones(k, dtype=x.dtype)


@pytest.mark.parametrize("n", [1, 2, 9, 70, 300])
@pytest.mark.parametrize("tau", [1e-2, 0.4, 30.0])
def test_weights_are_those_of_brute_force_and_sum_to_k(n, tau, rng):
    s = torch.randn(3, n, generator=rng, dtype=torch.float64)
    for k in sorted({1, (n + 1) // 2, n}):
        for largest in (True, False):
            w = weights(s, k, largest=largest, tau=tau)
            assert_close(w.sum(-1), torch.full((3,), float(k), dtype=s.dtype), rtol=1e-12, atol=0)
            assert (w >= -1e-15).all() and (w <= 1 + 1e-12).all()
            if k < n: assert_close(w, torch.stack([brute(r if largest else -r, k, tau) for r in s]), rtol=1e-7, atol=1e-10)
            assert_close(w, lapsum_topk(s, k, tau, largest), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n", [7, 90])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("tau", [1e-6, 1e-2, 0.5, 30.0, 1e6])
def test_products_agree_with_the_matrix_values_and_gradients(n, masked, tau, rng):
    s, x, w = (torch.randn(2, n, *d, generator=rng, dtype=torch.float64) for d in ((), (2,), (2,)))
    s[1, :4] = s[1, 5]                                                    # a tie
    mask = torch.rand(2, n, generator=rng) < 0.7 if masked else None
    def outputs(dense):
        z = s.clone().requires_grad_()
        P = LapSum(tau)(z, mask)
        if dense: P = P.to_dense()
        y = P @ x, P.mT @ x, P[..., :3, :] @ x, P[..., :3, :].mT @ x[:, :3], P[..., [3, 1], :] @ x
        return *y, torch.autograd.grad(sum((a * w[:, :a.shape[1]]).sum() for a in y), z)[0]
    for fast, plain in zip(outputs(False), outputs(True)): assert_close(fast, plain, rtol=1e-11, atol=1e-11 * max(1.0, plain.abs().max().item()))


def test_rows_and_columns_sum_to_one_at_extremes(rng):
    for s in (torch.tensor([1.0, 1, 1, 0, 5]), torch.tensor([0.0, 1e30, -1e30]), torch.tensor([1e-30, 0.0, 2e-30]), torch.zeros(6), torch.randn(40, generator=rng)):
        for tau in (1e-30, 1e-6, 1.0, 1e6):
            D = LapSum(tau)(s.double()).to_dense()
            assert_close(D.sum(0), torch.ones_like(D[0]), rtol=1e-10, atol=0); assert_close(D.sum(1), torch.ones_like(D[0]), rtol=1e-10, atol=0)
            assert (D >= 0).all()


@pytest.mark.parametrize("seed", range(30))
def test_the_hard_limit_is_topk_ties_included(seed):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 9, (3, 6, 4), generator=rng).double()
    for dim in (0, 1, -1):
        k = 1 + seed % x.shape[dim]
        for largest in (True, False):
            want = torch.topk(x, k, dim, largest).values
            assert_close(soft_topk(x, k, dim, largest, method="lapsum", tau=1e-4)[0], want)
            assert torch.equal(soft_topk(x, k, dim, largest, method="lapsum", tau=0.8, hard=True)[0], want)
        assert_close(soft_sort(x, dim, method="lapsum", tau=1e-4), x.sort(dim).values)
        assert_close(soft_rank(x, dim, method="lapsum", tau=1e-4), soft_rank(x, dim, hard=True))


def test_gradients_against_finite_differences(rng):
    x = torch.randn(2, 6, generator=rng, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, True]])
    for options in (dict(), dict(mask=mask), dict(largest=False), dict(hard=False, dim=0)):
        k = 2
        torch.autograd.gradcheck(lambda x: soft_topk(x, k, method="lapsum", tau=0.5, **options)[0], x)
        torch.autograd.gradcheck(lambda x: soft_topk(x, k, method="lapsum", tau=0.5, **options)[1].mT @ x.new_ones(k), x)
        torch.autograd.gradgradcheck(lambda x: soft_topk(x, k, method="lapsum", tau=0.5, **options)[0], x)
    y = torch.randn(1, 5000, generator=rng, dtype=torch.float64, requires_grad=True)                # the scans, in one direction
    d, h = torch.randn(1, 5000, generator=rng, dtype=torch.float64), 1e-5
    f = lambda y: (soft_topk(y, 9, method="lapsum", tau=0.3)[0] ** 2).sum()
    [g] = torch.autograd.grad(f(y), y)
    with torch.no_grad(): assert_close((g * d).sum(), (f(y + h * d) - f(y - h * d)) / (2 * h), rtol=1e-6, atol=1e-8)


def test_hard_keeps_the_soft_gradient(rng):
    x, w = torch.randn(3, 7, generator=rng, dtype=torch.float64, requires_grad=True), torch.randn(3, 2, generator=rng, dtype=torch.float64)
    grads = [torch.autograd.grad((soft_topk(x, 2, method="lapsum", tau=0.4, hard=hard)[0] * w).sum(), x)[0] for hard in (True, False)]
    assert torch.equal(*grads) and grads[0].any()


def test_a_mask_is_a_shorter_set(rng):
    x = torch.randn(4, 80, generator=rng, dtype=torch.float64)
    mask = torch.rand(4, 80, generator=rng) < 0.6
    values, P = soft_topk(x.masked_fill(~mask, math.nan), 5, method="lapsum", tau=0.3, mask=mask)
    w = P.mT @ x.new_ones(5)
    for b in range(4):
        short, Q = soft_topk(x[b, mask[b]], 5, method="lapsum", tau=0.3)
        assert_close(values[b], short); assert_close(w[b, mask[b]], Q.mT @ x.new_ones(5))
    assert not w[~mask].any()
    few = torch.zeros(2, 6, dtype=torch.bool); few[0, :2] = True                                    # fewer than k, and none
    values, P = soft_topk(torch.randn(2, 6, generator=rng), 4, method="lapsum", mask=few)
    assert values.isfinite().all() and not values[0, 2:].any() and not values[1].any()
    assert_close(P.mT @ torch.ones(4), few.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_is_computed_in_double(dtype, rng):
    x = torch.randn(2, 500, generator=rng, dtype=torch.float64).to(dtype)
    got, want = weights(x, 20, tau=0.2), weights(x.double(), 20, tau=0.2)
    assert got.dtype == dtype
    assert_close(got.double(), want, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)


def test_a_million_scores_in_linear_memory():
    x = torch.rand(1_000_000, generator=torch.Generator().manual_seed(0), requires_grad=True)
    values, P = soft_topk(x, 100, method="lapsum", tau=1e-3)
    w = P.mT @ torch.ones(100)
    assert abs(w.double().sum().item() - 100) < 1e-3 and (w >= 0).all() and (w <= 1).all()
    assert (values.diff() <= 0).all()
    [g] = torch.autograd.grad(values.sum(), x)
    assert abs(g.sum().item() - 100) < 0.1                                                          # all scores up by one: all values up by one


def test_the_plain_scan_is_the_path_of_other_devices(rng):
    s, x = torch.randn(3, 100, generator=rng, dtype=torch.float64).sort().values, torch.randn(3, 100, 2, generator=rng, dtype=torch.float64)
    tau = torch.tensor([[0.01], [0.3], [5.0]], dtype=torch.float64)
    assert_close(one_sided(s, tau, x, True), one_sided_sums(s, x, tau[:, 0]))
    assert_close(one_sided(s, tau, x, False), one_sided_sums(s.flip(1), x.flip(1), tau[:, 0]).flip(1))
    torch.library.opcheck(one_sided.op, (s[:, :8], tau, x[:, :8].contiguous().requires_grad_(), True))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch loads its own scripts for jacfwd
def test_transforms_beyond_the_small_path(rng):
    s = torch.randn(3, 90, generator=rng, dtype=torch.float64)
    f = lambda s: (soft_topk(s, 4, method="lapsum", tau=0.3)[0] ** 2).sum()
    z = s.clone().requires_grad_()
    want = torch.autograd.grad(f(z), z)[0]
    assert_close(torch.func.vmap(torch.func.grad(f))(s), want)
    assert_close(torch.compile(f, fullgraph=torch.__version__ >= (2, 13), backend="aot_eager")(s), f(s))
    assert_close(torch.func.hessian(f)(s[0]), torch.func.jacrev(torch.func.jacrev(f))(s[0]))


def test_errors_show_the_way(rng):
    x = torch.randn(2, 5, generator=rng)
    with pytest.raises(TypeError, match="'lapsum'"): soft_topk(x, 2, method="laplace")
    with pytest.raises(ValueError, match="did you mean 'lapsum'"): soft_topk(x, 2, method="lapsun")
    with pytest.raises(TypeError, match="lapsum_topk takes a fraction"): soft_topk(x, 2.5, method="lapsum")
    with pytest.raises(ValueError, match="1..5"): soft_topk(x, 6, method="lapsum")
    assert LapSumPermutation(x, 0.5).shape == (2, 5, 5)


# ---- the matrix by its kernel ----

@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [2, 7, 90, 150])
@pytest.mark.parametrize("tau", [1e-6, 1e-2, 0.5, 30.0, 1e6])
def test_the_matrix_is_its_definition(n, tau, dtype, rng):
    "Prop R10.1 against (R4.2) in the log domain: values, and gradients to scores and temperature; masks, ties, both directions, some rows."
    s = torch.randn(3, n, generator=rng, dtype=torch.float64).to(dtype)
    s[1, : n // 2] = s[1, -1]
    T = torch.tensor([tau, 2 * tau, 3 * tau], dtype=torch.float64)
    rows = torch.tensor([n - 1, 0, n // 2])
    for mask in (None, torch.arange(n) < torch.tensor([[n], [max(1, n // 2)], [1]])):
        for descending in (False, True):
            x, t = s.clone().requires_grad_(), T.clone().requires_grad_()
            P = LapSum(1.0, descending)
            P.tau = t
            P = P(x, mask)
            D, want = P.to_dense(), P._log_rows(None).exp().to(dtype)
            if mask is not None: want = want.masked_fill(~P.row_mask[..., None], 0)
            eps = torch.finfo(dtype).eps
            assert D.dtype == dtype
            assert_close(D, want, rtol=40 * eps, atol=40 * eps)
            assert torch.equal(P[..., rows, :].to_dense(), D[:, rows])
            G = torch.randn(3, n, n, generator=rng, dtype=torch.float64).to(dtype)
            got, plain = (torch.autograd.grad(M, (x, t), G, retain_graph=True) for M in (D, want))
            scale = max(b.abs().max().item() for b in plain)
            for a, b in zip(got, plain): assert a.isfinite().all() and (a - b).abs().max() <= 300 * eps * scale + 1e-30


def test_the_matrix_needs_no_more_memory_than_itself():
    import resource
    s = torch.randn(2, 3000, generator=torch.Generator().manual_seed(0)).requires_grad_()
    LapSum(0.1)(s[:, :100]).to_dense().sum().backward()                                             # compile first
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (LapSum(0.1)(s).to_dense().square()).sum().backward()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 6 * 2 * 3000 * 3000 * 4


def test_the_matrix_operators_keep_their_rules(rng):
    s = torch.randn(2, 6, generator=rng, dtype=torch.float64)
    P = LapSumPermutation(s, 0.3)
    cells = [a.detach().contiguous() for a in module._cells(P, None)]
    args = s, P.tau.contiguous(), *cells, P.order, torch.full((2, 1), 6)
    torch.library.opcheck(matrices._matrix.op, (s.clone().requires_grad_(), *args[1:]))
    torch.library.opcheck(matrices._matrix_back.op, (torch.randn(2, 6, 6, generator=rng, dtype=torch.float64), *args))
    f = lambda s: (LapSum(0.4)(s).to_dense() ** 3).sum()
    s = torch.randn(3, 70, generator=rng, dtype=torch.float64)
    z = s.clone().requires_grad_()
    want = torch.autograd.grad(f(z), z)[0]
    assert_close(torch.func.vmap(torch.func.grad(f))(s), want)
    assert_close(torch.func.grad(f)(s), want)
    assert_close(torch.compile(f, fullgraph=True, backend="aot_eager")(s), f(s))
    x = torch.randn(2, 4, generator=rng, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: LapSum(0.5)(x).to_dense(), x)
    torch.autograd.gradgradcheck(lambda x: LapSum(0.5)(x).to_dense(), x)


def test_nan_stays_in_its_matrix(rng):
    s = torch.randn(2, 70, generator=rng)
    bad = s.clone(); bad[0, 3] = math.nan
    D = LapSum(0.3)(bad).to_dense()
    assert D[0].isnan().any() and torch.equal(D[1], LapSum(0.3)(s).to_dense()[1])


@pytest.mark.parametrize("n", [3, 90])
def test_payloads_without_columns(n, rng):
    x = torch.randn(2, n, generator=rng, requires_grad=True)
    for y in (LapSum(0.3)(x) @ torch.empty(2, n, 0), LapSum(0.3)(x).mT @ torch.empty(2, n, 0), LapSum(0.3)(x)[..., :2, :] @ torch.empty(2, n, 0)):
        assert y.shape[-1] == 0
        y.sum().backward()


def test_precision_loss_of_scores_that_are_tied_at_any_temperature():
    from softsortlib.losses import precision_loss
    for tau in (1e-12, 1e-3, 1.0):
        loss = precision_loss(torch.full((60,), 1e6), (torch.arange(60) < 6).float(), k=2, method="lapsum", tau=tau)
        assert 0 <= loss.item() <= 1


# ---- the products by their kernel ----

@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("tau", [1e-6, 0.02, 0.5, 1e6])
def test_products_by_the_walk_are_those_by_scans(tau, dtype, masked, rng):
    "Prop R7.1: values and gradients, the temperature's too, for payloads with more batch dimensions than the scores."
    n = 130
    s = torch.randn(2, n, generator=rng, dtype=torch.float64).to(dtype)
    s[1, :40] = s[1, 50]
    x = torch.randn(3, 2, n, 2, generator=rng, dtype=torch.float64).to(dtype)
    G = torch.randn(3, 2, n, 2, generator=rng, dtype=torch.float64).to(dtype)
    mask = torch.rand(2, n, generator=rng) < 0.7 if masked else None
    rows = torch.arange(n)
    for learn in (False, True):
        leaves = [s.clone().requires_grad_(), x.clone().requires_grad_(), torch.tensor([tau, 3 * tau], dtype=torch.float64, requires_grad=learn)]
        if masked: G = G.masked_fill(~(rows < mask.sum(-1, keepdim=True))[..., None], 0)
        P = LapSum(1.0); P.tau = leaves[2]; P = P(leaves[0], mask)
        for fast, plain in ((lambda: P @ leaves[1], lambda: P[..., rows, :] @ leaves[1]), (lambda: P.mT @ leaves[1], lambda: P[..., rows, :].mT @ leaves[1])):
            a, b = fast(), plain()
            eps = torch.finfo(dtype).eps
            assert_close(a, b, rtol=0, atol=200 * eps)
            wanted = leaves[: 2 + learn]
            got, want = (torch.autograd.grad(y, wanted, G, retain_graph=True) for y in (a, b))
            scale = max(g.abs().max().item() for g in want)
            for g, w in zip(got, want): assert g.isfinite().all() and (g - w).abs().max() <= 2000 * eps * scale


def test_the_product_operators_keep_their_rules(rng):
    s, x = torch.randn(2, 6, generator=rng, dtype=torch.float64), torch.randn(2, 6, 2, generator=rng, dtype=torch.float64)
    rest = s.argsort(-1), torch.full((2, 1), 6)
    tau = torch.full((2, 1), 0.3, dtype=torch.float64)
    first = torch.ones(2, 1, dtype=torch.float64)
    known = line.marks(s, tau, first, *rest, 5)
    torch.library.opcheck(line.marks.op, (s, tau, first, *rest, 5))
    places, rest = (first, *rest), (first, *rest, *known)
    for op in (line.gather, line.spread):
        torch.library.opcheck(op.op, (s.clone().requires_grad_(), tau.clone().requires_grad_(), x.clone().requires_grad_(), *rest))
    for op in (line._gather_back, line._spread_back): torch.library.opcheck(op.op, (x, s, tau, x + 1, *rest, True))
    near, d = line.nearest(s, tau, *places, known)
    torch.library.opcheck(line.roots.op, (s.clone().requires_grad_(), tau.clone().requires_grad_(), near, *rest))
    torch.library.opcheck(line._roots_back.op, (d, s, tau, near, *rest, True))
    rest = rest[1:3]
    w, x, d = laplace._topk(s, tau, 3 * tau, *rest)
    torch.library.opcheck(laplace._topk.op, (s.clone().requires_grad_(), tau.clone().requires_grad_(), 3 * tau, *rest))
    torch.library.opcheck(laplace._topk_back.op, (w, s, tau, 3 * tau, x, d, *rest))
    s = torch.randn(3, 80, generator=rng, dtype=torch.float64)
    f = lambda s: ((LapSum(0.4)(s) @ s) ** 2 * (LapSum(0.4)(s).mT @ torch.arange(80.0).double())).sum()
    z = s.clone().requires_grad_()
    want = torch.autograd.grad(f(z), z)[0]
    assert_close(torch.func.vmap(torch.func.grad(f))(s), want)
    assert_close(torch.compile(f, fullgraph=True, backend="aot_eager")(s), f(s))
    assert torch.func.jacrev(torch.func.jacrev(lambda s: (LapSum(0.4)(s) @ s).square().sum()))(s[0]).isfinite().all()


@pytest.mark.parametrize("home", ["numba", "torch"])
@pytest.mark.parametrize("n", [6, 90])
@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_every_mode_gives_the_same_second_derivatives_to_tau(home, n, rng, monkeypatch):
    "Forward over reverse, reverse over reverse and finite differences, at one temperature and for all that the map can do."
    monkeypatch.setitem(dispatch.HOME, "cpu", home)
    s = torch.randn(n, generator=rng, dtype=torch.float64)
    x, target = torch.randn(n, generator=rng, dtype=torch.float64), torch.randint(0, n, (n,), generator=rng)
    asks = (lambda P: P @ x, lambda P: P.mT @ x, lambda P: P.log_prob(target), lambda P: P.to_dense() ** 2, lambda P: lapsum_topk(s, P.tau[0] + 2, P.tau[0]))
    tau, h = torch.tensor(0.5, dtype=torch.float64), 1e-5
    for ask in asks:
        def f(tau): return ask(LapSum(tau)(s)).square().sum()
        slope = torch.func.grad(f)
        want = (slope(tau + h) - slope(tau - h)) / (2 * h)
        for second in (torch.func.hessian(f), torch.func.jacrev(torch.func.jacrev(f))): assert_close(second(tau), want, rtol=1e-6, atol=1e-6)
        assert_close(torch.func.jvp(f, (tau,), (torch.ones_like(tau),))[1], slope(tau))


def test_a_score_far_away_does_not_move_the_products(rng):
    s = torch.randn(80, generator=rng, dtype=torch.float64)
    for far in (-1e18, 1e18, -1e300, 1e300):
        r = LapSum(0.3)(torch.cat([s, s.new_tensor([far])])).mT @ torch.arange(1.0, 82.0).double()
        assert_close(r[:-1], LapSum(0.3)(s).mT @ torch.arange(1.0, 81.0).double() + (far < 0), rtol=1e-10, atol=1e-10)
        assert_close(r[-1], r.new_tensor(1.0 if far < 0 else 81.0))


@pytest.mark.parametrize("home", ["numba", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_to_k_where_every_density_underflows(home, dtype, monkeypatch):
    monkeypatch.setitem(dispatch.HOME, "cpu", home)
    s = torch.tensor([[0.0, 0, 5000, 5000, 1, 7], [0, 1, 2, 9000, 20_000, 20_000]], dtype=dtype)
    mask = torch.tensor([[True] * 5 + [False], [True] * 6])
    k = torch.tensor([2.0, 3.0], dtype=dtype, requires_grad=True)
    w = lapsum_topk(s, k, 1.0, mask=mask)
    found = torch.stack([torch.autograd.grad(w[:, j].sum(), k, retain_graph=True)[0] for j in range(6)], -1)
    e = math.exp(-1) / (1 + 2 * math.exp(-1)) / 2
    f = 0.5 / (1 + math.e + math.e**2)
    want = torch.tensor([[e, e, 0.25, 0.25, 0.5 - 2 * e, 0], [f, f * math.e, f * math.e**2, 0.5, 0, 0]], dtype=dtype)
    assert_close(found, want, rtol=1e-5, atol=1e-7)
    assert_close(found.sum(-1), torch.ones(2, dtype=dtype))      # one more is wanted, one more is there


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_learned_k_leaves_weights_and_other_gradients_as_they_are(dtype, rng):
    tight = dict(rtol=1e-5, atol=1e-6) if dtype == torch.float32 else dict(rtol=1e-11, atol=1e-12)
    s, g = torch.randn(2, 3, 40, generator=rng, dtype=dtype)
    s[1, :20] = s[1, 30]                                          # half is tied
    for mask in (None, torch.arange(40) < torch.tensor([[40], [33], [9]])):
        for tau in (1e-3, 0.3, 50.0):
            found = []
            for k in (7.5, torch.tensor(7.5, dtype=dtype, requires_grad=True)):
                leaves = s.clone().requires_grad_(), torch.tensor(tau, dtype=dtype, requires_grad=True)
                w = lapsum_topk(leaves[0], k, leaves[1], mask=mask)
                found.append((w, *torch.autograd.grad((w * g).sum(), leaves)))
            for a, b in zip(*found): assert_close(a, b, rtol=tight["rtol"], atol=tight["atol"] * max(1.0, b.abs().max().item()))
