"""The permutahedron and isotonic regression: oracles, recorded cases, both regularisations, extremes, the operators' rules."""
import itertools
import json
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from softsortlib.ranks.pooling import _block_mean, _blocks_by_rounds, isotonic, isotonic_plain, project
from softsortlib.ranks.permutahedron import Permutahedron, _pull, _pull_numba, _pull_torch, _soft_rank

CASES = json.loads((Path(__file__).parent / "permutahedron_cases.json").read_text())
KINDS, CALLS, BACKENDS = ["l2", "kl"], ["rank", "sort"], ["numba", "torch"]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
quick = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def scores(*shape, rng, dtype=torch.float64): return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)


def plain(s, tau, kind, call):
    "The definition read aloud, increasing: sort, min-max isotonic regression, put back."
    n, kl = s.shape[-1], kind == "kl"
    rho = torch.arange(1, n + 1, dtype=s.dtype).expand(s.shape)
    if call == "rank":
        x, order = s.sort(-1)
        z = x / tau
        p = z - isotonic_plain(z, rho.log() if kl else rho, kl)
        return torch.empty_like(p).scatter(-1, order, p.exp() if kl else p)
    x = (-s).sort(-1).values
    return -(rho / tau - isotonic_plain(rho / tau, x, kl)).flip(-1)


def both(f, s):
    "Value and the gradient of a fixed weighted sum."
    y = f(s)
    return y, torch.autograd.grad((y * torch.arange(1.0, 1 + s.shape[-1], dtype=torch.float64).sin().to(y)).sum(), s)[0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS)
def test_recorded_cases(call, kind, backend):
    "Values and gradients recorded from torchsort 0.1.10 in double precision (a port of the authors' own code)."
    cases = [c for c in CASES if c["call"] == call and c["regularization"] == kind]
    assert len(cases) > 10
    for c in cases:
        s = torch.tensor(c["scores"], dtype=torch.float64, requires_grad=True)
        value, gradient = both(getattr(Permutahedron(c["tau"], kind, backend=backend), call), s)
        assert_close(value, torch.tensor(c["value"], dtype=torch.float64), rtol=1e-9, atol=1e-9)
        assert_close(gradient, torch.tensor(c["gradient"], dtype=torch.float64), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS)
def test_torchsort(call, kind, rng):
    torchsort = pytest.importorskip("torchsort", reason="torchsort (a compiler at install) is not here; recorded cases stand in")
    for n in [2, 17, 300]:
        for tau in [0.05, 1.0, 20.0]:
            s = scores(3, n, rng=rng).mul(4).requires_grad_()
            ours = both(getattr(Permutahedron(tau, kind), call), s)
            theirs = both(lambda s: getattr(torchsort, "soft_" + call)(s, regularization=kind, regularization_strength=tau), s)
            assert_close(ours, theirs, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS)
