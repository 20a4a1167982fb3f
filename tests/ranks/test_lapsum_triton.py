"""LapSum's kernels for a GPU in Triton's interpreter, against the plain torch beside them; test_rehearsal.py compiles them."""
import os
import subprocess
import sys

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")

BEGIN = """
import torch
from torch.testing import assert_close
import softsortlib.engine.dispatch as dispatch
from softsortlib import LapSum
rng = torch.Generator().manual_seed(0)
def randn(*shape): return torch.randn(*shape, generator=rng, dtype=torch.float64)
def run(home, s, x, w, mask, tau, op=LapSum):
    dispatch.HOME["cpu"] = home
    leaves = [a.detach().requires_grad_() for a in (s, x, tau)]
    P = op(leaves[2])(leaves[0], mask)
    out = P @ leaves[1], P.mT @ leaves[1]
    return *out, *torch.autograd.grad(sum((a * w).sum() for a in out), leaves, allow_unused=True, materialize_grads=True)
def agree(*args, rtol=1e-11, atol=1e-11, **kwargs):
    found = run("triton", *args, **kwargs)
    for k, (fast, plain) in enumerate(zip(found, run("torch", *args, **kwargs))):
        if k == len(found) - 1: rtol = max(rtol, 1e-8)                               # that to tau cancels where tau is small
        assert fast.dtype == plain.dtype
        assert_close(fast, plain, rtol=rtol, atol=atol * max(1.0, plain.abs().max().item()))
"""

EDGES = BEGIN + """
import softsortlib.ranks.lapsum_triton as k
k.BLOCK = 32                                                                         # chunks of 12 scores, parts of 30 places
for n, d in ((1, 1), (12, 1), (13, 1), (9, 9)):                                      # around a chunk and a part of the line
    s, x, w = randn(2, n), randn(2, n, d), randn(2, n, d)
    if n > 9: s[1, : n // 3] = s[1, -1]                                              # a third is tied
    mask = torch.rand(2, n, generator=rng) < torch.tensor([[2], [0.7]])              # the first row is whole
    agree(s, x, w, mask, torch.tensor([1e-3, 1e5]).double())
s, x, w = randn(2, 12), randn(2, 12, 2), randn(2, 12, 2)
tau = torch.tensor([0.5, 2.0]).double()
none = torch.arange(12) < torch.tensor([[12], [0]])                                  # a set of nothing
agree(s, x, w, none, tau)
agree(torch.zeros_like(s), x + 1e6, w, None, tau, atol=1e-7)                         # all tied, a payload far from zero
strided = randn(12, 2, 2)
agree(randn(12, 2).T, strided.transpose(0, 1), w, None, tau)
agree(s, x, w, None, tau, op=lambda tau: LapSum(tau, descending=True))
agree(s.expand(3, 2, 12), randn(3, 2, 12, 1), randn(3, 2, 12, 1), None, tau)         # a wider payload
"""

LONG = """
import softsortlib.ranks.lapsum_rows_triton as rows
rows.LONGEST = 0                                                                     # no set is short
"""

