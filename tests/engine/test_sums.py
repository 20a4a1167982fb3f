"""Sums of one variable against their definition in double precision: laws, twelve decades of tau, hard positions, gradients, transforms."""
import math

import pytest
import torch
from torch.testing import assert_close

from softsortlib.engine import sums
from softsortlib.engine.level_sums import level_sums
from softsortlib.engine.sum_laws import kernel_sums_dense, law_value
from softsortlib.engine.sums import _sums, kernel_sums
from softsortlib.engine.tail_laws import power_name
from softsortlib.engine.tree_sums import yardstick

LAWS = ["logistic", "normal"]
TAILS = ["cauchy", *map(power_name, (0.5, 1, 1.5, 2.7, 3, 4))]
TAUS = [1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 1e3, 1e6]
ALLOWED = {torch.float32: 1e-6, torch.float64: 1e-13}


def positions(kind, n, rng, dtype):
    "Scores (2, n) that are hard in one way each."
    s = torch.randn(2, n, generator=rng, dtype=torch.float64)
    if kind == "ties":
        s = (4 * s).round()
    elif kind == "clusters":
        s = s.round() + 1e-6 * torch.randn(2, n, generator=rng, dtype=torch.float64)
    elif kind == "heavy":
        s = torch.randn(2, n, generator=rng, dtype=torch.float64) / torch.rand(2, n, generator=rng, dtype=torch.float64) ** 2
    elif kind == "far":
        s = s + 1e6
    return s.to(dtype)


def every(turn):
    "A third of the targets, in the next turn another: the definition of all takes most of the time."
    return slice(turn % 3, None, 3)


def worst(y, s, w, tau, law, m, some=slice(None)):
    "The error of some of y in terms of sum |w|, against the definition in double precision for the scores as they are."
    exact = kernel_sums_dense(s[:, some].double(), s.double(), w.double(), tau, law, m)
    return ((y[:, some] - exact).abs() / w.double().abs().sum(-2, keepdim=True)).max().item()


@pytest.fixture
def boxes_of_few(monkeypatch):
    "Plain torch, which visits all pairs of few points, takes boxes for 300 too."
    monkeypatch.setattr(sums, "_FEW", 1 << 16)


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("kind", ["plain", "ties", "clusters", "heavy", "far"])
@pytest.mark.parametrize("dtype", ALLOWED)
def test_errors_over_twelve_decades(dtype, kind, backend, rng, boxes_of_few):
    s = positions(kind, 300, rng, dtype)
    w = torch.randn(2, 300, 2, generator=rng, dtype=dtype)
    for turn, tau in enumerate(TAUS if backend == "numba" else TAUS[::3]):
        for law in LAWS:
            for m in (0, 1, 2):
                y = kernel_sums(s, None, w, tau, law, m, backend=backend)
                assert y.dtype == dtype and worst(y, s, w, tau, law, m, every(turn + m)) <= ALLOWED[dtype], (tau, law, m)


@pytest.mark.parametrize("kind", ["plain", "ties", "clusters", "heavy", "far"])
@pytest.mark.parametrize("dtype", ALLOWED)
def test_the_density_errs_in_terms_of_its_own_sum(dtype, kind, rng):
    "Prop E8.3; what remains is the rounding of the arguments, u^2 times that of the format."
    s = positions(kind, 700, rng, dtype)
    w = torch.randn(2, 700, 1, generator=rng, dtype=dtype)
    for turn, tau in enumerate(TAUS):
        some = every(turn)
        Z = kernel_sums_dense(s[:, some].double(), s.double(), torch.ones_like(w).double(), tau, "density", 1)
        for m in (1, 2):
            y = kernel_sums(s, None, w, tau, "density", m)[:, some]
            exact = kernel_sums_dense(s[:, some].double(), s.double(), w.double(), tau, "density", m)
            assert ((y - exact).abs() <= 30 * ALLOWED[dtype] * Z * w.abs().max()).all(), (tau, m)


def test_many_points_and_full_boxes(rng):
    "Boxes of all sizes, some in several units of work, and two threads."
    s = torch.cat([torch.randn(1, 9000, generator=rng, dtype=torch.float64), 1e-3 * torch.randn(1, 9000, generator=rng, dtype=torch.float64)], 1)
    w = torch.rand(1, 18000, 1, generator=rng, dtype=torch.float64)
    some = torch.randperm(18000, generator=rng)[:200]
    for tau in (1e-5, 1e-3, 0.1, 10.0):
        for law in LAWS:
            y = kernel_sums(s, None, w, tau, law)
            exact = kernel_sums_dense(s[:, some], s, w, tau, law)
            assert (y[:, some] - exact).abs().max() <= 1e-13 * w.sum()


