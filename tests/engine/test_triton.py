"""The scan's Triton kernel without a GPU, through Triton's interpreter; test_rehearsal.py compiles them."""
import pytest
from interpreted import interpret

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
    run = interpret(INTERPRETED)
    assert run.returncode == 0, run.stderr[-3000:]


BITS = """
import torch
from softsortlib.engine.scan import exp_scan
s = torch.linspace(0, 1, 20).double().square().repeat(2, 1)
x, tau = torch.linspace(-1, 1, 40).view(2, 20, 1).sin(), torch.tensor([0.01, 1.0])
print([exp_scan(s.to(dtype), x.to(dtype), tau.to(dtype), mode, "triton").tolist() for mode in ("even", "odd", "strict") for dtype in (torch.float32, torch.float64)])
"""


def test_a_quick_interpreter_computes_the_same_bits():
    "interpreted.py: the interpreter that asks once, and Triton's own."
    quick, own = interpret(BITS), interpret(BITS, "own")
    assert quick.returncode == 0 == own.returncode, quick.stderr + own.stderr
    assert quick.stdout == own.stdout and len(quick.stdout) > 1000


def test_a_program_that_fails_says_why():
    run = interpret("print('before', flush=True)\nassert 1 + 1 == 3, 'no sum'")
    assert run.returncode and run.stdout == "before\n" and "no sum" in run.stderr
