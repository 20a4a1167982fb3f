"""The Triton kernels of rows without a GPU, through Triton's interpreter, against the plain form on the grid of the CPU's kernel; test_rehearsal.py compiles them."""
import pytest
import torch
from interpreted import interpret

from softsortlib.rowwise.neuralsort import NeuralSort
from softsortlib.rowwise.softsort import SoftSort

triton = pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")
pytestmark = pytest.mark.skipif(triton.__version__.startswith("3.9."), reason="the interpreter of Triton 3.9 spreads a truth value over a block as int32, which no mask takes")

HEAD = """
import torch
from torch.testing import assert_close
from softsortlib.rowwise.products import row_answer
from softsortlib.rowwise.rows import Asked
from softsortlib.rowwise.rows_triton import sums_back, sums_of
from softsortlib.rowwise.neuralsort import NeuralSort
from softsortlib.rowwise.reference import row_sums
from softsortlib.rowwise.softsort import SoftSort
rng = torch.Generator().manual_seed(0)
"""

GRID = HEAD + """
def results(power, asked, backend, rows, s, tau, x, size, descending):
    "The answer and the gradients of a sum to scores, temperature and payload, each with the scale 1 / tau that it may be small against."
    n, leaves = s.shape[1], [a.clone().requires_grad_() for a in (s, tau, x)]
    order = torch.sort(s, dim=-1, descending=descending, stable=True).indices
    s, tau, x = leaves
    r = n if rows is None else len(rows)
    if asked in (Asked.MATRIX, Asked.LIKELIHOOD): x = x[:, :0, :0]
    if asked == Asked.BACK_PRODUCT: x = x[:, :r]
    target = order[:, :0]
    if asked == Asked.LIKELIHOOD: target = order.flip(-1)[:, :r].where(torch.arange(r) % 3 > 0, order[:, :1]) if rows is not None else order.where(torch.arange(r) % 3 > 0, order.flip(-1))
    y = row_answer(s, order, size, tau, x, target, rows, int(asked), power, descending, backend)
    there = y.isfinite()
    G = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).where(there, 0).to(y.dtype)
    found = torch.autograd.grad(y, leaves, G, allow_unused=True, materialize_grads=True)
    return [(there, 0), (y.where(there, 0), 0), *((g, G.double().norm() / tau.double().min()) for g in found)]

def compare(n, power, dtype, asked, rows, d):
    s = torch.randn(2, n, generator=rng).double()
    s[0, : n // 2] = 0.25                                                               # ties
    size, descending = torch.tensor([n, max(0, n - 3)]), n % 2 == 0
    order = torch.sort(s, dim=-1, descending=descending, stable=True).indices
    s[1] = s[1].scatter(0, order[1, size[1]:], float(s[1, order[1, max(0, size[1] - 1)]]))   # padded: like the last
    order = torch.sort(s, dim=-1, descending=descending, stable=True).indices
    s, x, tau = s.to(dtype), torch.randn(2, n, d, generator=rng).to(dtype), torch.tensor([0.05, 3.0]).double()
    args = rows, s, tau, x, size, descending
    exact = torch.finfo(dtype).eps ** 0.75
    for (a, _), (b, scale) in zip(results(power, asked, "triton", *args), results(power, asked, "torch", *[v.double() if v is s or v is x else v for v in args])):
        assert a.dtype in (dtype, tau.dtype, torch.bool) and a.double().isfinite().all()
        assert (a.double() - b.double()).norm() <= exact * (b.double().norm() + 1e-3 * scale + 1e-6), (n, power, dtype, asked, rows, a, b)

for n, d, powers in ((1, 1, (0.0,)), (7, 2, (0.0, 0.5, 1.7, 2.0, 3.0)), (40, 5, (0.0, 1.0))):      # a tile has 32 rows and columns
    for power in powers:
        for asked in list(Asked)[1:5]:
            compare(n, power, torch.float32 if power == 0 or n == 40 else torch.float64, asked, None, d)
            if n == 7: compare(n, power, torch.float32, asked, torch.tensor([4, 0, 5, 0]), d)
print("fine")
"""

