"The Triton kernels of the sorting networks in the interpreter against the plain form; test_rehearsal.py compiles them."
import pytest
from interpreted import interpret

pytest.importorskip("triton", reason="triton is not installed")

INTERPRETED = """
import torch
from torch.testing import assert_close
from softsortlib.networks.comparators import sorting_network
from softsortlib.networks.layers import planned
from softsortlib.networks.layers_triton import triton_differences, triton_differences_backward, triton_layers, triton_layers_backward
from softsortlib.networks.swaps import apply_layers, lane_differences, sigmoid_argument
import softsortlib.networks.layers_triton as nt
rng = torch.Generator().manual_seed(0)

for kind, n in (("bitonic", 5), ("odd_even", 6), ("bitonic", 70)):          # 35 comparators a layer, of which a tile of 32 columns takes 32
    net, size = sorting_network(kind, n), torch.tensor([n, n - 2])
    active = net.need < size[:, None]
    v = torch.randn(2, len(net.lo), generator=rng, dtype=torch.float64, requires_grad=True)
    for d, reverse, sigmoid in ((None, False, "cauchy"), (1, False, "gaussian"), (3, True, "optimal"), (33, False, "cauchy")):
        x = None if d is None else torch.randn(2, n, d, generator=rng, dtype=torch.float64, requires_grad=True)
        full = torch.eye(n, dtype=torch.float64).expand(2, n, n) if x is None else x
        exact = apply_layers(v, full, net, sigmoid, active, reverse)
        given = None if x is None else x.detach()
        assert_close(triton_layers(v.detach(), given, size, n, kind, sigmoid, reverse), exact.detach(), rtol=1e-12, atol=1e-12)
        g = torch.randn(exact.shape, generator=rng, dtype=torch.float64)
        grads = torch.autograd.grad((g * exact).sum(), (v,) if x is None else (v, x))
        gv, gx = triton_layers_backward(g, v.detach(), given, size, kind, sigmoid, reverse)
        assert_close(gv, grads[0], rtol=1e-10, atol=1e-12)
        if x is not None: assert_close(gx, grads[1], rtol=1e-11, atol=1e-12)

plan = nt.make_plan                               # segments: as if the cache were small
nt.make_plan = lambda *a: planned(plan(*a).reach[..., :2], a[2], 3)
net = sorting_network("bitonic", 24)
v = torch.randn(1, len(net.lo), generator=rng, dtype=torch.float64, requires_grad=True)
P = apply_layers(v, torch.eye(24, dtype=torch.float64)[None], net)
g = torch.randn(P.shape, generator=rng, dtype=torch.float64)
gv, _ = triton_layers_backward(g, v.detach(), None, torch.tensor([24]), "bitonic", "cauchy")
assert_close(gv, torch.autograd.grad((g * P).sum(), v)[0], rtol=1e-10, atol=1e-12)

for kind, n in (("bitonic", 6), ("odd_even", 5)):
    net, size = sorting_network(kind, n), torch.tensor([n, n - 2])
    active = net.need < size[:, None]
    s, tau, lam = torch.randn(2, n, generator=rng).requires_grad_(), torch.tensor([0.3, 1.0]).requires_grad_(), torch.tensor([0.25, 0.4]).requires_grad_()
    for sigmoid in ("logistic", "cauchy", "reciprocal", "optimal"):
        for trick in (False, True):
            exact = lane_differences(s, net, sigmoid, tau[:, None], lam[:, None] if trick else None, active)
            a = [z.detach() for z in (s, tau, lam)]
            d, v = triton_differences(*a, size, kind, sigmoid, trick)
            assert_close(v, sigmoid_argument(d, a[1][:, None], a[2][:, None] if trick else None), rtol=1e-5, atol=1e-6)
            assert_close(d, exact.detach(), rtol=1e-4, atol=1e-5)
            g = torch.randn(d.shape, generator=rng)
            grads = torch.autograd.grad((g * exact).sum(), (s, tau, lam) if trick else (s, tau))
            for fast, slow in zip(triton_differences_backward(g, d, *a, size, kind, sigmoid, trick), grads): assert_close(fast, slow, rtol=1e-3, atol=1e-4)
print("fine")
"""

OPERATOR = """
import itertools, torch
from torch.testing import assert_close
import softsortlib.engine.dispatch as dispatch
from softsortlib import SortingNetwork
dispatch.HOME["cpu"] = "triton"                    # the way of a GPU, with the interpreter
rng = torch.Generator().manual_seed(1)

def both(make, *inputs):
    "Values and gradients by the kernels and in plain torch, in double precision."
    out = []
    for backend, dtype in ((None, None), ("torch", torch.float64)):
        a = [z.detach().to(dtype or z.dtype).requires_grad_() for z in inputs]
        y = make(backend, *a)
        weight = torch.linspace(-1, 1, y.numel()).view(y.shape)
        out.append((y.double(), *(g.double() for g in torch.autograd.grad((weight.to(y) * y).sum(), a))))
    return out

for (n, d), kind, sigmoid in (*itertools.product(((7, 1), (5, 33)), ("bitonic", "odd_even"), ("cauchy",)), ((33, 2), "bitonic", "cauchy"),
                              *(((5, 2), "bitonic", name) for name in ("logistic", "reciprocal_phi", "gaussian", "optimal"))):
    s = torch.randn(2, n, generator=rng)
    s[0, 3] = s[0, 1]                                                                          # a tie
    x, tau = torch.randn(2, n, d, generator=rng), torch.tensor([0.3, 1.0])
    mask = torch.arange(n) != 2
    for what in ("product", "transposed", "masked", "log"):
        if what != "product" and (n > 7 or sigmoid != "cauchy"): continue
        def f(backend, s, x, tau):
            P = SortingNetwork(kind, sigmoid, tau=tau, backend=backend)(s, mask.expand(2, n) if what == "masked" else None)
            return P.mT @ x if what == "transposed" else P.log_prob(s.argsort(-1)).sum() * x.sum() if what == "log" else P @ x
        for fast, exact in zip(*both(f, s, x, tau)): assert_close(fast, exact, rtol=2e-4, atol=2e-4)

s = torch.tensor([[0.5, float("nan"), 1.0, 2.0], [3.0, 1.0, 2.0, 0.0]])                        # a score that is no number spoils its own set only
y = SortingNetwork()(s) @ s.nan_to_num()
assert y[0].isnan().any() and not y[1].isnan().any() and torch.equal(y.isnan(), (SortingNetwork(backend="torch")(s) @ s.nan_to_num()).isnan())
far = torch.tensor([0.0, 1e30, -1e30], requires_grad=True)                                     # arguments beyond single precision are cut
values = [SortingNetwork("bitonic", "logistic", tau=tau, backend=b)(far) @ torch.arange(3.0) for tau in (1e-20,) for b in (None, "torch")]
assert_close(*values); assert torch.autograd.grad(values[0].sum(), far)[0].isfinite().all()
s = torch.randn(4, generator=rng, dtype=torch.float64, requires_grad=True)                     # a gradient of a gradient takes the plain form
torch.autograd.gradgradcheck(lambda s: SortingNetwork(tau=0.5)(s) @ s, s)
print("fine")
"""


@pytest.mark.parametrize("program", (INTERPRETED, OPERATOR), ids=("kernels", "operator"))
def test_interpreter_agrees_with_the_plain_form(program):
    done = interpret(program)
    assert done.returncode == 0 and done.stdout.strip() == "fine", done.stderr[-3000:]
