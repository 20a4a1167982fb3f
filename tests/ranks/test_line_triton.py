"""The Triton kernels of the line's marks without a GPU, through Triton's interpreter, against the plain form; test_rehearsal.py compiles them."""
import pytest
from interpreted import interpret

triton = pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")
pytestmark = pytest.mark.skipif(triton.__version__.startswith("3.9."), reason="the interpreter of Triton 3.9 spreads a truth value over a block as int32, which no mask takes")

INTERPRETED = """
import torch
from torch.testing import assert_close
from softsortlib import LapSum
from softsortlib.ranks.laplace import lapsum_topk
from softsortlib.engine import dispatch
from softsortlib.ranks.line import marks_torch
from softsortlib.ranks.line_triton import marks_triton
rng = torch.Generator().manual_seed(0)
for n, l, first in ((1, 1, 0), (7, 9, -1), (130, 129, 1)):       # levels outside the list, and more than a block of 128
    for tau in (1e-3, 0.3, 50.0):                                                                     # voids, and all in reach of all
        s = torch.randn(2, 3, n, generator=rng, dtype=torch.float64)
        s[0, 0, : n // 2] = 0.25                                                                      # ties
        s[1, 2] *= 1000
        real = torch.tensor([[n, max(0, n - 2), n], [n // 2, n, n]])[..., None]
        given = s, torch.full((2, 3, 1), tau, dtype=torch.float64), torch.full((2, 3, 1), first), torch.sort(s, dim=-1, stable=True).indices, real
        for ours, theirs in zip(marks_triton(*given, l), marks_torch(*given, l)): assert_close(ours, theirs, rtol=1e-12, atol=1e-13)

def results(s, x, tau):
    P = LapSum(tau)(s)
    out = P @ x, P.log_prob(P.hard()), lapsum_topk(s, 3, tau=0.5)
    return [*out, *torch.autograd.grad([o.square().sum() for o in out], (s, x, tau))]

s, x, tau = (torch.randn(*shape, generator=rng, dtype=torch.float64).requires_grad_() for shape in ((1, 9), (1, 9, 1), (1, 1)))
tau = tau.detach()[:, 0].abs().requires_grad_()
plain = results(s, x, tau)
dispatch.HOME["cpu"] = "triton"
for ours, theirs in zip(results(s, x, tau), plain): assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
print("fine")
"""


def test_interpreter_agrees_with_the_plain_form():
    run = interpret(INTERPRETED)
    assert run.returncode == 0 and run.stdout.strip() == "fine", run.stderr[-3000:]
