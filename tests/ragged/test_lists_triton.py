"""Lists on a GPU, in Triton's interpreter: the formulas read aloud over the kernels of scans and of pairs, against blocks and each list alone."""
import pytest
from interpreted import interpret

triton = pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")

BEGIN = """
import torch
from functools import partial
from torch.testing import assert_close
import softsortlib.engine.dispatch as dispatch
import softsortlib.engine.level_sums as levels
import softsortlib.engine.scan_triton as scan
import softsortlib.engine.sums_triton as pairs
from softsortlib.functional import soft_rank, soft_sort
from softsortlib.losses import approx_ndcg_loss, listmle_loss, listnet_loss
from softsortlib.ragged import offsets_of
def cut(n, d, most=None): return 8, 2 if d > 1 else 1, -(-n // 8)
scan.cut = cut
rng = torch.Generator().manual_seed(0)
def randn(*shape): return torch.randn(*shape, generator=rng, dtype=torch.float64)
CALLS = dict(sort=soft_sort, rank=soft_rank, laplace=partial(soft_rank, method="laplace"), sigmoid=partial(soft_rank, method="sigmoid"))
LAUNCHED = []
launch = scan.launch
def note(kernel, programs, on, **arguments): LAUNCHED.append(kernel.__name__); launch(kernel, programs, on, **arguments)
scan.launch = pairs.launch = note
def run(home, f, s, offsets, w, tau=0.3, **more):
    dispatch.HOME["cpu"] = home
    leaves = [a.detach().clone().requires_grad_() for a in (s, tau) if isinstance(a, torch.Tensor)]
    y = f(leaves[0], tau=leaves[1] if len(leaves) > 1 else tau, offsets=offsets, **more)
    return y, *torch.autograd.grad((y * w).sum(), leaves)
def agree(name, s, lengths, tau=0.3, rtol=1e-12, reference="torch", **more):
    offsets, w = offsets_of(lengths), randn(s.shape).to(s.dtype)
    LAUNCHED.clear()
    fast = run("triton", CALLS[name], s, offsets, w, tau, **more)
    assert len(LAUNCHED) >= 2, LAUNCHED
    exact = s.double() if reference == "torch" else s
    plain = run(reference, CALLS[name], exact, offsets, w.double(), tau, **more)
    for i, (a, b) in enumerate(zip(fast, plain)):
        assert a.dtype == (s.dtype if i < 2 else tau.dtype)
        scale = b.abs().max().clamp(min=1) if i else b.abs().clamp(min=1)
        assert_close(a.double() / scale, b.double() / scale, rtol=0, atol=rtol if not i else 10 * rtol, msg=lambda m: f"{name} {lengths} {more} {i}: {m}")
"""

EDGES = BEGIN + """
for lengths in ([1], [8], [9], [0, 8, 0, 8], [3, 0, 1, 13, 1, 0]):
    n = sum(lengths)
    for name in CALLS:
        agree(name, randn(n).mul(4).round().div(4), lengths)                         # ties
s = randn(2, 18)
s[1] = 0                                                                             # all tied
for name in CALLS:
    agree(name, s, [18], tau=1e-3, rtol=1e-11, descending=True)                      # three chunks of one list
    agree(name, s * 1e5, [3, 0, 1, 10, 4], tau=torch.tensor([1e5, 1.0, 1e-2, 3e4, 1e7]).double())
"""

