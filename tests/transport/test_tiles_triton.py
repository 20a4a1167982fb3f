"""Sinkhorn's tiles for a GPU in Triton's interpreter, against the plain torch beside them; test_rehearsal.py compiles them."""
import pytest
import torch
from interpreted import interpret
from torch.testing import assert_close

from softsortlib import SinkhornSort
from softsortlib.transport.conjugate import conjugate

triton = pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")
old = pytest.mark.skipif(triton.__version__.startswith("3.9."), reason="the interpreter of Triton 3.9 spreads a truth value over a block as int32, which no mask takes")

BEGIN = """
import torch
from torch.testing import assert_close
import softsortlib.engine.dispatch as dispatch
from softsortlib import SinkhornSort
from softsortlib.transport import Gibbs, potentials
dispatch.HOME["cpu"] = "triton"
rng = torch.Generator().manual_seed(0)
def randn(*shape): return torch.randn(*shape, generator=rng, dtype=torch.float64)
def agree(f, g, leaves, rtol=1e-11, atol=1e-11):
    leaves = [a.detach().requires_grad_() for a in leaves]
    fast, plain = f(*leaves), g(*leaves)
    assert_close(fast, plain, rtol=rtol, atol=atol, equal_nan=True)
    w = torch.randn(plain.shape, generator=rng).to(plain.dtype)
    for a, b in zip(*(torch.autograd.grad((o * w).sum(), leaves, allow_unused=True, materialize_grads=True) for o in (fast, plain))):
        assert_close(a, b, rtol=rtol, atol=atol * max(1.0, b.nan_to_num().abs().max().item()), equal_nan=True)
"""

KERNELS = BEGIN + """
for power in (1, 2):
    for n, m, d in ((1, 1, 1), (16, 17, 2), (64, 4, 3), (65, 33, 1)):                # around the edges of a tile
        x, y, phi, gamma, v = randn(2, n), randn(2, m), randn(2, n), randn(2, m), randn(2, n, d)
        phi[0, 0] = -1e30 if n > 1 else phi[0, 0]                                    # of a weight zero
        tau = torch.tensor([[0.3], [5.0]]).double()
        x[1, : n // 2] = x[1, 0]                                                     # ties
        if n > 1: y[0, 0] = x[0, 1]
        def product(backend): return lambda x, y, phi, gamma, v, tau: Gibbs(x, y, tau, power, backend).apply(phi, gamma, v)
        def softmin(backend): return lambda x, y, phi, tau: Gibbs(x, y, tau, power, backend).softmin(phi)
        assert Gibbs(x, y, tau, power).who == "triton"
        agree(product(None), product("torch"), (x, y, phi, gamma, v, tau))
        agree(softmin(None), softmin("torch"), (x, y, phi, tau))
        agree(softmin(None), softmin("torch"), (x, y, 1e3 * phi.clamp(min=-5), tau * 1e-6), rtol=1e-7, atol=1e-7)   # exponents of a billion
    assert torch.autograd.gradgradcheck(lambda x, phi: Gibbs(x, y[:, :3], 0.7, power).softmin(phi), (randn(2, 4).requires_grad_(), randn(2, 4).requires_grad_()))
    assert torch.autograd.gradgradcheck(lambda x, F, w, t: Gibbs(x, y[:, :3], t, power).softmin(F, None, w), [a.requires_grad_() for a in (randn(2, 4), randn(2, 4), randn(2, 4), torch.tensor([[0.5], [1.5]]).double())])
    y = randn(4, 2).T                                                                # not contiguous
    agree(lambda y: Gibbs(x, y, 0.5, power).apply(phi, y, v), lambda y: Gibbs(x, y, 0.5, power, "torch").apply(phi, y, v), (y,))
    x[1, 3] = torch.nan
    assert Gibbs(x, y, 0.5, power).softmin(phi)[0].isfinite().all() and Gibbs(x, y, 0.5, power).softmin(phi)[1].isnan().all()
"""

