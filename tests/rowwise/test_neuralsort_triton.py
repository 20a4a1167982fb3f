"""NeuralSort's Triton kernels without a GPU: run through Triton's interpreter, and compiled for GPUs that are not there."""
import os
import subprocess
import sys

import pytest
import torch

from softsortlib.rowwise.neuralsort import NeuralSort

pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")

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
    for out in (P @ x, P.mT @ x, P.log_prob(P.hard()), P.to_dense(), P[..., :1, :] @ x):
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
print("fine")
'''


def test_interpreter_agrees_with_the_plain_form():
    run = subprocess.run([sys.executable, "-c", INTERPRETED], capture_output=True, text=True, timeout=300,
                         env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"})
    assert run.returncode == 0 and run.stdout.strip() == "fine", run.stderr[-3000:]


COMPILED = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from softsortlib.rowwise import neuralsort_triton as k
doubles, singles = "s b t bt tau gs gb gtau", "P x y others mean G a v z"
types = {**{f"{a}_ptr": "*fp64" for a in doubles.split()}, **{f"{a}_ptr": "*fp32" for a in singles.split()}, "size_ptr": "*i64", "own_ptr": "*i64", "n": "i32", "d": "i32"}
tile = dict(ROWS=16, BLOCK=128)
for kernel, constants in ((k._matrix_kernel, dict(ROWS=4, BLOCK=512)), (k._mul_kernel, tile), (k._rmul_kernel, tile),
                          (k._mean_kernel, dict(MATRIX=True, **tile)), (k._mean_kernel, dict(MATRIX=False, **tile)),
                          (k._pull_kernel, dict(MATRIX=True, CHUNK=256, **tile)), (k._pull_kernel, dict(MATRIX=False, CHUNK=256, **tile))):
    for more in ({}, {"d": 1} if "d" in kernel.arg_names else {}):                       # a size of one is a constant to Triton
        known = {**constants, **more}
        signature = {name: "constexpr" if name in known else types.get(name) for name in kernel.arg_names}
        source = ASTSource(fn=kernel, signature=signature, constexprs=known)
        assert ".entry" in triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32)).asm["ptx"]
"""


@pytest.mark.parametrize("capability", (80, 90))
def test_kernels_compile_for_a_gpu_that_is_not_there(capability, tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", COMPILED, str(capability)], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]


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