SHORT = BEGIN + """
from softsortlib.ranks import lapsum_rows_triton as rows
taken = []
launch = rows.launch
def note(kernel, programs, on, **arguments): taken.append((programs, arguments["n"], arguments["d"])); launch(kernel, programs, on, **arguments)
rows.launch = note
for n, d in ((1, 1), (2, 8), (9, 9), (64, 1), (65, 3), (1024, 1)):                    # around a block and the columns of a program
    s, x, w = randn(2, n), randn(2, n, d), randn(2, n, d)
    if n > 9: s[1, : n // 3] = s[1, -1]                                              # a third is tied
    mask = torch.rand(2, n, generator=rng) < torch.tensor([[2], [0.7]])
    mask[0, 0] = True
    agree(s, x, w, mask, torch.tensor([1e-3, 1e5]).double())
    assert n == 1 or (2 * (1 + d // 9), n, d) in taken                               # a single score needs no kernel
found = len(taken)
agree(randn(1, 1025), randn(1, 1025, 1), randn(1, 1025, 1), None, torch.tensor([0.1]).double())
assert len(taken) == found                                                           # too long for one program
s, x, w, tau = randn(2, 12), randn(2, 12, 2), randn(2, 12, 2), torch.tensor([0.5, 2.0]).double()
agree(s, x, w, torch.arange(12) < torch.tensor([[12], [0]]), tau)                    # a set of nothing
agree(torch.zeros_like(s), x + 1e6, w, None, tau, atol=1e-7)                         # all tied, a payload far from zero
agree(torch.cat([s[:, :6], s[:, 6:] + 1e4], 1), x, w, None, tau)                     # a gap of thousands of temperatures
agree(randn(12, 2).T, randn(12, 2, 2).transpose(0, 1), w, None, tau)
agree(s.expand(3, 2, 12), randn(3, 2, 12, 1), randn(3, 2, 12, 1), None, tau)         # a wider payload
lost = s.clone(); lost[0, 4] = torch.nan                                             # it spoils its set alone
for a in run("triton", lost, x, w, None, tau): assert not a[1].isnan().any()
assert run("triton", lost, x, w, None, tau)[0][0].isnan().any()
"""

TYPES = BEGIN + """
s, x, w = randn(2, 20), randn(2, 20, 2), randn(2, 20, 2)
tau = torch.tensor([0.5, 2.0]).double()
agree(s.float(), x.float(), w.float(), None, tau.float(), rtol=2e-6, atol=2e-6)
for half in (torch.float16, torch.bfloat16):
    dispatch.HOME["cpu"] = "triton"; fast = LapSum(0.5)(s) @ x.to(half)
    dispatch.HOME["cpu"] = "torch"; plain = LapSum(0.5)(s) @ x.to(half)
    assert fast.dtype == plain.dtype; assert_close(fast, plain, rtol=2e-2, atol=2e-2)
x[0, 3, 1] = torch.nan                                                               # one column, one set
dispatch.HOME["cpu"] = "triton"
y, back = LapSum(0.5)(s) @ x, LapSum(0.5)(s).mT @ x
assert y[0, :, 1].isnan().any() and not y[0, :, 0].isnan().any() and not y[1].isnan().any() and not back[1].isnan().any()
z = s[:1, :9].clone().requires_grad_()
def f(z, home): dispatch.HOME["cpu"] = home; return (LapSum(0.5)(z) @ w[:1, :9]).square().sum()
grads = []
for home in ("triton", "torch"):                                                     # twice, through plain torch
    g = torch.autograd.grad(f(z, home), z, create_graph=True)[0]; grads.append(torch.autograd.grad(g.square().sum(), z)[0])
assert_close(*grads)
"""

