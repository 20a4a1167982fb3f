"Error-free swaps on the layers' Triton kernels in the interpreter against the plain form; test_rehearsal.py compiles them."
import pytest
from interpreted import interpret

pytest.importorskip("triton", reason="triton is not installed")

PROGRAM = """
import itertools, torch
from torch.testing import assert_close
import softsortlib.engine.dispatch as dispatch
from softsortlib import SortingNetwork
dispatch.HOME["cpu"] = "triton"                    # the way of a GPU, with the interpreter
rng = torch.Generator().manual_seed(1)

def both(make, dtype, *inputs):
    "Values and gradients by the kernels in `dtype`, and in plain torch in double precision."
    out = []
    for backend, dtype in ((None, dtype), ("torch", torch.float64)):
        a = [z.detach().to(dtype).requires_grad_() for z in inputs]
        y = make(backend, *a)
        weight = torch.linspace(-1, 1, y.numel()).view(y.shape)
        out.append((y.double(), *(g.double() for g in torch.autograd.grad((weight.to(y) * y).sum(), a, allow_unused=True, materialize_grads=True))))
    return out

cases = [*itertools.product(((2, 1), (7, 1), (5, 33)), ("bitonic", "odd_even"), ("cauchy",)), ((33, 2), "odd_even", "cauchy"), ((70, 1), "bitonic", "cauchy"),
         *(((5, 2), "bitonic", name) for name in ("logistic", "reciprocal_phi", "gaussian", "optimal"))]
for (n, d), kind, sigmoid in cases:
    s = torch.randn(2, 2 * n, generator=rng)[:, ::2]                                           # not contiguous
    s[0, -1] = s[0, 1]                                                                         # a tie
    x, tau = torch.randn(2, d, n, generator=rng).mT, torch.tensor([0.3, 1.0])
    mask = (torch.arange(n) != 2).expand(2, n)
    for what in ("product", "transposed", "masked", "matrix", "log"):
        if what != "product" and (n > 7 or sigmoid != "cauchy"): continue
        def f(backend, s, x, tau):
            P = SortingNetwork(kind, sigmoid, tau=tau, backend=backend, swaps="error_free")(s, mask if what == "masked" else None)
            if what == "matrix": return P.to_dense()
            return P.mT @ x if what == "transposed" else P.soft().log_prob(s.argsort(-1)) if what == "log" else P @ x
        for dtype in (torch.float32, torch.float64) if n == 7 else (torch.float32,):
            tight = 1e-9 if dtype == torch.float64 else 2e-4
            fast, exact = both(f, dtype, s, x, tau)
            if what != "log": assert_close(fast[0], exact[0], rtol=1e-7, atol=1e-7)            # an exact permutation
            for a, b in zip(fast, exact): assert_close(a, b, rtol=tight, atol=tight)

for payload in (float("inf"), float("nan")):                                                   # stays where it belongs
    x = torch.tensor([1.0, payload, 3.0, 4.0])
    s = torch.tensor([4.0, 3.0, 2.0, 1.0])
    assert torch.equal((SortingNetwork(swaps="error_free")(s) @ x).isfinite(), torch.tensor([True, True, False, True]))
s = torch.tensor([[0.5, float("nan"), 1.0, 2.0], [3.0, 1.0, 2.0, 0.0]])
assert (SortingNetwork(swaps="error_free")(s) @ s)[1].tolist() == [0, 1, 2, 3]
half = torch.randn(2, 9, generator=rng).bfloat16()
assert torch.equal(SortingNetwork(swaps="error_free")(half) @ half, half.sort(-1).values)
s = torch.randn(5, generator=rng, dtype=torch.float64, requires_grad=True)
y = SortingNetwork(swaps="error_free", tau=0.5)(s) @ s
[g] = torch.autograd.grad(y.square().sum(), s, create_graph=True)
try: torch.autograd.grad(g.sum(), s)
except NotImplementedError as e: assert "first derivative only" in str(e)
else: raise AssertionError("no second derivative was promised")
print("fine")
"""


def test_interpreter_agrees_with_the_plain_form():
    done = interpret(PROGRAM)
    assert done.returncode == 0 and done.stdout.strip() == "fine", done.stderr[-3000:]
