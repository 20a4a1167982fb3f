"The exponential scan: dtypes, shapes, extremes, torch's contracts, and where its compiled code may live."
import os, shutil, subprocess, sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import softsortlib
from softsortlib.engine.scan import exp_mean, exp_scan, exp_scan_dense

MODES, BACKENDS = ("even", "odd", "strict"), ("numba", "torch")


def error(a, b):
    "Relative error of a whole tensor, in the largest entry"
    return ((a.double() - b).abs().max() / b.abs().max().clamp(min=1e-300)).item()


def scores(kind, n, rng, dtype):
    "Sorted scores that make trouble, with spread one"
    s = {"uniform": lambda: torch.rand(n, generator=rng, dtype=torch.float64),
         "ties": lambda: torch.randint(5, (n,), generator=rng) / 4.0,
         "clusters": lambda: torch.randint(3, (n,), generator=rng) / 2 + 1e-6 * torch.rand(n, generator=rng),
         "heavy": lambda: torch.randn(n, generator=rng, dtype=torch.float64).pow(9) / 1e4,
         "offset": lambda: 1000 + torch.rand(n, generator=rng, dtype=torch.float64)}[kind]()
    return s.to(dtype).sort().values


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ("uniform", "ties", "clusters", "heavy", "offset"))
@pytest.mark.parametrize("dtype, tol", ((torch.float32, 1e-5), (torch.float64, 1e-12)))
def test_values_and_gradients_against_the_float64_definition(backend, kind, dtype, tol, rng):
    n = 150
    s, x, G = scores(kind, n, rng, dtype), torch.randn(n, 2, generator=rng).to(dtype), torch.randn(n, 2, generator=rng).to(dtype)
    for tau in (1e-6, 1e-3, 1.0, 1e3, 1e6):
        for mode in MODES:
            a = [v.detach().clone().requires_grad_() for v in (s, x)]
            b = [v.detach().double().requires_grad_() for v in (s, x)]
            ours, twin = exp_scan(*a, tau, mode, backend), exp_scan_dense(*b, tau, mode)
            # values are measured against the sums without their signs, gradients against their own largest entry;
            # what is below e-25 of the scale is zero in float32
            assert (ours.double() - twin).abs().max() <= tol * exp_scan_dense(b[0], b[1].abs(), tau).max(), (tau, mode)
            if mode == "even":
                for g, h in zip(torch.autograd.grad(ours, a, G), torch.autograd.grad(twin, b, G.double())):
                    assert (g.double() - h).abs().max() <= tol * h.abs().max() + 1e-25 / tau, tau


