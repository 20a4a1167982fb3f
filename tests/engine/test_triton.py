"""The scan's Triton kernel without a GPU, through Triton's interpreter; test_rehearsal.py compiles them."""
import os
import subprocess
import sys

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")
pytestmark = pytest.mark.skipif(triton.__version__.startswith("3.9."), reason="the interpreter of Triton 3.9 spreads a truth value over a block as int32, which no mask takes")

INTERPRETED = """
import torch
from torch.testing import assert_close
from softsortlib.engine.scan import exp_scan, exp_scan_dense
rng = torch.Generator().manual_seed(0)
for n, d in ((1, 1), (7, 2), (1500, 1)):
    s = torch.randint(n, (2, n), generator=rng).double().sort(-1).values / n       # ties
    x, tau = torch.randn(2, n, d, generator=rng, dtype=torch.float64), torch.tensor([0.01, 1.0], dtype=torch.float64)
    for mode in ("even", "odd", "strict"): assert_close(exp_scan(s, x, tau, mode, "triton"), exp_scan_dense(s, x, tau, mode), rtol=1e-12, atol=1e-12)
    single = exp_scan(s.float(), x.float(), tau, "even", "triton")
    assert_close(single.double(), exp_scan_dense(s.float().double(), x.float().double(), tau), rtol=1e-5, atol=1e-5)
"""


def test_kernels_through_the_interpreter():
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, "-c", INTERPRETED], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