AROUND = HEAD + """
tau = torch.tensor([0.1, 2.0], dtype=torch.float64).requires_grad_()
mask = torch.rand(2, 40, generator=rng) < 0.8
for power, m, shift, descending in ((1, None, 0, False), (1, mask, 9, True), (1, mask, -9, False), (2, mask, 9, True), (1.5, None, 0, False)):
    s = (torch.randn(2, 40, generator=rng, dtype=torch.float64) + shift).requires_grad_()         # padded with zeros, above all and below all
    fast, plain = (SoftSort(tau, power, backend=backend, descending=descending)(s, m) for backend in ("triton", "torch"))
    a, b, c = fast.to_dense(), plain.to_dense(), fast[..., :3, :].to_dense()
    assert_close(a, b, rtol=1e-11, atol=1e-12)
    assert_close(c, b[..., :3, :], rtol=1e-11, atol=1e-12)
    G = torch.randn(a.shape, generator=rng, dtype=torch.float64)
    for g, h in zip(torch.autograd.grad(a, (s, tau), G), torch.autograd.grad(b, (s, tau), G)): assert_close(g, h, rtol=1e-9, atol=1e-10)
for op in (NeuralSort(1.0, backend="triton"), SoftSort(1.0, 2, backend="triton")):
    s = torch.randn(2, 20, generator=rng)
    s[1, 3] = float("nan")
    P = op(s).to_dense()
    assert P[0].isfinite().all() and P[1].isnan().any()
    half, x = torch.randn(3, 2, 9, generator=rng).bfloat16(), torch.rand(3, 2, 9, generator=rng).bfloat16()
    assert (op(half) @ x).dtype == torch.bfloat16 and (op(half) @ x).shape == (3, 2, 9)
    far = torch.cat([torch.randn(1, 20, generator=rng), torch.tensor([[1e30]])], 1)                # an outlier costs the others no digits
    assert_close(op(far).to_dense()[..., :20, :20], op(far[:, :20]).to_dense() if isinstance(op, SoftSort) else op(far.double()).to_dense()[..., :20, :20].float(), rtol=2e-5, atol=1e-6)
    z = torch.randn(5, generator=rng, requires_grad=True)
    first, = torch.autograd.grad((op(z) @ z).square().sum(), z, create_graph=True)                 # which its plain twin differentiates
    assert torch.autograd.grad(first.sum(), z)[0].isfinite().all()
for n in (1, 32, 33, 1025):                                                                       # a tile has 32 scores, and 1,024 of a list are summed at a time
    t = torch.randn(2, n, generator=rng, dtype=torch.float64).round(decimals=1).sort(descending=True).values.requires_grad_()
    size = torch.tensor([n, max(1, n - 3)])
    real = torch.arange(n) < size[:, None]
    fast, slow = sums_of(t.detach(), size), row_sums(t, size)
    apart = (fast - slow.detach()).masked_fill(~real, 0)                                          # they are known up to one number that all of a set share
    assert (apart - apart[:, :1] * real).abs().max() <= 1e-12 * (1 + slow.abs().max() + fast.abs().max())
    if n > 1000: continue
    g = torch.randn(2, n, generator=rng, dtype=torch.float64).masked_fill(~real, 0)
    signs = (t[:, :, None] - t[:, None, :]).sign() * (real[:, :, None] & real[:, None, :])
    assert_close(sums_back(g, t.detach(), size)[real], (signs * (g[:, :, None] + g[:, None, :])).sum(-1)[real], rtol=1e-11, atol=1e-11)
print("fine")
"""


@pytest.mark.parametrize("program", [GRID, AROUND], ids=["grid", "around"])
def test_interpreter_agrees_with_the_plain_form(program):
    run = interpret(program)
    assert run.returncode == 0 and run.stdout.strip() == "fine", run.stderr[-3000:]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("make", [lambda n, b: NeuralSort(float(n), backend=b), lambda n, b: SoftSort(0.3, backend=b), lambda n, b: SoftSort(0.3, 1.5, backend=b)], ids=["neuralsort", "softsort", "power"])
@pytest.mark.parametrize("n", [49, 1000, 2048])
def test_gpu_equals_the_plain_form(make, n, rng):
    s, G = torch.randn(3, n, generator=rng).cuda(), torch.randn(3, n, n, generator=rng).cuda()
    found = []
    for z, backend in ((s, "triton"), (s.double(), "torch")):
        z = z.clone().requires_grad_()
        P = make(n, backend)(z)
        out = P.to_dense(), P @ z.detach(), P.mT @ z.detach()
        found.append([*out, *torch.autograd.grad((out[0] * G.to(z.dtype)).sum(), z, retain_graph=True), *torch.autograd.grad(out[1].square().sum(), z)])
    for a, b in zip(*found): assert (a.double() - b).norm() <= 1e-5 * (b.norm() + 1e-3 * n**0.5)
