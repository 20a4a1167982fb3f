"""LapSum and the soft top k as a GPU computes them, in Triton's interpreter: the twins of the line over the kernels of the scan, against the CPU's own kernels."""
import pytest
from interpreted import interpret

triton = pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")

BEGIN = """
import torch
from torch.testing import assert_close
import softsortlib.engine.dispatch as dispatch
import softsortlib.engine.scan_triton as scan
from softsortlib import LapSum
from softsortlib.ranks import lapsum_topk
rng = torch.Generator().manual_seed(0)
launched = []
start = scan.launch
def launch(*args, **arguments): launched.append(args[0]); start(*args, **arguments)
scan.launch = launch
scan.cut = lambda n, d, most=None: (8, 2 if d > 1 else 1, -(-n // 8))                  # chunks of 8
def randn(*shape): return torch.randn(*shape, generator=rng, dtype=torch.float64)
def answers(s, x, target, k, tau, mask, op):
    P = op(tau)(s, mask)
    return P @ x, P.mT @ x, P.log_prob(target), P.to_dense(), lapsum_topk(s, k, tau, mask=mask)
def run(home, s, x, k, tau, mask=None, op=LapSum, times=1):
    dispatch.HOME["cpu"] = home
    leaves = [a.detach().requires_grad_() for a in (s, x, k, tau)]
    kept = torch.ones(s.shape, dtype=torch.bool) if mask is None else mask
    target = s.detach().masked_fill(~kept, torch.inf).argsort(-1)
    found = []
    for y in answers(leaves[0], leaves[1], target, leaves[2], leaves[3], mask, op):
        w = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).sin().view(y.shape).to(y.dtype)
        y = torch.where(y.isinf(), 0, y)
        more = dict(allow_unused=True, materialize_grads=True)
        grads = torch.autograd.grad((y * w).sum(), leaves, create_graph=times > 1, retain_graph=True, **more)
        found += [y, *grads]
        if times > 1: found += torch.autograd.grad(sum((g * g.detach().cos()).sum() for g in grads), leaves, retain_graph=True, **more)
    return found
def agree(*args, rtol=1e-9, atol=1e-10, **kwargs):
    found = run("triton", *args, **kwargs)
    for k, (fast, plain) in enumerate(zip(found, run("numba", *args, **kwargs))):
        assert fast.dtype == plain.dtype and fast.shape == plain.shape
        assert_close(fast, plain, rtol=rtol, atol=atol * max(1.0, plain.nan_to_num().abs().max().item()), equal_nan=True, msg=lambda m: f"{k}: {m}")
"""

EDGES = BEGIN + """
for n, d in ((2, 1), (9, 3), (17, 1)):                                               # around a chunk and its columns
    s, x = randn(2, n), randn(2, n, d)
    if n > 9: s[1, : n // 3] = s[1, -1]                                              # a third is tied
    mask = torch.rand(2, n, generator=rng) < torch.tensor([[2], [0.7]])              # the first row is whole
    mask[:, 0] = True
    agree(s, x, torch.tensor([0.7, 1.0]).double(), torch.tensor([2e-3, 1e3] if d > 1 else [0.5, 2.0]).double(), mask)
assert len({id(kernel) for kernel in launched}) > 1                                   # the scan's own, for rows of one chunk and of several
"""

FORMS = BEGIN + """
s, x, k, tau = randn(2, 9), randn(2, 9, 2), torch.tensor([3.0, 2.5]).double(), torch.tensor([0.5, 2.0]).double()
agree(s[:, :4], x[:, :4, :1], k[:] - 1, tau, times=2)                                # second derivatives
agree(torch.cat([s[:, :6], s[:, 6:] + 1e4], 1), x, k, tau)                           # a gap of thousands of temperatures
agree(randn(9, 2).T, randn(9, 2, 2).transpose(0, 1), k, tau, torch.arange(9) < torch.tensor([[9], [0]]), op=lambda tau: LapSum(tau, descending=True))
agree(s.float(), x.float(), k.float(), tau.float(), rtol=2e-5, atol=2e-5)
lost = s.clone(); lost[0, 4] = torch.nan                                             # it spoils its set alone
found = run("triton", lost, x, k, tau)
assert found[0][0].isnan().any() and not any(a[1].isnan().any() for a in found)
"""


@pytest.mark.parametrize("program", [EDGES, FORMS], ids=["edges", "forms"])
def test_the_line_through_the_interpreter(program):
    run = interpret(program)
    assert run.returncode == 0, run.stderr[-3000:]