def test_targets_and_sources_may_differ(rng):
    x, t = torch.randn(3, 40, generator=rng, dtype=torch.float64) * 3, torch.randn(3, 500, generator=rng, dtype=torch.float64)
    w = torch.randn(3, 500, 2, generator=rng, dtype=torch.float64)
    tau = torch.tensor([0.01, 0.5, 20.0], dtype=torch.float64)
    for law in LAWS:
        for m in (-1, 0, 1, 3):
            exact = kernel_sums_dense(x, t, w, tau, law, m)
            for backend in ("numba", "torch"):
                assert_close(kernel_sums(x, t, w, tau, law, m, backend=backend), exact, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_gradients_twice(backend, rng):
    x, t = (torch.randn(2, 30, generator=rng, dtype=torch.float64).requires_grad_() for _ in range(2))
    w = torch.randn(2, 30, 1, generator=rng, dtype=torch.float64).requires_grad_()
    tau = torch.tensor([0.4, 1.5], dtype=torch.float64).requires_grad_()
    weight = torch.randn(2, 30, 1, generator=rng, dtype=torch.float64)
    for law in LAWS:
        for sources in (t, None):
            leaves = [x, w, tau] + ([] if sources is None else [t])
            y = kernel_sums(x, sources, w, tau, law, backend=backend)
            z = kernel_sums_dense(x, x if sources is None else t, w, tau, law)
            one, two = (torch.autograd.grad((a * weight).sum(), leaves, create_graph=True) for a in (y, z))
            assert_close(one, two, rtol=1e-10, atol=1e-10)
            one, two = (torch.autograd.grad(sum(g.square().sum() for g in a), leaves) for a in (one, two))
            assert_close(one, two, rtol=1e-9, atol=1e-8)


def test_derivatives_end_with_a_message(rng):
    x = torch.randn(40, generator=rng, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="4 derivatives of the logistic step, not 5"):
        kernel_sums(x, None, torch.ones(40, 1, dtype=x.dtype), 1.0, "logistic", 5)


def test_what_is_no_number_stays_in_its_row(rng):
    s = torch.randn(3, 200, generator=rng, dtype=torch.float64)
    w = torch.ones(3, 200, 1, dtype=torch.float64)
    bad = s.clone()
    bad[1, 7] = math.nan
    bad[2, :3] = torch.tensor([math.inf, -math.inf, math.inf])
    y = kernel_sums(bad, None, w, 0.1)
    assert_close(y[0], kernel_sums(s, None, w, 0.1)[0], rtol=0, atol=0)
    assert y[1].isnan().all()
    assert y[2, :3].isnan().all() and y[2, 3:].isfinite().all()      # infinity less infinity, as in the definition
    assert_close(y[2, 3:], kernel_sums_dense(bad[2, 3:], bad[2], w[2], 0.1), rtol=1e-12, atol=1e-12)


def test_extreme_temperatures(rng):
    s = torch.randn(1, 300, generator=rng, dtype=torch.float64)
    w = torch.ones(1, 300, 1, dtype=torch.float64)
    hard = kernel_sums_dense(s, s, w, 1e-12, "logistic")
    assert_close(kernel_sums(s, None, w, 1e-30), hard)
    assert_close(kernel_sums(s, None, w, 1e30), torch.zeros_like(hard), rtol=0, atol=300 * 1e-13)


def test_transforms(rng):
    s = torch.randn(3, 80, generator=rng, dtype=torch.float64)
    w = torch.rand(3, 80, 1, generator=rng, dtype=torch.float64)
    def f(s, w): return kernel_sums(s, None, w, 0.3)
    assert_close(torch.func.vmap(f)(s, w), f(s, w), rtol=1e-13, atol=1e-13)
    def loss(s): return f(s, w).square().sum()
    x = s.clone().requires_grad_()
    g = torch.autograd.grad(loss(x), x)[0]
    assert_close(torch.func.grad(loss)(s), g, rtol=1e-12, atol=1e-12)
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(compiled(x, w).square().sum(), x)[0], g, rtol=1e-12, atol=1e-12)


