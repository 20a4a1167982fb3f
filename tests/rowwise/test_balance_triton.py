"""The balancing kernels without a GPU, through Triton's interpreter, against the plain form; test_rehearsal.py compiles them."""
import pytest
from interpreted import interpret

pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")

INTERPRETED = """
import torch
from torch.testing import assert_close
from softsortlib import SoftSort
from softsortlib.rowwise.balance import in_order, laplace_balanced
rng = torch.Generator().manual_seed(0)

def compare(n, dtype, masked, descending, iterations, shift=0.0):
    s = torch.randn(3, 2 * n, generator=rng, dtype=torch.float64)[:, ::2].to(dtype)                   # not contiguous
    s[0, : n // 2] = 0.25                                                                             # ties
    s = s + shift
    x = torch.rand(3, n, generator=rng, dtype=dtype)
    tau = torch.tensor([0.05, 1.0, 30.0], dtype=dtype)
    mask = torch.rand(3, n, generator=rng) < 0.7 if masked else None
    if masked: mask[1], mask[2] = False, True
    G = torch.randn(3, n, generator=rng, dtype=dtype)
    found = []
    for backend, kind in (("triton", dtype), ("torch", torch.float64)):
        at = [(a if kind == a.dtype else a.to(kind)).detach().requires_grad_() for a in (s, x, tau)]
        y = laplace_balanced(in_order(SoftSort(at[2], backend=backend, descending=descending)(at[0], mask)), at[1], iterations)
        assert y.dtype == kind
        found.append([a.double() for a in (y, *torch.autograd.grad(y, at, G.to(kind)))])
    exact = torch.finfo(dtype).eps ** 0.75
    for a, b in zip(*found): assert_close(a, b, rtol=exact, atol=exact * n * max(1, b.abs().max().item()))

for n in (2, 3, 5, 8, 9, 127, 128, 129):
    for dtype in (torch.float64, torch.float32): compare(n, dtype, n % 2, n == 9, 3)
compare(1024, torch.float32, True, True, 2)
compare(40, torch.float64, False, True, 0)
compare(40, torch.float64, True, True, 20)
for shift in (9.0, -9.0):                                                                             # padding is zero
    for descending in (False, True): compare(40, torch.float64, True, descending, 2, shift)
s = torch.randn(2, 12, generator=rng)
s[1, 3] = float("nan")
y = laplace_balanced(in_order(SoftSort(0.5, backend="triton")(s)), torch.ones(2, 12), 2)
assert y[0].isfinite().all() and y[1].isnan().all()
half = torch.randn(2, 12, generator=rng).bfloat16()
a, b = (laplace_balanced(in_order(SoftSort(0.5, backend=backend)(half)), half, 2) for backend in ("triton", "torch"))
assert a.dtype == torch.bfloat16
assert_close(a, b)
z = torch.randn(6, generator=rng, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradgradcheck(lambda z: laplace_balanced(in_order(SoftSort(0.5, backend="triton")(z)), z, 1), z)
print("fine")
"""


def test_interpreter_agrees_with_the_plain_form():
    run = interpret(INTERPRETED)
    assert run.returncode == 0 and run.stdout.strip() == "fine", run.stderr[-3000:]