PLACES = BEGIN + """
from softsortlib.ranks import lapsum_triton as k
k.BLOCK = 16                                                                         # chunks of 6 scores, parts of 14 places
noted = {}
launch = k.launch
def note(kernel, programs, on, **arguments): launch(kernel, programs, on, **arguments); noted.update(arguments)
k.launch = note
for n in (2, 9, 70):                                                                 # Prop 45.1
    s = randn(2, n)
    order, real, tau = s.argsort(-1), torch.tensor([[n], [n - 1]]), torch.tensor([[0.3], [500.0]]).double()
    k.lapsum_product_triton(s, tau, randn(2, n, 1), order, real)
    for b, m in enumerate(real[:, 0].tolist()):
        t = s[b, order[b, :m]]
        K = (-(t - t[:, None]).abs() / tau[b]).exp()
        M = torch.arange(1, m + 1) - K.tril().sum(-1) / 2 + K.triu(1).sum(-1) / 2
        a = (M <= torch.arange(1, m)[:, None]).sum(-1)                               # (45.1)
        c = (a <= torch.arange(m)[:, None]).sum(-1)
        assert torch.equal(c, (M[:, None] > torch.arange(1, m)).sum(-1))             # (45.4)
        places, scores = torch.arange(m - 1) + a, torch.arange(m) + c
        assert torch.equal(torch.cat([places, scores]).sort()[0], torch.arange(2 * m - 1))
        assert ((places[:, None] > scores).sum(-1) == a).all()
        before, parts, level = (noted[name][b] for name in ("before_ptr", "parts_ptr", "level_ptr"))
        first = 6 * torch.arange(1, len(before) - 1)                                 # score of each chunk but one
        assert torch.equal(before[1:-1].long(), torch.cat([c, c.new_full((n,), m - 1)])[first - 1].where(first < m, m - 1))
        length = (torch.arange(0, n + 6, 6).clamp(max=m).diff()[: len(before) - 1] + before.diff()).clamp(min=1)
        assert before[0] == 0 and before[-1] == m - 1 and torch.equal(parts.diff().long(), -(-length // 14).long())
        assert parts[-1] <= noted["parts"] and (level.diff() >= 0).all() and (level[parts[-1]:] == m - 1).all()
for n in (1, 192, 193, 5000): assert 2 * n - 1 <= k._sizes(n)[1]["parts"] * k._sizes(n)[1]["PLACES"]
"""

WAVER = BEGIN + """
import softsortlib.ranks.lapsum_rows_triton as rows
from softsortlib.ranks import lapsum_triton as k
rows.LONGEST, k.BLOCK = 0, 16
s, x, w = randn(2, 20), randn(2, 20, 1), randn(2, 20, 1)
for scores in (torch.zeros(2, 20).double(), s * 1e-15, torch.cat([-s[:, :10].abs(), s[:, :10].abs()], -1)):
    agree(scores, x, w, None, torch.tensor([0.5, 2.0]).double(), rtol=1e-9, atol=1e-9)                                # the mass is a whole number at many scores
agree(s.cumsum(-1) ** 3, x, w, None, torch.tensor([1e-6, 1e3]).double(), rtol=1e-9, atol=1e-9)                        # gaps of all sizes
agree(torch.cat([s[:, :10], s[:, 10:] + 1e4], -1), x, w, None, torch.tensor([1e-2, 1.0]).double(), rtol=1e-9, atol=1e-9)
lost = s.clone(); lost[0, 4] = torch.nan                                             # it spoils its set alone
for a in run("triton", lost, x, w, None, torch.tensor([0.5, 2.0]).double()): assert not a[1].isnan().any()
assert run("triton", lost, x, w, None, torch.tensor([0.5, 2.0]).double())[0][0].isnan().any()
"""

