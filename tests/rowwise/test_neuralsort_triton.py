"""NeuralSort's Triton kernels without a GPU, through Triton's interpreter; test_rehearsal.py compiles them."""
import os
import subprocess
import sys

import pytest
import torch

from softsortlib.rowwise.neuralsort import NeuralSort

triton = pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")
pytestmark = pytest.mark.skipif(triton.__version__.startswith("3.9."), reason="the interpreter of Triton 3.9 spreads a truth value over a block as int32, which no mask takes")

INTERPRETED = '''
import torch
from softsortlib.rowwise.neuralsort import NeuralSort
rng = torch.Generator().manual_seed(0)

def everything(backend, mask, s, x, tau):
    "Products, likelihood and matrix with all gradients; each gradient with the scale |G| / tau that it may be small against."
    s, x, tau = (a.clone().requires_grad_() for a in (s, x, tau))
    op = NeuralSort(1.0, backend=backend)
    op.tau = tau
    P, found = op(s, mask), []
    n = s.shape[-1]
    there = P.hard() if mask is None else P.hard().where(torch.arange(s.shape[-1]) % 3 > 0, P.hard()[..., :1])       # the best at every third place
    for out in (P @ x, P.mT @ x, P.log_prob(P.hard()), P.log_prob(P.hard().flip(-1) if mask is None else there), P.to_dense(), P[..., :1, :] @ x, P[..., [0, -1, 0], :] @ x, P[..., n // 2:, :].mT @ x[..., n // 2:, :]):
        G = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
        grads = torch.autograd.grad((out * G).sum(), (s, tau, x), retain_graph=True, allow_unused=True)
        found += [(out, 0.0), *((g, float(G.norm() / tau.min())) for g in grads)]
    return found

for n, temperatures in ((1, (0.5, 2.0)), (7, (0.02, 5.0)), (37, (0.3, 50.0)), (150, (1.0, 1000.0))):
    s, x, tau = torch.randn(2, n, generator=rng), torch.randn(2, n, 2, generator=rng), torch.tensor(temperatures)
    s[0, : n // 2] = 0.25                                                             # ties
    for mask in (None, torch.rand(2, n, generator=rng) < 0.7):
        got, want = everything("triton", mask, s, x, tau), everything("torch", mask, s.double(), x.double(), tau.double())
        for k, ((a, _), (b, scale)) in enumerate(zip(got, want)):
            if b is None: continue
            assert a.isfinite().all() and (a.double() - b).norm() <= 1e-5 * (b.norm() + 1e-3 * scale + 1e-6), (n, mask is None, k, a, b)
s = torch.randn(2, 20, generator=rng)
s[1, 3] = float("nan")
P = NeuralSort(1.0, backend="triton")(s).to_dense()
assert P[0].isfinite().all() and P[1].isnan().any()
from softsortlib.rowwise.neuralsort import row_sums
from softsortlib.rowwise.neuralsort_triton import neural_sums
for n in (1, 16, 17, 128, 129, 300):                                                # a tile has 16 rows and 128 columns
    t = torch.randn(2, n, generator=rng, dtype=torch.float64).round(decimals=1).sort(descending=True).values.requires_grad_()
    size = torch.tensor([n, max(1, n - 3)])
    real = torch.arange(n) < size[:, None]
    g = torch.randn(2, n, generator=rng, dtype=torch.float64).masked_fill(~real, 0)
    fast, slow = neural_sums(t.detach(), size), row_sums(t, size)
    apart = (fast - slow.detach()).masked_fill(~real, 0)                            # the sums of a set are known up to one number that all share
    assert (apart - apart[:, :1] * real).abs().max() <= 1e-12 * (1 + slow.abs().max() + fast.abs().max())
    signs = (t[:, :, None] - t[:, None, :]).sign() * (real[:, :, None] & real[:, None, :])
    want = (signs * (g[:, :, None] + g[:, None, :])).sum(-1)                          # (19.3)
    torch.testing.assert_close(neural_sums(t.detach(), size, g)[real], want[real], rtol=1e-11, atol=1e-11)
print("fine")
'''


def test_interpreter_agrees_with_the_plain_form():
    run = subprocess.run([sys.executable, "-c", INTERPRETED], capture_output=True, text=True, timeout=300,
                         env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"})
    assert run.returncode == 0 and run.stdout.strip() == "fine", run.stderr[-3000:]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("n", [49, 1000, 2048])
def test_gpu_equals_the_plain_form(n, rng):
    s, G = torch.randn(3, n, generator=rng).cuda(), torch.randn(3, n, n, generator=rng).cuda()
    found = []
    for z, backend in ((s, "triton"), (s.double(), "torch")):
        z = z.clone().requires_grad_()
        P = NeuralSort(float(n), backend=backend)(z)
        out = P.to_dense(), P @ z.detach(), P.mT @ z.detach()
        found.append([*out, *torch.autograd.grad((out[0] * G.to(z.dtype)).sum(), z, retain_graph=True), *torch.autograd.grad(out[1].square().sum(), z)])
    for a, b in zip(*found): assert (a.double() - b).norm() <= 1e-5 * (b.norm() + 1e-3 * n**0.5)