def test_opcheck(rng):
    x = torch.randn(2, 20, generator=rng, dtype=torch.float64).requires_grad_()
    t = torch.randn(2, 10, generator=rng, dtype=torch.float64).requires_grad_()
    w = torch.rand(2, 10, 1, generator=rng, dtype=torch.float64).requires_grad_()
    tau = torch.full((2,), 0.5, dtype=torch.float64, requires_grad=True)
    orders = x.detach().argsort(-1), t.detach().argsort(-1)
    for m, nu in ((0, 0), (1, 1)): torch.library.opcheck(_sums.op, (x, t, w, tau, *orders, "logistic", m, nu, 3e-14, False, ""))


def scale_of(x, s, w, tau, law, m):
    "Sum over |w| H_m of (E9.1) at the targets x, the yardstick of Prop E9.1, (2, n, 1)."
    u = (x.double()[..., :, None] - s.double()[..., None, :]).abs() / tau
    H = torch.from_numpy(yardstick(law, u.clamp(min=1e-80).numpy(), m)).masked_fill(u == 0, 1)
    return H @ w.double().abs() + w.double().abs().amax(1, keepdim=True)


@pytest.mark.parametrize("kind", ["plain", "ties", "clusters", "heavy", "far"])
@pytest.mark.parametrize("dtype", ALLOWED)
def test_laws_with_a_tail_over_twelve_decades(dtype, kind, rng):
    "Prop E9.1: in terms of sum |w| for the law itself, of the yardstick for its derivatives, which may be unbounded."
    s = positions(kind, 300, rng, dtype)
    w = torch.randn(2, 300, 2, generator=rng, dtype=dtype)
    total = w.double().abs().sum(-2, keepdim=True)
    for turn, tau in enumerate(TAUS):
        for law in TAILS:
            for m in (1, 2, 3):
                y = kernel_sums(s, None, w, tau, law, m)
                assert y.dtype == dtype
                some = every(turn + m)
                exact = kernel_sums_dense(s[:, some].double(), s.double(), w.double(), tau, law, m)
                error = (y[:, some] - exact).abs()
                assert m > 1 or (error <= ALLOWED[dtype] * total).all(), (tau, law)
                rounding = 4 * torch.finfo(dtype).eps * (1 + 30 * m)  # of the largest terms, and of u^2 in the exponent
                assert (error <= (3 * ALLOWED[dtype] + rounding) * scale_of(s[:, some], s, w, tau, law, m)).all(), (tau, law, m)


@pytest.mark.parametrize("law", ["cauchy", "power 0.5", "power 1.5", "power 4.0"])
def test_many_points_with_a_tail(law, rng):
    "A crowd in a crowd: all ways of hearing, more sources than targets, halves on many levels."
    t = torch.cat([torch.randn(1, 3000, generator=rng, dtype=torch.float64), 1e-4 * torch.randn(1, 3000, generator=rng, dtype=torch.float64)], 1)
    w = torch.rand(1, 6000, 1, generator=rng, dtype=torch.float64)
    x = torch.cat([t[:, ::50], torch.linspace(-50, 50, 99, dtype=torch.float64)[None]], 1)
    for tau in (1e-5, 1e-2, 10.0):
        for m in (1, 2):
            exact = kernel_sums_dense(x, t, w, tau, law, m)
            u = (x[..., :, None] - t[..., None, :]).abs() / tau
            scale = torch.from_numpy(yardstick(law, u.clamp(min=1e-80).numpy(), m)).masked_fill(u == 0, 1) @ w + 1
            assert ((kernel_sums(x, t, w, tau, law, m) - exact).abs() <= 4e-13 * scale).all(), (tau, m)
            assert ((kernel_sums(t, None, w, tau, law, m)[:, ::50] - exact[:, :120]).abs() <= 4e-13 * scale[:, :120]).all(), (tau, m)


