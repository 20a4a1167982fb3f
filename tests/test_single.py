"""Devices without double precision (MPS, some XPU): every operator, function and loss runs on one without making a float64 tensor.

The stand-in is the CPU: the library is told that it has neither kernels nor double precision there, and a mode of torch's dispatcher refuses what makes a float64 tensor.
"""
import contextlib
import sys

import pytest
import torch
from tables import FUNCTIONS, LOSSES, OPERATORS, RANKS
from torch.utils._python_dispatch import TorchDispatchMode

import softsortlib
import softsortlib.engine.dispatch as dispatch

REFUSED = (torch.float64, torch.complex128)


class Refuse(TorchDispatchMode):
    "Raise where an operator of torch makes a tensor in double precision."
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [a for a in torch.utils._pytree.tree_leaves(out) if isinstance(a, torch.Tensor) and a.dtype in REFUSED]
        if made: raise TypeError(f"{func} makes a tensor in double precision, which this device does not have")
        return out


@contextlib.contextmanager
def without_double(monkeypatch):
    "Within it, the CPU has no kernels and no double precision."
    monkeypatch.setitem(dispatch.HOME, "cpu", "torch")
    has_double = dispatch.has_double
    for name, module in list(sys.modules.items()):
        if name.startswith("softsortlib.") and getattr(module, "has_double", None) is has_double: monkeypatch.setattr(module, "has_double", lambda x: False)
    monkeypatch.setattr(dispatch, "has_double", lambda x: False)
    with Refuse(): yield


def draw(*shape): return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


CALLS = {
    **{f"{row.name}, {what}": (lambda s, mask, row=row, f=f: f(row.make(tau=0.5)(s, mask) if mask is not None else row.make(tau=0.5)(s), s)) for row in OPERATORS for what, f in (
        ("P @ x", lambda P, s: P @ s), ("P.mT @ x", lambda P, s: P.mT @ s), ("to_dense", lambda P, s: P.to_dense()), ("hard", lambda P, s: P.hard() * s.sum()), ("log_prob", lambda P, s: P.log_prob(P.hard())))},
    **{row.name: (lambda s, mask, row=row: row.make(tau=0.5)(s, mask)) for row in RANKS},
    **{call.name: (lambda s, mask, call=call: call.f(s, 0.5, mask)) for call in FUNCTIONS},
    **{call.name: (lambda s, mask, call=call: call.f(s, s.detach().flip(-1).round().abs(), 0.5, mask)) for call in LOSSES},
}
CALLS["soft_quantile"] = lambda s, mask: softsortlib.soft_quantile(s, torch.tensor([0.0, 0.5, 1.0]), tau=0.5, mask=mask)        # levels in single precision
UNMASKED = {call.name for call in (*FUNCTIONS, *LOSSES) if not call.masked}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n", [6, 300])
@pytest.mark.parametrize("name", CALLS)
def test_nothing_needs_double_precision(name, n, monkeypatch):
    if name.startswith("OddEven") and n == 300: n = 80      # as many layers as lanes: in plain torch, which has one way at any size, 300 take seconds
    s = draw(2, n).requires_grad_()
    mask = None if name in UNMASKED else torch.arange(n) < torch.tensor([[n], [n - 2]])
    with without_double(monkeypatch):
        for m in (None, mask):
            out = CALLS[name](s, m)
            out = out if isinstance(out, torch.Tensor) else out[0]
            if out.requires_grad: out.float().nan_to_num().sum().backward()


def test_the_stand_in_refuses(monkeypatch):
    with without_double(monkeypatch), pytest.raises(TypeError, match="double precision"): draw(2).double()
