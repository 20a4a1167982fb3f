"""The matrix's Triton kernels without a GPU, through Triton's interpreter; test_rehearsal.py compiles them."""
import os
import subprocess
import sys

import pytest
import torch

from softsortlib.rowwise.softsort import SoftSort

pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")

INTERPRETED = """
import torch
from torch.testing import assert_close
from softsortlib.rowwise.softsort_matrix import laplace_matrix
from softsortlib.rowwise.softsort import SoftSort
rng = torch.Generator().manual_seed(0)
new = lambda *shape: torch.rand(*shape, generator=rng, dtype=torch.float64).requires_grad_()
for B, m, n in ((1, 1, 1), (3, 5, 7), (2, 70, 600)):                                    # a stretch of 64 rows and a block of 512 columns, and more
    args, G = (new(B, n), new(B, m), new(B), new(B, m)), torch.randn(B, m, n, generator=rng, dtype=torch.float64)
    P, Q = (laplace_matrix(*args, backend) for backend in ("triton", "numba"))
    assert_close(P, Q, rtol=1e-12, atol=1e-13)
    for a, b in zip(*(torch.autograd.grad(k, args, G) for k in (P, Q))): assert_close(a, b, rtol=1e-10, atol=1e-10)
s = torch.randn(2, 70, generator=rng, dtype=torch.float64).requires_grad_()
x = torch.randn(2, 70, 2, generator=rng, dtype=torch.float64).requires_grad_()
tau = torch.tensor([0.1, 2.0], dtype=torch.float64).requires_grad_()
mask = torch.rand(2, 70, generator=rng) < 0.8
def compare(s, mask, descending):
    P, Q = (SoftSort(tau, backend=backend, descending=descending)(s, mask) for backend in ("triton", "numba"))
    for call in (lambda P: P @ x, lambda P: P.mT @ x, lambda P: P.log_prob(P.hard()), lambda P: P.to_dense()):
        a, b = call(P), call(Q)
        assert_close(a, b, rtol=1e-11, atol=1e-12)
        G = torch.randn(a.shape, generator=rng, dtype=torch.float64)
        for g, h in zip(torch.autograd.grad(a, (s, tau, x), G, retain_graph=True, allow_unused=True), torch.autograd.grad(b, (s, tau, x), G, retain_graph=True, allow_unused=True)):
            if h is not None: assert_close(g, h, rtol=1e-9, atol=1e-10)
compare(s, None, False)
for shift in (0, 9, -9):                                                                # rows that are padded with zeros, above all and below all
    for descending in (False, True): compare((s + shift).detach().requires_grad_(), mask, descending)
"""


def test_interpreter_agrees_with_the_cpu():
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", INTERPRETED], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_gpu_equals_the_plain_form(rng):
    s, G = torch.randn(3, 1000, generator=rng).cuda(), torch.randn(3, 1000, 1000, generator=rng).cuda()
    found = []
    for backend in ("triton", "torch"):
        z = s.clone().requires_grad_()
        P = SoftSort(0.3, backend=backend)(z).to_dense()
        found.append((P, torch.autograd.grad(P, z, G)[0]))
    for a, b in zip(*found): assert (a - b).norm() <= 1e-4 * b.norm()