def test_a_tail_has_gradients_twice_in_any_batch(rng):
    x, t = (torch.randn(2, 1, 200, generator=rng, dtype=torch.float64).requires_grad_() for _ in range(2))
    w = torch.randn(3, 200, 2, generator=rng, dtype=torch.float64).requires_grad_()
    tau = torch.tensor([0.4, 1.5, 30.0], dtype=torch.float64).requires_grad_()
    weight = torch.randn(2, 3, 200, 2, generator=rng, dtype=torch.float64)
    for law in ("cauchy", "power 3.0", "power 4.0"):
        for sources in (t, None):
            leaves = [x, w, tau] + ([] if sources is None else [t])
            y = kernel_sums(x, sources, w, tau, law, 1)
            z = kernel_sums_dense(x, x if sources is None else t, w, tau, law, 1)
            assert_close(y, z, rtol=1e-11, atol=1e-11)
            one, two = (torch.autograd.grad((a * weight).sum(), leaves, create_graph=True) for a in (y, z))
            assert_close(one, two, rtol=1e-9, atol=1e-9)
            one, two = (torch.autograd.grad(sum(g.square().sum() for g in a), leaves) for a in (one, two))
            assert_close(one, two, rtol=1e-8, atol=1e-6)


def test_a_tail_meets_extremes(rng):
    "NaN and infinity stay where they are; the largest and smallest temperatures and positions are no trouble."
    s = torch.randn(3, 300, generator=rng, dtype=torch.float64)
    w = torch.ones(3, 300, 1, dtype=torch.float64)
    bad = s.clone()
    bad[1, 7] = math.nan
    bad[2, :3] = torch.tensor([math.inf, -math.inf, math.inf])
    for law in TAILS:
        y = kernel_sums(bad, None, w, 0.1, law, 1)
        assert y[1].isnan().all() and y[2, :3].isnan().all()
        assert_close(y[[0, 0]], kernel_sums(s, None, w, 0.1, law, 1)[[0, 0]], rtol=1e-14, atol=0)
        assert_close(y[2, 3:], kernel_sums_dense(bad[2, 3:], bad[2], w[2], 0.1, law, 1), rtol=1e-12, atol=1e-12)
        assert_close(kernel_sums(s, None, w, 1e-200, law, 1), torch.ones_like(w), rtol=0, atol=1e-12)
        if law != "power 0.5":  # whose plateau is not reached before 1e30
            assert_close(kernel_sums(s, None, w, 1e30, law, 1), 300 * torch.ones_like(w), rtol=1e-12, atol=0)
        same = torch.full((1, 400), 1e6, dtype=torch.float64)
        assert_close(kernel_sums(same, None, torch.ones(1, 400, 1).double(), 0.1, law, 1), torch.full((1, 400, 1), 400.0).double())
        wide = torch.logspace(-300, 300, 400, dtype=torch.float64)[None]
        assert kernel_sums(wide, None, torch.ones(1, 400, 1).double(), 1e-9, law, 1).isfinite().all()


def test_a_tail_in_transforms(rng):
    s = torch.randn(3, 250, generator=rng, dtype=torch.float64)
    w = torch.rand(3, 250, 1, generator=rng, dtype=torch.float64)
    def f(s, w): return kernel_sums(s, None, w, 0.3, "power 3.0", 1)
    assert_close(torch.func.vmap(f)(s, w), f(s, w), rtol=1e-13, atol=1e-13)
    x = s.clone().requires_grad_()
    g = torch.autograd.grad(f(x, w).square().sum(), x)[0]
    assert_close(torch.func.grad(lambda s: f(s, w).square().sum())(s), g, rtol=1e-12, atol=1e-12)
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(compiled(x, w).square().sum(), x)[0], g, rtol=1e-12, atol=1e-12)


def test_plain_torch_sums_a_tail_in_tiles(rng):
    s, w = torch.randn(1, 3000, generator=rng, dtype=torch.float64), torch.randn(1, 3000, 1, generator=rng, dtype=torch.float64)
    for law in TAILS:
        assert_close(kernel_sums(s, None, w, 0.2, law, 1, backend="torch"), kernel_sums(s, None, w, 0.2, law, 1), rtol=1e-11, atol=1e-11)
    with pytest.raises(NotImplementedError, match="6 derivatives"):
        kernel_sums(s, None, w, 0.2, "cauchy", 7)