@pytest.mark.parametrize("dtype, tol", ((torch.float32, 1e-5), (torch.float64, 1e-12)))
def test_gradient_to_tau_does_not_cancel(dtype, tol, rng):
    s, x, G = scores("uniform", 200, rng, dtype), torch.randn(200, 1, generator=rng).to(dtype), torch.randn(200, 1, generator=rng).to(dtype)
    for tau in (1e-4, 1e-2, 1.0, 1e4):
        t = torch.tensor(tau, dtype=dtype, requires_grad=True)
        t64 = t.detach().double().requires_grad_()
        ours, = torch.autograd.grad(exp_scan(s, x, t), t, G)
        twin, = torch.autograd.grad(exp_scan_dense(s.double(), x.double(), t64), t64, G.double())
        assert error(ours, twin) <= tol * 20, tau


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batch", ((), (1,), (3,), (2, 3)))
@pytest.mark.parametrize("n, d", ((1, 1), (2, 0), (5, 1), (33, 2), (300, 3)))
def test_shapes(backend, batch, n, d, rng):
    t, x = torch.randn(*batch, n, generator=rng, dtype=torch.float64).sort(-1).values, torch.randn(*batch, n, d, generator=rng, dtype=torch.float64)
    for mode in MODES: assert_close(exp_scan(t, x, 0.3, mode, backend), exp_scan_dense(t, x, 0.3, mode), rtol=1e-12, atol=1e-12)
    o, Z = exp_mean(t, x, 0.3, backend=backend)
    assert_close(Z[..., None], exp_scan_dense(t, torch.ones(*batch, n, 1, dtype=torch.float64), 0.3), rtol=1e-12, atol=0)
    assert_close(o * Z[..., None], exp_scan_dense(t, x, 0.3), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("low", (-9.0, 1.0))
def test_what_stands_behind_the_real_scores_changes_no_gradient(backend, low, rng):
    "Padding is below scores that rise if these are positive: a scan that reads its direction from the ends of a row takes it for a fall."
    n, more = 5, 3
    s = low + torch.randn(2, n, generator=rng, dtype=torch.float64).sort(-1).values
    x, G = torch.randn(2, 2, n, 2, generator=rng, dtype=torch.float64).unbind(0)
    tau, size = torch.tensor([0.5, 2.0], dtype=torch.float64), torch.full((2,), n)
    of = {mode: lambda s, x, tau, mode=mode: exp_scan(s, x, tau, mode, backend) for mode in MODES}
    of["mean"] = lambda s, x, tau: exp_mean(s, x, tau, size, backend)[0]
    for name, f in of.items():
        found = []
        for pad in (0, more):
            v = [a.clone().requires_grad_() for a in (s, x, tau)]
            wide = F.pad(v[0], (0, pad)), F.pad(v[1], (0, 0, 0, pad)), v[2]
            first = torch.autograd.grad((f(*wide)[:, :n] * G).sum(), v, create_graph=True)
            twice = torch.autograd.grad(sum(g.cos().sum() for g in first), v)
            plain = torch.autograd.grad((f(*wide)[:, :n] * G).sum(), v)
            found.append((*first, *twice, *plain))
        for a, b in zip(*found): assert_close(a, b, rtol=1e-11, atol=1e-12, msg=lambda m: f"{name}: {m}")


def test_broadcasting_strides_and_half_types(rng):
    s, x = torch.randn(4, 6, generator=rng).sort(-1).values, torch.randn(2, 1, 6, 3, generator=rng)
    tau = torch.tensor([0.1, 1.0, 2.0, 3.0])
    assert_close(exp_scan(s, x, tau), exp_scan_dense(s, x, tau), rtol=1e-5, atol=1e-5)
    wide = torch.randn(3, 6, 2, generator=rng).mT.mT[..., ::2]
    assert_close(exp_scan(s[:3], wide), exp_scan_dense(s[:3], wide), rtol=1e-5, atol=1e-5)
    for dtype in (torch.float16, torch.bfloat16):
        y = exp_scan(s.to(dtype), wide[:1].to(dtype), 0.5)
        assert y.dtype == dtype
        assert_close(y.float(), exp_scan_dense(s.to(dtype).float(), wide[:1].to(dtype).float(), 0.5), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_stays_in_its_row(backend, rng):
    s, x = torch.randn(3, 50, generator=rng).sort(-1).values, torch.randn(3, 50, 1, generator=rng)
    s[1, 7] = float("nan")
    for mode in MODES:
        y = exp_scan(s, x, 1.0, mode, backend)
        assert y[1].isnan().any() and y[0].isfinite().all() and y[2].isfinite().all()
    s = torch.randn(3, 50, generator=rng).sort(-1).values.requires_grad_()
    x[2, 3] = float("nan")
    exp_scan(s, x, backend=backend).square().sum().backward()
    assert s.grad[2].isnan().any() and s.grad[:2].isfinite().all()


def test_a_million_elements_keep_their_digits(rng):
    n = 1_000_000
    s = torch.rand(n, generator=rng).sort().values
    x = torch.rand(n, 1, generator=rng)
    for tau in (1e-3, 1e3):
        assert error(exp_scan(s, x, tau), exp_scan(s.double(), x.double(), tau)) < 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
def test_opcheck(backend, rng):
    s = torch.randn(2, 6, generator=rng, dtype=torch.float64).sort(-1).values
    x, tau = torch.randn(2, 6, 2, generator=rng, dtype=torch.float64), torch.tensor([0.5, 2.0], dtype=torch.float64)
    args = [v.requires_grad_() for v in (s, x, tau)]
    utils = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for mode in MODES:
        for number in (None, torch.tensor([0, 0, 0, 1, 1, 1])): torch.library.opcheck(torch.ops.softsortlib.exp_scan.default, (*args, mode, number, backend), test_utils=utils)
    torch.library.opcheck(torch.ops.softsortlib.exp_mean.default, (*args, torch.tensor([6, 4]), backend), test_utils=utils)


def test_func_transforms(rng):
    s = torch.randn(3, 5, generator=rng, dtype=torch.float64).sort(-1).values
    x = torch.randn(3, 5, 2, generator=rng, dtype=torch.float64)
    for mode in MODES:
        assert_close(torch.func.vmap(lambda s, x: exp_scan(s, x, 0.5, mode))(s, x), exp_scan_dense(s, x, 0.5, mode))
        many = torch.randn(5, 4, 2, generator=rng, dtype=torch.float64)                       # scores shared, payload mapped in the middle
        assert_close(torch.func.vmap(lambda x: exp_scan(s[0], x, 0.5, mode), in_dims=1, out_dims=1)(many), exp_scan_dense(s[0], many.movedim(1, 0), 0.5, mode).movedim(0, 1))
        J, K = (torch.func.jacrev(lambda s: f(s, x[0], 0.5, mode))(s[0]) for f in (exp_scan, exp_scan_dense))
        assert_close(J, K)
    f = lambda g: lambda s: g(s, x[0], 0.5).square().sum()
    assert_close(torch.func.jacrev(torch.func.grad(f(exp_scan)))(s[0]),
                 torch.func.jacrev(torch.func.grad(f(exp_scan_dense)))(s[0]))


def test_compiles_without_graph_breaks(rng):
    s = torch.randn(2, 40, generator=rng).sort(-1).values.requires_grad_()
    x = torch.randn(2, 40, 3, generator=rng)
    f = torch.compile(lambda s, x: exp_scan(s, x, 0.5).square().sum() + exp_mean(s, x, 0.5)[0].sum(), fullgraph=True, backend="aot_eager")
    plain = exp_scan(s, x, 0.5).square().sum() + exp_mean(s, x, 0.5)[0].sum()
    assert_close(f(s, x), plain)
    assert_close(torch.autograd.grad(f(s, x), s), torch.autograd.grad(plain, s))


SCRIPT = """
import torch, softsortlib.engine.scan as scan
y = scan.exp_scan(torch.arange(4.0), torch.ones(4, 1), 1.0)
torch.testing.assert_close(y, scan.exp_scan_dense(torch.arange(4.0), torch.ones(4, 1), 1.0))
print(scan.scan_rows.dispatcher._cache.cache_path)
"""


@pytest.mark.parametrize("home", ("writable", "none"))
def test_a_read_only_install_does_not_break_the_cache(tmp_path, home):
    package = tmp_path / "site" / "softsortlib"
    shutil.copytree(Path(softsortlib.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (package, package / "engine"): (folder / "__pycache__").write_text("")  # a file where the cache folder would be: nobody, root included, can write there
    # only the scan: the package face imports the rest, which has nothing to do with this
    (package / "__init__.py").write_text("")
    if home == "writable": (tmp_path / "home").mkdir()
    else: (tmp_path / "home").write_text("")
    env = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")} | {
        "PYTHONPATH": str(tmp_path / "site"), "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home" / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert (run.stdout.strip() == "None") == (home == "none")
    if home == "writable": assert str(tmp_path / "home") in run.stdout