ENTRIES = BEGIN + """
import softsortlib.ranks.lapsum_entries_triton as k
import softsortlib.ranks.lapsum_matrix_triton as matrix
import softsortlib.ranks.lapsum_triton as line
line.BLOCK = 16                                                                      # chunks of 6 scores, parts of 14 places
k._blocks = lambda n: (16, -(-n // 16))                                              # a block of 16, tiles of 4 by 8
matrix._blocks = k._blocks
matrix._tiles = lambda n, r: (4, 8, -(-r // 4), -(-n // 8))
matrix._TURNS = 2
unused = dict(allow_unused=True, materialize_grads=True)
def entries(home, s, tau, target, G, mask=None, rows=None, op=LapSum):
    dispatch.HOME["cpu"] = home
    leaves = [a.detach().requires_grad_() for a in (s, tau)]
    P = op(leaves[1])(leaves[0], mask)
    if rows is not None: P, target, G = P[..., rows, :], target[..., rows], G[..., rows, :]
    out = P.log_prob(target), P.to_dense()
    some = torch.autograd.grad((out[0] * G[..., 0]).sum(), leaves, retain_graph=True, **unused), torch.autograd.grad((out[1] * G).sum(), leaves, **unused)
    return *out, *some[0], *some[1]
def same(s, *args, rtol=1e-9, atol=1e-9, **kwargs):
    for fast, plain in zip(entries("triton", s, *args, **kwargs), entries("torch", s, *args, **kwargs)):
        assert fast.dtype == plain.dtype and fast.shape == plain.shape
        assert_close(fast, plain, rtol=rtol, atol=atol * max(1.0, plain.abs().max().item()))
def targets(mask, n): return torch.rand(2, n, generator=rng).masked_fill(~mask, 2).argsort(-1)
for n in (1, 6, 17, 40):                                                             # around a chunk, a block and a tile
    s, G = randn(2, n), randn(2, n, n)
    if n > 9: s[1, : n // 3] = s[1, -1]                                              # a third is tied
    mask = torch.rand(2, n, generator=rng) < torch.tensor([[2], [0.7]])
    mask[:, 0] = True
    for tau in ([0.3, 1e3], [2e-3, 1.0]): same(s, torch.tensor(tau).double(), targets(mask, n), G, mask, rtol=1e-7)
s, G, tau, whole = randn(2, 12), randn(2, 12, 12), torch.tensor([0.5, 2.0]).double(), torch.ones(2, 12, dtype=torch.bool)
twice = torch.randint(0, 12, (2, 12), generator=rng)                                 # a column for several rows
same(s, tau, twice, G)
same(s, tau, twice, G, rows=torch.tensor([3, 0, 11, 3]))                             # some rows, one of them twice
same(randn(12, 2).T, tau, twice, G.mT, op=lambda tau: LapSum(tau, descending=True))
same(torch.zeros_like(s), tau, twice, G)                                             # all tied
same(torch.cat([s[:, :6], s[:, 6:] + 1e4], 1), torch.tensor([0.5, 2.0]).double(), whole.cumsum(-1) - 1, G)      # a gap of ten thousand temperatures: entries far below the least number
same(s, torch.tensor(0.5).double(), twice, G)
for scores in (s * 1e-15, torch.cat([-s[:, :6].abs(), s[:, :6].abs()], -1)): same(scores, tau, twice, G, rtol=1e-6)       # the mass is a whole number at many scores
same(s.cumsum(-1) ** 3, torch.tensor([1e-3, 1e3]).double(), whole.cumsum(-1) - 1, G, rtol=1e-6)                        # gaps of all sizes
same(s.float(), tau.float(), twice, G.float(), rtol=1e-4, atol=1e-5)
none = torch.arange(12) < torch.tensor([[12], [0]])                                  # a set of nothing
same(s, tau, twice * 0, G, none)
for half in (torch.float16, torch.bfloat16): same(s.to(half), tau, twice, G.to(half), rtol=2e-2, atol=2e-2)
lost = s.clone(); lost[0, 4] = torch.nan                                             # it spoils its set alone
found, plain = (entries(home, lost, tau, twice, G) for home in ("triton", "torch"))
for a, b in zip(found, plain): assert (a.isnan() == b.isnan())[1].all() and not a[1].isnan().any()
for a, b in zip(found[:2], plain[:2]): assert_close(a, b, equal_nan=True)
assert found[2][0].isnan().all() and found[4][0].isnan().all()
grads = []
for home in ("triton", "torch"):                                                     # twice, through plain torch
    dispatch.HOME["cpu"] = home
    z, t = s[:, :7].clone().requires_grad_(), tau.clone().requires_grad_()
    P = LapSum(t)(z)
    g = torch.autograd.grad(P.log_prob(twice[:, :7] % 7).square().sum() + (P.to_dense() * G[:, :7, :7]).square().sum(), (z, t), create_graph=True)
    grads.append(torch.autograd.grad(sum(a.square().sum() for a in g), (z, t)))
assert_close(*grads, rtol=1e-7, atol=1e-9)
dispatch.HOME["cpu"] = "triton"
mapped = torch.func.vmap(lambda z: LapSum(0.5)(z).log_prob(twice[0]))(s)
assert_close(mapped, LapSum(0.5)(s).log_prob(twice[:1].expand(2, -1)))
"""