def tau_gradients(law, backend, x, w, g, tau, levels=None, across=False):
    "The gradient to tau of a weighted sum, that of its definition in double precision, and the size of what the definition adds up."
    m = 1 if law in (*TAILS, "density") else 0
    t = torch.full((len(x),), tau, dtype=x.dtype, requires_grad=True)
    order = x.argsort(-1)
    y = kernel_sums(x, None, w, t, law, m, backend=backend) if levels is None else level_sums(x, levels, w, t, order, law, m, across, 3e-8, backend)
    got, = torch.autograd.grad((y * g).sum(), t)
    u = (x.double()[..., :, None] - x.double()[..., None, :]) / t.detach().double()[:, None, None]
    K = law_value(law, u, m + 1, 1)
    if levels is not None:
        difference = levels[..., :, None] - levels[..., None, :]
        K = K * (difference.sign() if across else difference == 0)
    terms = g.double() * K * w.double()[..., 0][:, None]
    size = terms.abs().sum((-2, -1)) + 1e-7 * g.abs().amax() * w.abs().amax()  # pairs beyond the cutoff are none
    return got.double(), -terms.sum((-2, -1)) / tau, size / tau


@pytest.mark.parametrize("law", [*LAWS, "density", "cauchy", "power 0.5", "power 1.5"])
@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_each_pair_brings_its_own_argument_to_the_gradient_in_tau(law, backend, rng, boxes_of_few):
    "Prop E8.4 in single precision: points far from zero and from one another, and what has no weight far from all."
    n = 300
    g = torch.randn(2, n, 1, generator=rng)
    real = torch.rand(2, n, generator=rng) < 0.7
    w, g = torch.rand(2, n, 1, generator=rng) * real[..., None], g * real[..., None]
    for offset in (0, 1e4):
        for tau in (1e-6, 1e-4, 0.01, 1.0, 100.0, 1e6):
            for padding in (0.0, 1e30):
                x = torch.where(real, torch.randn(2, n, generator=rng) + offset, padding)
                got, exact, size = tau_gradients(law, backend, x, w, g, tau)
                assert ((got - exact).abs() <= 2e-5 * size).all(), (offset, tau, padding, got, exact)


def test_the_gradient_in_tau_errs_in_terms_of_its_own_arguments(rng):
    "Where all points lie within tau, in double precision: no digit is lost to the interpolation."
    x = torch.randn(2, 1500, generator=rng, dtype=torch.float64)
    w, g = torch.rand(2, 2, 1500, 1, generator=rng, dtype=torch.float64)
    for law in (*LAWS, "power 1.5"):
        for tau in (1e2, 1e4, 1e6):
            got, exact, size = tau_gradients(law, "numba", x, w, g, tau)
            assert ((got - exact).abs() <= 1e-12 * size).all(), (law, tau)


@pytest.mark.parametrize("law", LAWS)
def test_levels_bring_their_own_arguments_to_the_gradient_in_tau(law, rng):
    real = torch.rand(2, 300, generator=rng) < 0.7
    w, g = torch.rand(2, 300, 1, generator=rng) * real[..., None], torch.randn(2, 300, 1, generator=rng) * real[..., None]
    for many in (2, 300):
        levels = torch.randint(many, (2, 300), generator=rng)
        for across in (False, True):
            for offset, tau in ((0, 1e-4), (1e4, 0.01), (1e4, 1.0), (1e4, 1e4)):
                x = torch.where(real, torch.randn(2, 300, generator=rng) + offset, 0)
                got, exact, size = tau_gradients(law, "numba", x, w, g, tau, levels, across)
                assert ((got - exact).abs() <= 2e-5 * size).all(), (many, across, offset, tau)


def test_second_derivatives_in_tau_and_the_factors_they_bring(rng):
    "Three derivatives in tau and the points, mixed, against the definition, in boxes and by points."
    x, t = (torch.randn(1, n, generator=rng, dtype=torch.float64).requires_grad_() for n in (400, 300))
    weight = torch.rand(1, 400, 1, generator=rng, dtype=torch.float64)
    for law, m in (("logistic", -1), ("logistic", 0), ("normal", 0), ("cauchy", 1), ("power 3.0", 1)):
        for value in (0.02, 2.0):
            tau = torch.tensor([value], dtype=torch.float64, requires_grad=True)
            for sources in (t, None):
                w = weight if sources is None else weight[:, :300]
                y = kernel_sums(x, sources, w, tau, law, m), kernel_sums_dense(x, x if sources is None else t, w, tau, law, m)
                for _ in range(3):
                    y = [torch.autograd.grad((a * a).sum() if a.ndim > 1 else a.sum(), (x, tau), create_graph=True) for a in y]
                    assert_close(*y, rtol=1e-8, atol=1e-8 * max(1, y[1][0].abs().max().item()))
                    y = [grads[1] for grads in y]