MORE = BEGIN + """
lengths = [3, 0, 1, 10, 3, 1, 0, 2]
offsets, s = offsets_of(lengths), randn(20).mul(4).round().div(4)
for name in CALLS:
    agree(name, s.float(), lengths, rtol=1e-6)
    agree(name, s, lengths, tau=torch.tensor(0.4).double())                          # learned, and one for each list
    agree(name, s, lengths, tau=torch.rand(8, generator=rng, dtype=torch.float64) + 0.2, rtol=1e-11)
    agree(name, randn(20, 2).mT, lengths)                                            # not contiguous
    f, broken = CALLS[name], s.clone()
    broken[5] = torch.nan
    y, g = run("triton", f, broken, offsets, torch.ones(20).double())
    rest = torch.arange(20).lt(4) | torch.arange(20).ge(14)
    assert torch.equal(y.isnan(), ~rest) and torch.equal(g.isnan(), ~rest), (name, y, g)           # of its list, and of no other
    other = s.clone(); other[4:14] = randn(10)
    a, b = run("triton", f, other, offsets, torch.ones(20).double()), run("triton", f, s, offsets, torch.ones(20).double())
    for u, v in zip(a, b): assert_close(u[rest], v[rest], rtol=1e-13, atol=1e-13)                  # lists do not hear each other
    w = torch.where(rest, 1.0, torch.nan)
    assert torch.equal(run("triton", f, s, offsets, w)[1].isfinite(), rest)                        # nor a gradient that is no number
    for half in (torch.float16, torch.bfloat16):
        assert run("triton", f, s[:4].to(half), offsets[:4], torch.ones(4).to(half))[0].dtype == half   # by blocks, as on a CPU
dispatch.HOME["cpu"] = "triton"
z, few, tau = randn(5).requires_grad_(), torch.tensor([0, 2, 2, 5]), torch.tensor([0.4, 1.0, 0.7]).double().requires_grad_()
for name in CALLS:
    def small(z, tau): return CALLS[name](z, tau=tau, offsets=few)
    assert torch.autograd.gradgradcheck(small, (z, tau)), name
"""

LOSSES = BEGIN + """
import softsortlib.losses
offsets = offsets_of([3, 0, 1, 20, 3, 1, 0, 2])
s, y = randn(2, 30), torch.randint(0, 4, (2, 30), generator=rng).double()
y[0, 4] = 150.0                                                                      # beyond 2^100
y[:, 24:27] = 0                                                                      # a list that does not count
for loss in (approx_ndcg_loss, listnet_loss, listmle_loss):
    for options in (dict(), dict(method="softsort"), dict(gain="linear")):
        if options and loss is not approx_ndcg_loss: continue
        found = []
        for home in ("triton", "torch"):
            dispatch.HOME["cpu"] = home
            z = s.clone().requires_grad_()
            value = loss(z, y, offsets=offsets, reduction="none", **options)
            found.append((value, torch.autograd.grad(value.sum(), z)[0]))
        for a, b in zip(*found): assert_close(a, b, rtol=1e-11, atol=1e-12)
        cuts = offsets.tolist()
        alone = [loss(s[:, a:b], y[:, a:b], reduction="none", **options) if b > a else torch.zeros(2).double() for a, b in zip(cuts, cuts[1:])]
        assert_close(found[0][0], torch.stack(alone, -1), rtol=1e-11, atol=1e-12)
jagged = torch.nested.nested_tensor_from_jagged(s[0], offsets)
dispatch.HOME["cpu"] = "triton"
LAUNCHED.clear()
assert_close(soft_rank(jagged, tau=0.3).values(), soft_rank(s[0], tau=0.3, offsets=offsets))
assert len(LAUNCHED) >= 2
# lists of more pairs than the tiles may take go through boxes
levels.MOST_PAIRS = 400
values = run("triton", CALLS["sigmoid"], s, offsets, torch.ones(2, 30).double())
levels.MOST_PAIRS = 1 << 35
for a, b in zip(values, run("triton", CALLS["sigmoid"], s, offsets, torch.ones(2, 30).double())): assert_close(a, b, rtol=1e-11, atol=1e-11)
"""


@pytest.mark.parametrize("program", [EDGES, MORE, LOSSES], ids=["edges", "more", "losses"])
def test_kernels_through_the_interpreter(program):
    run = interpret(program)
    assert run.returncode == 0, run.stderr[-3000:]
