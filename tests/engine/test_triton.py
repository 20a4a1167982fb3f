"""The scan's Triton kernel without a GPU: run through Triton's interpreter, and compiled for GPUs that are not there."""
import os
import subprocess
import sys

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")

INTERPRETED = """
import torch
from torch.testing import assert_close
from softsortlib.engine.scan import exp_scan, exp_scan_dense
rng = torch.Generator().manual_seed(0)
for n, d in ((1, 1), (7, 2), (1500, 1)):
    s = torch.randint(n, (2, n), generator=rng).double().sort(-1).values / n       # ties
    s[1] = s[1].flip(0)                                                            # one row up, one row down
    x, tau = torch.randn(2, n, d, generator=rng, dtype=torch.float64), torch.tensor([0.01, 1.0], dtype=torch.float64)
    for mode in ("even", "odd", "strict"): assert_close(exp_scan(s, x, tau, mode, "triton"), exp_scan_dense(s, x, tau, mode), rtol=1e-12, atol=1e-12)
    single = exp_scan(s.float(), x.float(), tau, "even", "triton")
    assert_close(single.double(), exp_scan_dense(s.float().double(), x.float().double(), tau), rtol=1e-5, atol=1e-5)
"""


def test_kernels_through_the_interpreter():
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, "-c", INTERPRETED], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]


COMPILED = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from softsortlib.engine.scan_triton import _left_kernel
for real in ("fp32", "fp64"):
    signature = dict(s_ptr=f"*{real}", x_ptr=f"*{real}", tau_ptr="*fp64", L_ptr="*fp64", n="i32", d="i32", BLOCK="constexpr")
    source = ASTSource(fn=_left_kernel, signature=signature, constexprs=dict(BLOCK=1024))
    assert "ptx" in triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32)).asm
"""


@pytest.mark.parametrize("capability", (80, 90))
def test_kernels_compile_for_a_gpu_that_is_not_there(capability, tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", COMPILED, str(capability)], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