def test_torchpsort(call, kind, rng):
    torchpsort = pytest.importorskip("torchpsort", reason="torchpsort is not here; recorded cases stand in")
    s = scores(3, 50, rng=rng).mul(4).requires_grad_()
    ours = both(getattr(Permutahedron(0.7, kind), call), s)
    assert_close(ours, both(lambda s: getattr(torchpsort, "soft_" + call)(s, 0.7, kind), s), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scipy_isotonic_regression(backend, rng):
    optimize = pytest.importorskip("scipy.optimize", reason="scipy is not here")
    for n in [1, 2, 10, 500]:
        for y in (scores(3, n, rng=rng), scores(3, n, rng=rng).mul(2).round(), torch.arange(n).double().neg().expand(3, n), torch.arange(n).double().expand(3, n)):
            want = np.stack([optimize.isotonic_regression(row).x for row in y.numpy()])
            assert_close(isotonic(y, backend=backend), torch.from_numpy(want), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("n", [1, 6, 60])
def test_fast_is_plain(n, call, kind, backend, rng):
    s = scores(2, n, rng=rng)
    for tau in [1e-6, 1e-2, 0.3, 3.0, 1e2, 1e6]:
        x = s.clone().requires_grad_()
        a, b = both(getattr(Permutahedron(tau, kind, backend=backend), call), x), both(lambda s: plain(s, tau, kind, call), x)
        noise = 4e-16 * n * max(1, 1 / tau)  # the plain formula is a difference of numbers of size max(s, n) / tau
        assert_close(a[0], b[0], rtol=1e-12, atol=noise * 4 * n)
        assert_close(a[1], b[1], rtol=1e-10, atol=noise * 4 * n / min(tau, 1) if call == "rank" else 1e-9)
        y = s.float().requires_grad_()
        c = both(getattr(Permutahedron(tau, kind, backend=backend), call), y)
        d = both(getattr(Permutahedron(tau, kind, backend=backend), call), y.detach().double().requires_grad_())
        assert_close(c[0].double(), d[0], rtol=1e-5, atol=1e-6)
        assert_close(c[1].double(), d[1], rtol=1e-4, atol=1e-5 / tau if call == "rank" else 1e-5)


@pytest.mark.parametrize("kind", KINDS)
@quick
@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=60), st.floats(1e-3, 1e3))
def test_projection_lies_in_the_polytope(kind, values, tau):
    s = torch.tensor(values, dtype=torch.float64)
    n, r = len(values), Permutahedron(tau, kind)(s)
    rho = torch.arange(1.0, n + 1, dtype=torch.float64)
    assert_close(r.sum(), rho.sum(), rtol=1e-10, atol=1e-9)
    assert (r.sort().values.cumsum(0) >= rho.cumsum(0) - 1e-8).all()
    assert (r[s.argsort()].diff() >= -1e-9).all()
    v = Permutahedron(tau, kind).sort(s)
    assert (v.diff() >= -1e-9).all()
    assert_close(*((v.sum(), s.sum()) if kind == "l2" else ((-v).logsumexp(0), (-s).logsumexp(0))), rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (6,), (3, 7), (2, 3, 40), (1, 1)])
