"""SoftSort's likelihood and its balanced matrix from the scan's Triton kernels without a GPU, through Triton's interpreter, against plain torch."""
import pytest
from interpreted import interpret

pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")

INTERPRETED = """
import torch
from torch.testing import assert_close
from softsortlib.rowwise.softsort import SoftSort
import softsortlib.engine.mean_triton as mean
import softsortlib.engine.scan_triton as scan
rng = torch.Generator().manual_seed(0)
cut = scan.cut

def compare(n, dtype, masked, blocks, descending, order, shift=0.0):
    scan.cut = mean.cut = cut if blocks is None else lambda n, d, most=None: (blocks, 0, -(-n // blocks))
    s = torch.randn(3, 2 * n, generator=rng, dtype=torch.float64)[:, ::2].to(dtype)                   # not contiguous
    s[0, : n // 2] = 0.25                                                                             # ties
    s = (s + shift).requires_grad_()
    tau = torch.tensor([0.05, 1.0, 30.0], dtype=dtype, requires_grad=True)
    mask = torch.rand(3, n, generator=rng) < 0.7 if masked else None
    G = torch.randn(3, n, generator=rng, dtype=dtype)
    found = []
    for backend in ("triton", "torch"):
        P = SoftSort(tau, backend=backend, descending=descending)(s, mask)
        target = P.hard() if order else torch.randint(n, (3, n), generator=torch.Generator().manual_seed(1)) // 2        # some inputs twice, others never
        y = P.log_prob(target)
        real = y.isfinite()
        found.append((y, *torch.autograd.grad(y.masked_fill(~real, 0), (s, tau), G, materialize_grads=True, allow_unused=True)))
    exact = torch.finfo(dtype).eps ** 0.75
    for a, b in zip(*found): assert_close(a, b, rtol=exact, atol=exact * n)

for n, blocks in ((1, None), (5, None), (1024, None), (1025, None), (2100, None), (8, 8), (9, 8), (40, 8)):
    for dtype in (torch.float64, torch.float32): compare(n, dtype, n % 2, blocks, n == 9, n != 40)
for shift in (0.0, 9.0, -9.0):                                                                        # padding is zero
    for descending in (False, True): compare(40, torch.float64, True, 8, descending, True, shift)
scan.cut = mean.cut = cut
s = torch.randn(2, 12, generator=rng)
s[1, 3] = float("nan")
y = SoftSort(0.5, backend="triton")(s).log_prob(s.argsort(-1))
assert y[0].isfinite().all() and y[1].isnan().all()
half = torch.randn(2, 12, generator=rng).bfloat16()
a, b = (SoftSort(0.5, backend=backend)(half).log_prob(half.argsort(-1)) for backend in ("triton", "torch"))
assert a.dtype == torch.bfloat16 and torch.equal(a, b)
z = torch.randn(6, generator=rng, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradgradcheck(lambda z: SoftSort(0.5, backend="triton")(z).log_prob(torch.arange(6)), z)
print("fine")
"""


def test_the_likelihood():
    run = interpret(INTERPRETED)
    assert run.returncode == 0 and run.stdout.strip() == "fine", run.stderr[-3000:]


BALANCED = """
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

for n in (2, 9, 128):
    for dtype in (torch.float64, torch.float32): compare(n, dtype, n % 2, n == 9, 3)
compare(1025, torch.float32, True, True, 1)                                                           # in chunks
for iterations in (0, 20): compare(40, torch.float64, iterations > 0, True, iterations)
for shift in (9.0, -9.0):                                                                             # padding is zero
    for descending in (False, True): compare(20, torch.float64, True, descending, 2, shift)
s = torch.randn(2, 12, generator=rng)
s[1, 3] = float("nan")
y = laplace_balanced(in_order(SoftSort(0.5, backend="triton")(s)), torch.ones(2, 12), 2)
assert y[0].isfinite().all() and y[1].isnan().all()
half = torch.randn(2, 12, generator=rng).bfloat16()
a, b = (laplace_balanced(in_order(SoftSort(0.5, backend=backend)(half)), half, 2) for backend in ("triton", "torch"))
assert a.dtype == torch.bfloat16
assert_close(a, b)
z = torch.randn(5, generator=rng, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradgradcheck(lambda z: laplace_balanced(in_order(SoftSort(0.5, backend="triton")(z)), z, 1), z)
print("fine")
"""


def test_the_balanced_matrix():
    run = interpret(BALANCED)
    assert run.returncode == 0 and run.stdout.strip() == "fine", run.stderr[-3000:]


FAR = """
import torch
from softsortlib import SoftSort
s = torch.rand(2, 60, generator=torch.Generator().manual_seed(0)).sort(-1).values
def gradients(backend, dtype, tau):
    at = [a.to(dtype, copy=True).requires_grad_() for a in (s, (1000 + s)[..., None], torch.full((2,), tau))]
    return torch.autograd.grad(SoftSort(at[2], backend=backend)(at[0]) @ at[1], at, torch.linspace(-1, 1, 120).view(2, 60, 1).sin().to(dtype))
for tau in (1e-3, 0.1, 10.0):
    for a, b in zip(gradients("triton", torch.float32, tau), gradients("torch", torch.float64, tau)):
        assert (a - b).norm() <= 1e-5 * b.norm(), (tau, a, b)
print("fine")
"""


def test_the_gradient_of_a_payload_far_from_zero():
    "What is left of a mean after rounding counts: without it a gradient of a thousandth of the payload has no digit."
    run = interpret(FAR)
    assert run.returncode == 0 and run.stdout.strip() == "fine", run.stderr[-3000:]
