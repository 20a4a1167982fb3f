"""The scan's Triton kernel without a GPU, through Triton's interpreter; test_rehearsal.py compiles them."""
import json

import pytest
import torch
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
import softsortlib.engine.scan_triton as scan
scan.cut = lambda n, d, most=None: (8, 1, -(-n // 8))                              # chunks of 8, whose ends are scanned too
s = torch.linspace(0, 3, 100).double().square().repeat(2, 1)
s[1, 20:70] = s[1, 20]                                                             # ties over many chunks
x, tau = torch.randn(2, 100, 2, generator=rng, dtype=torch.float64), torch.tensor([3.0, 10.0], dtype=torch.float64)
launch, ends = scan.launch, []
def four_at_once(kernel, *how, BLOCK, **args):
    if few and kernel is scan._carry_kernel: ends.append(args["chunks"])
    return launch(kernel, *how, BLOCK=4 if few and kernel is scan._carry_kernel else BLOCK, **args)
scan.launch = four_at_once
for few in (False, True):                                                          # as above 512 chunks, the ends of blocks are carried on
    for mode in ("even", "odd", "strict"): assert_close(exp_scan(s, x, tau, mode, "triton"), exp_scan_dense(s, x, tau, mode), rtol=1e-12, atol=1e-12)
assert ends == [13] * 3, ends
"""


def test_kernels_through_the_interpreter():
    run = interpret(INTERPRETED)
    assert run.returncode == 0, run.stderr[-3000:]


BITS = """
import torch
from softsortlib import SoftSort
s = torch.linspace(0, 1, 20).double().square().repeat(2, 1)
x = torch.linspace(-1, 1, 40).view(2, 20, 1).sin()
print([(SoftSort(0.1, 2, backend="triton")(s.to(dtype)) @ x.to(dtype)).tolist() for dtype in (torch.float32, torch.float64)])
"""


def test_a_quick_interpreter_computes_the_same_bits():
    "interpreted.py: the interpreter that asks once, and Triton's own."
    quick, own = interpret(BITS), interpret(BITS, "own")
    assert quick.returncode == 0 == own.returncode, quick.stderr + own.stderr
    assert quick.stdout == own.stdout and len(quick.stdout) > 1000


SCANS = """
import torch
from softsortlib.engine.scan import exp_scan
s = torch.linspace(0, 1, 20).double().square().repeat(2, 1)
x, tau = torch.linspace(-1, 1, 80).view(2, 20, 2).sin(), torch.tensor([0.01, 1.0])
print([exp_scan(s.double(), x.double(), tau.double(), mode, "triton").tolist() for mode in ("even", "odd", "strict")])
"""


def test_a_scan_in_a_tree_is_a_scan_from_one_end():
    "What the interpreter's own scan, which goes through one element at a time, differs by is rounding."
    quick, own = interpret(SCANS), interpret(SCANS, "own")
    assert quick.returncode == 0 == own.returncode, quick.stderr + own.stderr
    torch.testing.assert_close(*(torch.tensor(json.loads(run.stdout), dtype=torch.float64) for run in (quick, own)), rtol=1e-12, atol=1e-14)
    assert quick.stdout != own.stdout


ASSOCIATIVE = """
import torch, triton, triton.language as tl
@triton.jit
def less(a, b): return a - b
@triton.jit
def plus(a, b): return a + b
@triton.jit
def run(out, N: tl.constexpr, REVERSE: tl.constexpr, RIGHT: tl.constexpr):
    k = tl.arange(0, N)
    x = (k + 1).to(tl.float64)
    tl.store(out + k, tl.associative_scan(x, 0, plus if RIGHT else less, reverse=REVERSE))
found = []
for right in (True, False):
    for reverse in (False, True):
        out = torch.zeros(8, dtype=torch.float64)
        run[(1,)](out, 8, reverse, right)
        found.append(out.tolist())
print(found)
"""


def test_a_combination_that_is_not_associative_shows():
    "A GPU combines neighbours first: what would be right one by one only must not pass."
    forward, backward, wrong, _ = json.loads(interpret(ASSOCIATIVE).stdout)
    assert forward == [1, 3, 6, 10, 15, 21, 28, 36] and backward == [36, 35, 33, 30, 26, 21, 15, 8]
    assert wrong != [1, -1, -4, -8, -13, -19, -26, -34]


def test_a_program_that_fails_says_why():
    run = interpret("print('before', flush=True)\nassert 1 + 1 == 3, 'no sum'")
    assert run.returncode and run.stdout == "before\n" and "no sum" in run.stderr