def test_sort_shapes_and_dtypes(shape, dtype, kind, rng):
    s = scores(*shape, rng=rng, dtype=dtype).requires_grad_()
    for descending in (False, True):
        op = Permutahedron(0.2, kind, descending)
        v = op.sort(s)
        assert v.shape == s.shape and v.dtype == dtype
        assert_close(v.double(), op.sort(s.detach().double()), **(dict(rtol=2e-2, atol=2e-2) if dtype.itemsize == 2 else dict(rtol=1e-4, atol=1e-5)))
        assert torch.autograd.grad(v.float().square().sum(), s)[0].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_sort_hard_limit(kind, rng):
    for _ in range(100):
        s = torch.randint(0, 40, (2, int(torch.randint(1, 60, (), generator=rng))), generator=rng).double()
        assert_close(Permutahedron(1e-3, kind).sort(s), s.sort(-1).values, rtol=0, atol=1e-9)
        assert_close(Permutahedron(1e-3, kind, descending=True).sort(s), s.sort(-1, descending=True).values, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_ranks_are_exactly_hard_at_any_small_tau(kind, rng):
    s = torch.randperm(5000, generator=rng).float() + 1e4
    for tau in [1e-1, 1e-4, 1e-8, 1e-12]: assert torch.equal(Permutahedron(tau, kind)(s), s - 1e4 + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_extremes(kind):
    for s in (torch.tensor([3e38, -3e38, 0.0]), torch.tensor([1e-40, -1e-40, 0.0]), torch.full((70,), 7.0), torch.tensor([math.inf, 0.0, -1.0])):
        for tau in (1e-6, 1.0, 1e6):
            x = s.clone().requires_grad_()
            r = Permutahedron(tau, kind)(x)
            assert r[s.isfinite()].isfinite().all()
            if s.isfinite().all(): assert torch.autograd.grad(r.square().sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("n", [5, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_sort_mask_and_nan(kind, n, rng):
    s, mask = scores(4, n, rng=rng).requires_grad_(), torch.rand(4, n, generator=rng) < 0.7
    mask[3] = False
    op = Permutahedron(0.4, kind)
    for backend in BACKENDS:
        v = Permutahedron(0.4, kind, backend=backend).sort(torch.where(mask, s, math.nan), mask)
        (g,) = torch.autograd.grad(v.pow(2).sum(), s)
        for k in range(4):
            m = mask[k]
            assert (v[k, int(m.sum()):] == 0).all() and (g[k][~m] == 0).all()
            if k == 3: continue
            x = s[k][m].detach().requires_grad_()
            assert_close(v[k, :int(m.sum())], op.sort(x), rtol=1e-10, atol=1e-10)
            assert_close(g[k][m], torch.autograd.grad(op.sort(x).pow(2).sum(), x)[0], rtol=1e-9, atol=1e-9)
    bad = s.detach().clone(); bad[1, 2] = math.nan
    assert_close(op.sort(bad)[[0, 2]], op.sort(s.detach())[[0, 2]], rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_sort_transforms(kind, rng):
    op, s = Permutahedron(0.5, kind), scores(3, 40, rng=rng)
    f = lambda x: op.sort(x).pow(3).sum()
    x = s.clone().requires_grad_()
    assert_close(torch.func.vmap(op.sort)(s), op.sort(s))
    assert_close(torch.func.grad(f)(s), torch.autograd.grad(f(x), x)[0])
    assert_close(torch.func.vmap(torch.func.grad(f))(s), torch.func.grad(f)(s))
    torch._dynamo.reset()
    assert_close(torch.compile(op.sort, fullgraph=True, backend="aot_eager")(s), op.sort(s))


@pytest.mark.parametrize("kl", [False, True])
def test_opcheck(kl, rng):
    s, tau = scores(2, 7, rng=rng).requires_grad_(), torch.full((2, 1), 0.5, dtype=torch.float64, requires_grad=True)
    z, w = scores(2, 2, 7, rng=rng).sort(-1).values
    torch.library.opcheck(_soft_rank.op, (s, tau, torch.tensor([7, 5]), kl, ""))
    torch.library.opcheck(project.op, (z.requires_grad_(), w.requires_grad_(), kl, ""))
    ranks, order, last = _soft_rank(s.detach(), tau.detach(), torch.tensor([7, 5]), kl, "")
    torch.library.opcheck(_pull.op, (s, ranks.requires_grad_(), order, last, kl))
    torch.library.opcheck(_block_mean.op, (s, last))


def test_rounds_find_the_same_blocks(rng):
    for kl in (False, True):
        for _ in range(30):
            z, w = scores(2, 3, 50, rng=rng).sort(-1).values
            assert torch.equal(project(z, w, kl, "numba")[1], _blocks_by_rounds(z, w, kl))


FAR = [1e16, 1e18, 1e30, torch.finfo(torch.float32).max / 4, torch.finfo(torch.float64).max / 4]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", FAR)
def test_a_score_far_away_harms_nobody(far, dtype, kind, backend, rng):
    "People pad with -1e18: values and gradients of the others are those without it (Prop R6.4), from below and from above."
    if far > torch.finfo(dtype).max: return
    op, x = Permutahedron(1.0, kind, backend=backend), torch.tensor([0, 0.5, 0.6, 2.0], dtype=dtype)
    if kind == "l2": assert_close(op(torch.cat([x.new_tensor([-far]), x])), x.new_tensor([1, 2.725, 3.225, 3.325, 4.725]))
    for n in (5, 60):
        s = scores(n, rng=rng, dtype=dtype).requires_grad_()
        weight = torch.linspace(-1, 1, n, dtype=dtype)
        for side in (-far, far):
            outlier = s.new_tensor([side, side])
            tau = torch.tensor(0.7, dtype=dtype, requires_grad=True)
            R = Permutahedron(1.0, kind, backend=backend); R.tau = tau
            r = R(torch.cat([s, outlier]))
            assert_close(r[n:], r.new_full((2,), 1.5 if side < 0 else n + 1.5))
            got = torch.autograd.grad((r[:n] * weight).sum(), (s, tau))
            if kind == "kl" and side < 0:  # what is below raises the hard ranks, which kl does not forget
                x, order = s.sort(); z = x / 0.7; w = torch.arange(3, n + 3, dtype=dtype)
                assert_close(r[:n][order].double(), (z - isotonic_plain(z.double(), w.double().log(), True)).exp(), rtol=1e-5, atol=1e-5)
                continue
            want = R(s) + (2 if side < 0 else 0)
            assert_close(r[:n], want, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=1e-12)
            assert_close(got, torch.autograd.grad((want * weight).sum(), (s, tau)), rtol=1e-4 if dtype == torch.float32 else 1e-9, atol=1e-5 if dtype == torch.float32 else 1e-10)


def exact_projection(z, w):
    "P(z, w) of (R5.2) for increasing lists of rational numbers, without any rounding."
    blocks = []
    for a, b in zip(z, w):
        blocks.append([a - b, 1])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] >= blocks[-1][0] * blocks[-2][1]:
            total, m = blocks.pop(); blocks[-1][0] += total; blocks[-1][1] += m
    v = [total / m for total, m in blocks for _ in range(m)]
    return [a - b for a, b in zip(z, v)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_outliers_against_rational_numbers(backend, rng):
    for far in FAR:
        for side in ([-far], [far], [-far, far]):
            s = torch.cat([scores(9, rng=rng), torch.tensor(side, dtype=torch.float64)]).sort().values
            rho = [Fraction(k + 1) for k in range(len(s))]
            for tau in (0.7, 1e-10, far):
                op, x, t = Permutahedron(tau, backend=backend), [Fraction(v) for v in s.tolist()], Fraction(tau)
                assert_close(op(s), torch.tensor([float(v) for v in exact_projection([v / t for v in x], rho)], dtype=torch.float64), rtol=1e-13, atol=1e-13)
                want = [-v for v in exact_projection([r / t for r in rho], [-v for v in x[::-1]])][::-1]
                if max(rho) / t < torch.finfo(torch.float64).max: assert_close(op.sort(s), torch.tensor([float(v) for v in want], dtype=torch.float64), rtol=1e-13, atol=1e-15 * max(far, 10 / tau))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_values_with_a_score_far_away(kind, backend, rng):
    s = scores(40, rng=rng)
    for far in FAR:
        for side in (-far, far):
            x = torch.cat([s, s.new_tensor([side])])
            v = Permutahedron(0.7, kind, backend=backend).sort(x)
            assert v.isfinite().all() and (v.diff() >= -1e-12 * far).all()
            if kind == "kl": assert_close((-v).logsumexp(0), (-x).logsumexp(0))
    for unit in (2.0 ** -900, 2.0 ** 1010):  # the same numbers in another unit
        if kind == "l2": assert_close(Permutahedron(0.7 / unit, backend=backend).sort(s * unit), Permutahedron(0.7, backend=backend).sort(s) * unit, rtol=1e-12, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_isotonic_never_goes_down_not_by_a_bit(backend, rng):
    for dtype in (torch.float32, torch.float64):
        for scale in (1e-3, 1.0, 1e12, torch.finfo(dtype).max / 4):
            for n in (3, 50, 700):
                y = (scores(20, n, rng=rng).clamp(-4, 4) / 4).to(dtype) * scale
                v = isotonic(y, backend=backend)
                assert v.isfinite().all() and (v.diff() >= 0).all()
                z, w = (scores(2, 20, n, rng=rng).clamp(-4, 4) * min(scale, 1e12)).sort(-1).values.to(dtype)
                for kl in (False, True): assert (isotonic(z, w, kl, backend).diff() >= 0).all()


def test_long_rows_and_many_rows(rng):
    "Above the sizes at which rows are spread over threads."
    for shape in [(2, 50_000), (3000, 40)]:
        s = torch.randn(shape, generator=rng)
        r = Permutahedron(0.01)(s)
        assert_close(r[-1], Permutahedron(0.01)(s[-1]), rtol=0, atol=0)
        assert_close(r[0].double(), Permutahedron(0.01, backend="torch")(s[0].double()), rtol=1e-5, atol=1e-4)


def _in_process(code, **env):
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True)


@pytest.mark.parametrize("call", [lambda s: Permutahedron(0.5, backend="triton")(s), lambda s: isotonic(s, backend="triton")], ids=["rank", "isotonic"])
def test_triton_on_a_cpu_is_refused(call, monkeypatch):
    pytest.importorskip("triton", reason="triton is not here")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="backend 'triton' runs on cuda, got a tensor on cpu"): call(torch.ones(5))


def test_triton_kernel_in_the_interpreter():
    pytest.importorskip("triton", reason="triton is not here")
    out = _in_process("""
import torch
from softsortlib.ranks.pooling import isotonic
from softsortlib.ranks.permutahedron import Permutahedron
rng = torch.Generator().manual_seed(0)
y = torch.randn(3, 14, generator=rng, dtype=torch.float64)
y[0, 3] = float("nan")
torch.testing.assert_close(isotonic(y, backend="triton")[1:], isotonic(y)[1:])
s = torch.randn(2, 9, generator=rng)
mask = torch.rand(2, 9, generator=rng) < 0.7
for kind in ("l2", "kl"):
    for call in ("rank", "sort"):
        a, b = (getattr(Permutahedron(0.5, kind, backend=backend), call)(s, mask) for backend in ("triton", "numba"))
        torch.testing.assert_close(a, b)
print("equal")
""", TRITON_INTERPRET="1")
    assert out.stdout.strip() == "equal", out.stderr[-2000:]


@pytest.mark.parametrize("args, error, says", [
    (([1.0, 2.0],), TypeError, "z must be"), ((torch.tensor([1, 2]),), TypeError, "z must be"), ((torch.ones(3).half(),), TypeError, "float"), ((torch.tensor(1.0),), ValueError, "z must have shape"),
    ((torch.empty(2, 0),), ValueError, "at least one"), ((torch.ones(3), torch.ones(2)), ValueError, "w must broadcast"), ((torch.ones(3), [1.0]), TypeError, "w must be")])
def test_isotonic_names_what_does_not_fit(args, error, says):
    from softsortlib.ranks.pooling import isotonic
    with pytest.raises(error, match=says): isotonic(*args)


@pytest.mark.parametrize("n", [2, 4, 6])
def test_ranks_and_sorting_are_linear_programs(n):
    "Prop R5.1, over several draws: the best rearrangement of 1..n holds the ranks, that of the scores is sorted; the operator tends to both."
    rng = torch.Generator().manual_seed(n)
    orders = torch.tensor(list(itertools.permutations(range(n))))
    rho = torch.arange(1, n + 1, dtype=torch.float64)
    for _ in range(5):
        s = torch.randn(n, generator=rng, dtype=torch.float64)
        ranks, values = rho[orders][(rho[orders] @ s).argmax()], s[orders][(s[orders] @ rho).argmax()]
        assert torch.equal(ranks, s.argsort().argsort() + 1.0) and torch.equal(values, s.sort().values)
        torch.testing.assert_close(Permutahedron(tau=1e-6)(s), ranks, atol=1e-5, rtol=0)


def test_the_plain_pull_of_large_ranks_has_the_digits_of_the_kernel(rng):
    "Ranks in the thousands times a difference of nearly equal gradients: 2e-4 of the largest gradient was lost off the CPU."
    n = 3000
    ranks, order = torch.arange(1.0, n + 1)[None], torch.arange(n)[None]
    last = (order // 2 * 2 + 1).clamp(max=n - 1)
    g = torch.linspace(-1, 1, n)[None]
    exact = _pull_numba(g.double(), ranks.double(), order, last, True)
    for pull in (_pull_numba, _pull_torch): assert (pull(g, ranks, order, last, True) - exact).norm() < 1e-5 * exact.norm()