TOPK = BEGIN + """
import softsortlib.ranks.lapsum_topk_triton as k
from softsortlib.ranks.laplace import lapsum_topk
k._blocks = lambda n: (16, -(-n // 16))
cut = k.cut
k.cut = lambda n, d: cut(n, d, 16)                                                   # chunks of 16
def weights(home, s, tau, count, g, mask, **more):
    dispatch.HOME["cpu"] = home
    leaves = [a.detach().requires_grad_() for a in (s, tau, count)]
    w = lapsum_topk(leaves[0], leaves[2], leaves[1], mask=mask, **more)
    return w, *torch.autograd.grad((w * g).sum(), leaves)
def same(*args, rtol=1e-8, atol=1e-9, **more):
    for fast, plain in zip(weights("triton", *args, **more), weights("torch", *args, **more)):
        assert fast.dtype == plain.dtype
        assert_close(fast, plain, rtol=rtol, atol=atol)
def double(*numbers): return torch.tensor(numbers).double()
for n in (2, 16, 17, 40):                                                            # around a block
    s, g = randn(2, n), randn(2, n)
    s[1, : n // 2] = s[1, -1]                                                        # half is tied
    for tau in (double(0.1, 2.0), double(0.2, 1e3)):
        for count in (double(1, 1.5), double(0.3, n - 0.5)):
            same(s, tau, count, g, None)
            same(s, tau, count.clamp(max=1.9), g, torch.arange(n) < torch.tensor([[n], [max(2, n - 3)]]))
count, tau = double(3, 2.5), double(0.5, 2.0)
same(s, tau, count, g, None, largest=False)
same(randn(40, 2).T, tau, count, g, None)
same(s.float(), tau.float(), count.float(), g.float(), None, rtol=1e-4, atol=1e-6)
for half in (torch.float16, torch.bfloat16): same(s.to(half), tau, count, g.to(half), None, rtol=2e-2, atol=2e-2)
edge = torch.cat([s[:, :16], s[:, 16:] + 300], 1)                                     # the root in a gap between two chunks, of hundreds of temperatures
for count in (double(24.001, 23.999), double(23.5, 24.5), double(8.5, 24.25)): same(edge, tau, count, g, None)
same(edge, tau, double(14.5, 2), g, torch.arange(40) < torch.tensor([[32], [16]]))   # whole chunks, and no more
many = randn(2, 300).sort()[0]                                                       # more chunks than one reading of their masses
same(many, tau, double(150, 3), randn(2, 300), None)
count = double(3, 2.5)
lost = s.clone(); lost[0, 3] = torch.nan
w = weights("triton", lost, tau, count, g, None)
assert w[0][0].isnan().all() and not w[0][1].isnan().any() and not w[1][1].isnan().any()
few = s[:, :6]
grads = []
for home in ("triton", "torch"):                                                     # twice, through plain torch
    dispatch.HOME["cpu"] = home
    leaves = [a.clone().requires_grad_() for a in (few, tau, count)]
    first = torch.autograd.grad((lapsum_topk(leaves[0], leaves[2], leaves[1]) * g[:, :6]).sum(), leaves, create_graph=True)
    grads.append(torch.autograd.grad(sum(a.square().sum() for a in first), leaves))
assert_close(*grads, rtol=1e-7, atol=1e-9)
"""


@pytest.mark.parametrize("program", [LONG + EDGES, SHORT, LONG + TYPES, TYPES, PLACES, WAVER, LONG + ENTRIES, ENTRIES, TOPK],
                         ids=["edges", "short", "types", "types of short", "places", "waver", "entries", "entries of short", "topk"])
def test_kernels_through_the_interpreter(program):
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
