"The Triton kernels of the sorting networks in the interpreter against the plain form; test_rehearsal.py compiles them."
import os, subprocess, sys

import pytest

pytest.importorskip("triton", reason="triton is not installed")

INTERPRETED = """
import torch
from torch.testing import assert_close
from softsortlib.networks.comparators import sorting_network
from softsortlib.networks.layers_triton import triton_differences, triton_differences_backward, triton_layers, triton_layers_backward
from softsortlib.networks.swaps import SLOPES, apply_layers, lane_differences, swap_sigmoid, swap_weights
import softsortlib.networks.layers_triton as nt
rng = torch.Generator().manual_seed(0)

for kind, n in (("bitonic", 5), ("odd_even", 6), ("bitonic", 40)):
    net, size = sorting_network(kind, n), torch.tensor([n, n - 2])
    active = net.need < size[:, None]
    v = torch.randn(2, len(net.lo), generator=rng, dtype=torch.float64, requires_grad=True)
    keep, swap = torch.where(active, swap_sigmoid(v), 1).detach(), torch.where(active, swap_sigmoid(-v), 0).detach()
    for d, reverse in ((None, False), (3, False), (3, True)):
        x = None if d is None else torch.randn(2, n, d, generator=rng, dtype=torch.float64, requires_grad=True)
        full = torch.eye(n, dtype=torch.float64).expand(2, n, n) if x is None else x
        exact = apply_layers(v, full, net, "cauchy", active, reverse)
        assert_close(triton_layers(keep, swap, None if x is None else x.detach(), n, kind, reverse), exact.detach(), rtol=1e-12, atol=1e-14)
        g = torch.randn(exact.shape, generator=rng, dtype=torch.float64)
        grads = torch.autograd.grad((g * exact).sum(), (v,) if x is None else (v, x))
        sums, gx = triton_layers_backward(g, keep, swap, None if x is None else x.detach(), kind, reverse)
        gkeep = sums.sum(1)
        for sigmoid in ("cauchy", "gaussian", "optimal"):
            for a, b in zip(nt.triton_weights(v.detach(), size, kind, n, sigmoid), swap_weights(v.detach(), sigmoid, active)): assert_close(a, b, rtol=1e-12, atol=1e-12)
            assert_close(nt.triton_slopes(sums, v.detach(), size, kind, n, sigmoid), torch.where(active, gkeep * SLOPES[sigmoid](v.detach()), 0), rtol=1e-10, atol=1e-12)
        slope = torch.func.vjp(swap_sigmoid, v.detach())[1](torch.where(active, gkeep, 0))[0]
        assert_close(slope, grads[0], rtol=1e-10, atol=1e-12)
        if x is not None: assert_close(gx, grads[1], rtol=1e-11, atol=1e-13)

plan = nt.make_plan                               # segments: as if the cache were small
nt.make_plan = lambda *a: plan(*a)._replace(segment=3, room=3 * 12)
net = sorting_network("bitonic", 24)
v = torch.randn(1, len(net.lo), generator=rng, dtype=torch.float64, requires_grad=True)
P = apply_layers(v, torch.eye(24, dtype=torch.float64)[None], net)
g = torch.randn(P.shape, generator=rng, dtype=torch.float64)
gkeep, _ = triton_layers_backward(g, swap_sigmoid(v).detach(), swap_sigmoid(-v).detach(), None, "bitonic")
assert_close(torch.func.vjp(swap_sigmoid, v.detach())[1](gkeep.sum(1))[0], torch.autograd.grad((g * P).sum(), v)[0], rtol=1e-10, atol=1e-12)

for kind, n in (("bitonic", 6), ("odd_even", 5)):
    net, size = sorting_network(kind, n), torch.tensor([n, n - 2])
    active = net.need < size[:, None]
    s, tau, lam = torch.randn(2, n, generator=rng).requires_grad_(), torch.tensor([0.3, 1.0]).requires_grad_(), torch.tensor([0.25, 0.4]).requires_grad_()
    for sigmoid in ("logistic", "cauchy", "reciprocal", "optimal"):
        for trick in (False, True):
            exact = lane_differences(s, net, sigmoid, tau[:, None], lam[:, None] if trick else None, active)
            a = [z.detach() for z in (s, tau, lam)]
            d = triton_differences(*a, size, kind, sigmoid, trick)
            assert_close(d, exact.detach(), rtol=1e-4, atol=1e-5)
            g = torch.randn(d.shape, generator=rng)
            grads = torch.autograd.grad((g * exact).sum(), (s, tau, lam) if trick else (s, tau))
            for fast, slow in zip(triton_differences_backward(g, d, *a, size, kind, sigmoid, trick), grads): assert_close(fast, slow, rtol=1e-3, atol=1e-4)
print("fine")
"""


def test_interpreter_agrees_with_the_plain_form():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", INTERPRETED], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0 and done.stdout.strip() == "fine", done.stderr[-3000:]