OPERATOR = BEGIN + """
s, x = randn(2, 9), randn(2, 9, 1)
s[1, :3] = s[1, 4]
mask = torch.arange(9) < torch.tensor([[9], [6]])
w = torch.rand(9, generator=rng).double()
w[2] = 0
for options in (dict(power=1), dict(power=2), dict(power=2, descending=True, a=w), dict(milestones=4)):
    for more in (dict(), dict(iterations=8), dict(iterations=3, gradient="unrolled")):
        fast, plain = (SinkhornSort(backend=backend, **options, **more) for backend in (None, "torch"))
        def f(op): 
            def call(s, x, tau):
                op.tau = tau
                P = op(s)
                return torch.cat([(P @ x).flatten(), (P.mT @ (P @ x)).flatten(), P.to_dense().flatten(), P.ranks().flatten() if w is not op.a else x.flatten(), P.log_prob(torch.zeros(2, P.m, dtype=torch.long)).clamp(min=-50).flatten()])
            return call
        if "a" in options: assert (fast(s).to_dense()[..., 2] == 0).all()
        close = dict(rtol=1e-8, atol=1e-8) if more else dict(rtol=2e-4, atol=2e-4)    # converged to 1e-6
        agree(f(fast), f(plain), (s, x, torch.tensor([0.05, 0.5]).double()), **close)
    if "milestones" not in options and "a" not in options: agree(lambda s: fast(s, mask) @ s, lambda s: plain(s, mask) @ s, (s,), **close)
op, plain = SinkhornSort(iterations=8), SinkhornSort(iterations=8, backend="torch")
for dtype, off in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)):
    z = s.to(dtype)
    assert (op(z) @ z).dtype == dtype
    assert_close(op(z) @ z, plain(z) @ z, rtol=off, atol=off)
assert_close(torch.vmap(lambda s: op(s) @ s)(s), op(s) @ s)
"""


@old
@pytest.mark.parametrize("program", [KERNELS, OPERATOR], ids=["kernels", "operator"])
def test_tiles_through_the_interpreter(program):
    run = interpret(program)
    assert run.returncode == 0, run.stderr[-3000:]


@pytest.mark.parametrize("n, m", [(1, 1), (5, 4), (1100, 3)])
def test_steps_that_nobody_looks_at_change_nothing_for_who_has_arrived(n, m, rng):
    "As on a GPU, where a look would make the host wait."
    P = torch.rand(3, n, m, generator=rng, dtype=torch.float64)
    if n > 1: P[:, 1] = 0                                                            # weighs nothing
    def through(p): return (P @ (P.mT @ p[..., None] / P.sum(-2)[..., None]))[..., 0]
    r, rhs = P.sum(-1), torch.randn(3, n, generator=rng, dtype=torch.float64)
    rhs = torch.where(r > 0, rhs - rhs[r > 0].view(3, -1).mean(-1, keepdim=True), 0)
    rhs[2] = 0                                                                       # has arrived
    for limit in (0, 1, 2, 20):                                                      # m - 1 steps suffice
        blind, seen = (conjugate(through, r, rhs, 1e-9, limit, looks) for looks in (False, True))
        assert_close(blind, seen, rtol=1e-10, atol=1e-12)
    assert blind[1].tolist()[2] == 0 and (n == 1 or blind[1][:2].min() >= 1)
    each = conjugate(through, r, rhs.mT.contiguous().mT, torch.tensor([[0.1], [1e-9], [1.0]]).double(), 20, True)
    assert n == 1 or (each[1][0] <= seen[1][0] and each[1][1] == seen[1][1])
    rhs[0, 0] = torch.nan
    mu, steps = conjugate(through, r, rhs, 1e-9, 3, False)
    assert mu[1:].isfinite().all() and steps[0] == 0                                 # stays in its row


@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("power", [1, 2, 1.5, lambda d: d.square()], ids=["1", "2", "1.5", "function"])
def test_a_fixed_number_of_rounds_meets_the_converged_plan(power, backend, gradient):
    "Values and gradients, once the rounds suffice."
    if backend == "numba" and power not in (1, 2): pytest.skip("has no kernel")
    s = torch.randn(2, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    w = torch.linspace(-1, 1, 12, dtype=torch.float64)
    found = []
    for op in (SinkhornSort(0.3, power, iterations=60, gradient=gradient, backend=backend), SinkhornSort(0.3, power, tolerance=1e-12)):
        P = op(s)
        found.append((P @ s, torch.autograd.grad((P @ s) @ w @ torch.ones(2, dtype=torch.float64), s)[0]))
        assert P.residual.max() < 1e-9
    assert (op(s).iterations < 60).all() and torch.equal(SinkhornSort(0.3, iterations=7)(s).iterations, torch.full((2,), 7))
    for a, b in zip(*found): assert_close(a, b, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True, "many"])
def test_a_number_of_rounds_that_does_not_fit(wrong):
    with pytest.raises(ValueError, match="iterations must be a positive int or None"): SinkhornSort(iterations=wrong)
