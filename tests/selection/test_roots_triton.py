"""The kernels behind the masks for a GPU in Triton's interpreter, against the plain torch beside them; test_rehearsal.py compiles them."""
import pytest
from interpreted import interpret

triton = pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")
pytestmark = pytest.mark.skipif(triton.__version__.startswith("3.9."), reason="the interpreter of Triton 3.9 spreads a truth value over a block as int32, which no mask takes")

BEGIN = """
import torch
from torch.testing import assert_close
import softsortlib.engine.dispatch as dispatch
import softsortlib.selection.roots_triton as kernels
from softsortlib.selection import SinkhornTopK, SparseTopK
from softsortlib.selection.roots import Law, step_weights
kernels.MOST = 16                                                                    # so that rows of 17 stream
rng = torch.Generator().manual_seed(0)
def randn(*shape): return torch.randn(*shape, generator=rng, dtype=torch.float64)
def run(home, f, inputs, g):
    dispatch.HOME["cpu"] = home
    leaves = [a.detach().requires_grad_() for a in inputs]
    out = f(*leaves)
    return out, *torch.autograd.grad((out * g).sum(), leaves, allow_unused=True, materialize_grads=True)
def agree(f, *inputs, rtol=1e-9, atol=1e-11):
    g = torch.randn(inputs[0].shape, generator=rng, dtype=inputs[0].dtype)
    fast, plain = (run(home, f, inputs, g) for home in ("triton", "torch"))
    for a, b in zip(fast, plain):
        assert a.dtype == b.dtype
        assert_close(a, b, rtol=rtol, atol=atol * max(1.0, b.nan_to_num().abs().max().item()), equal_nan=True)
    return fast
OPS = (SinkhornTopK, SparseTopK, lambda k, tau: SparseTopK(k, tau, p=4 / 3))
"""

EDGES = BEGIN + """
for op in OPS:
    for n in (2, 15, 16, 17, 33, 50):
        s, tau = randn(2, n), torch.tensor([1e-4, 2.0]).double()
        s[1, : n // 3] = s[1, -1]                                                    # a third is tied
        k = torch.tensor([1.0, max(1.5, n / 2 - 0.25)]).double()
        if op is SinkhornTopK: tau[0] = 0.05                                         # Newton on flat exponentials leaves fewer digits
        w, *_ = agree(lambda s, tau, k: op(k, tau)(s), s, tau, k, rtol=1e-7)
        assert_close(w.sum(-1), k)
    mask = torch.rand(2, 20, generator=rng) < 0.6
    agree(lambda s: op(2, 0.3)(s, mask), randn(2, 20))
    agree(lambda s: op(2, 0.3)(s, torch.arange(20) < torch.tensor([[20], [1]])), randn(2, 20))   # a set chosen whole
    agree(lambda s: op(2.5, 1e6)(s), randn(2, 20))
    agree(lambda s: op(3, 1e-6)(s), randn(2, 20))
    agree(lambda s: op(3, 0.5)(s), randn(20, 2).T)                                   # not contiguous
    agree(lambda s: op(3, 0.5)(s), randn(20).expand(2, 3, 20))
"""

TYPES = BEGIN + """
for op in OPS:
    s = randn(3, 40)
    w, *_ = agree(lambda s: op(7, 0.3)(s), s.float(), rtol=2e-5, atol=2e-6)
    assert_close(w.sum(-1), torch.full((3,), 7.0))
    for half in (torch.float16, torch.bfloat16): agree(lambda s: op(7, 0.3)(s), s.to(half), rtol=2e-2, atol=2e-2)
    s[1, 3] = torch.nan                                                              # in its own row, values and gradients
    w, gradient = run("triton", lambda s: op(7, 0.3)(s), [s], torch.ones_like(s))
    for a in (w, gradient): assert a[[0, 2]].isfinite().all() and a[1].isnan().all()
"""

TWICE = BEGIN + """
dispatch.HOME["cpu"] = "triton"
s, tau, k = randn(2, 6).requires_grad_(), torch.tensor([[0.7], [1.5]]).double().requires_grad_(), torch.tensor([[1.7], [2.5]]).double().requires_grad_()
for law in (Law.LOGISTIC, Law.CUBE):
    assert torch.autograd.gradcheck(lambda *t: step_weights(*t, law), (s, tau, k))
assert torch.autograd.gradgradcheck(lambda *t: step_weights(*t, Law.LOGISTIC), (s, tau, k))
op = SinkhornTopK(2, 0.5)
assert_close(torch.vmap(op)(s), op(s))
assert_close(torch.func.vmap(torch.func.grad(lambda s: op(s)[0]))(s.detach()), torch.func.grad(lambda s: op(s)[:, 0].sum())(s.detach()))
"""


@pytest.mark.parametrize("program", [EDGES, TYPES, TWICE], ids=["edges", "types", "derivatives"])
def test_roots_through_the_interpreter(program):
    run = interpret(program)
    assert run.returncode == 0, run.stderr[-3000:]
