"""Tensors that pretend to be on a GPU, so that what would be launched there is counted where there is none.

Torch's `meta` device has shapes and no numbers. While `on_a_gpu` is entered, the library takes it for a GPU: it chooses its
Triton kernels, whose launches are noted in place of being made; a mode of torch's dispatcher notes every operator of torch
that would launch a kernel of its own, and what would make the host wait or copy. A number that the host asks for (`.item()`,
a boolean index, `bool(tensor)`) cannot be had of such a tensor, so whoever asks gets an error.
"""
import contextlib
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import softsortlib.engine.autograd as autograd
import softsortlib.engine.dispatch as dispatch
import softsortlib.networks.comparators as comparators

DEVICE = "meta"
# what only says how memory is read or reserved
FREE = {"detach", "alias", "view", "_unsafe_view", "reshape", "expand", "t", "transpose", "permute", "select", "slice", "unsqueeze", "squeeze", "split", "unbind", "chunk",
        "split_with_sizes", "as_strided", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "unfold", "diagonal", "_reshape_alias", "lift_fresh", "lift",
        "is_same_size", "sym_size", "sym_numel", "resize_", "set_", "unflatten", "flatten", "movedim", "view_as"}
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "unique_dim", "_unique2", "unique_consecutive", "is_nonzero", "item", "repeat_interleave"}


class Launch(NamedTuple):
    "A launch of one of the library's kernels."
    kernel: Any
    programs: int
    arguments: dict


class Seen:
    "What a run would have done on a GPU."
    def __init__(self): self.kernels, self.operators, self.faults = [], [], []

    @property
    def launches(self): return len(self.kernels) + len(self.operators)

    def names(self): return [k.kernel.__name__ for k in self.kernels] + self.operators


class Watch(TorchDispatchMode):
    "Note operators on tensors that pretend, and faults."
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[1]
        flat = [a for a in torch.utils._pytree.tree_leaves((args, kwargs or {})) if isinstance(a, torch.Tensor)]
        there = [a for a in flat if a.device.type == DEVICE]
        if there and name == "sort" and args[0].dtype == torch.bool: self.seen.faults.append("a sort of bool, which older torch refuses on a GPU")
        if there and name in WAITS: self.seen.faults.append(f"{name} makes the host wait")
        if there and any(a.device.type == "cpu" and a.ndim for a in flat): self.seen.faults.append(f"{name} mixes tensors of the host with those of the device")
        out = func(*args, **(kwargs or {}))
        made = [a for a in torch.utils._pytree.tree_leaves(out) if isinstance(a, torch.Tensor) and a.device.type == DEVICE]
        if name == "_to_copy" and made and not there: self.seen.faults.append("a copy from the host to the device")
        if name == "_to_copy" and there and not made: self.seen.faults.append("a copy from the device to the host")
        if (there or made) and name not in FREE: self.seen.operators.append(name)
        return out


def _from_host(make, seen):
    "`torch.tensor` and `torch.as_tensor`, which copy what the host has."
    def call(data, *args, **kwargs):
        out = make(data, *args, **kwargs)
        if out.device.type == DEVICE and not isinstance(data, torch.Tensor): seen.faults.append(f"{make.__name__} copies a number from the host to the device")
        return out
    return call


def _index_with_lists(seen):
    "`x[[0, 2]]`, whose list torch copies to the device."
    def getitem(self, index):
        parts = index if isinstance(index, tuple) else (index,)
        if self.device.type == DEVICE and any(isinstance(part, list) for part in parts): seen.faults.append("a list of indices is copied from the host to the device")
        return torch._C.TensorBase.__getitem__(self, index)
    return getitem


@contextlib.contextmanager
def on_a_gpu():
    "Let the library take `meta` for a GPU; what is launched meanwhile is in what this gives."
    seen = Seen()
    old = [(dispatch, "start_kernel"), (autograd, "watched"), (comparators, "_in_a_transform"), (torch, "tensor"), (torch, "as_tensor")]
    old = [(module, name, getattr(module, name)) for module, name in old]
    dispatch.HOME[DEVICE] = "triton"
    dispatch.start_kernel = lambda kernel, programs, on, arguments: seen.kernels.append(Launch(kernel, programs, arguments))
    autograd.watched = comparators._in_a_transform = lambda *args: False
    torch.tensor, torch.as_tensor = _from_host(torch.tensor, seen), _from_host(torch.as_tensor, seen)
    torch.Tensor.__getitem__ = _index_with_lists(seen)
    try:
        with Watch(seen): yield seen
    finally:
        del torch.Tensor.__getitem__
        del dispatch.HOME[DEVICE]
        for module, name, value in old: setattr(module, name, value)


def pretend(*shape, dtype=torch.float32, grad=False):
    "A tensor on the GPU that is not there."
    return torch.empty(*shape, dtype=dtype, device=DEVICE, requires_grad=grad)


def both_ways(f, *inputs):
    "Run f(*inputs) and its gradients, after one run that fills the caches; what was launched."
    for _ in range(2):
        with on_a_gpu() as seen:
            out = f(*inputs)
            outs = [o for o in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(o, torch.Tensor) and o.requires_grad]
            if outs: torch.autograd.grad(outs, [a for a in inputs if a.requires_grad], [torch.empty_like(o) for o in outs], allow_unused=True)
    return seen


class Case(NamedTuple):
    "A call that is counted: `f` of the inputs, which are made on the GPU that is not there."
    name: str
    f: Any
    inputs: Any         # a function without arguments that gives them

    def run(self):
        "What was launched and why the host would wait, if it would; twice where the first run has faults, which filling a cache may have."
        try: seen = both_ways(self.f, *self.inputs())
        except (RuntimeError, NotImplementedError) as e: return dict(launches=None, kernels=None, waits=[_why(e)])
        return dict(launches=seen.launches, kernels=len(seen.kernels), waits=sorted(set(seen.faults)))


def _why(error):
    text = str(error)
    if ".item()" in text: return "asks for a number"
    if "_unique2" in text or "nonzero" in text: return "asks how many there are"
    raise error


def _scores(*shape): return lambda: (pretend(*shape, grad=True),)
def _with_payload(n): return lambda: (pretend(2, n, grad=True), pretend(2, n, 1, grad=True))


def cases():
    "Every operator of tables.py with its products, its likelihood and its matrix, and every function and loss; long rows where a ceiling speaks of them."
    from softsortlib import SinkhornSort
    from tables import FUNCTIONS, LOSSES, OPERATORS, RANKS
    n = 1000
    def label(name, what, n): return f"{name}, {what}n = {n:,}"
    out = []
    for row in OPERATORS:
        op = row.make(tau=0.1)
        for n in (1000, 200_000) if row.name in ("SoftSort", "LapSum") else (1000,):
            def target(n=n): return torch.empty(2, n, dtype=torch.long, device=DEVICE)
            out.append(Case(label(row.name, "P @ x, ", n), lambda s, x, op=op: op(s) @ x, _with_payload(n)))
            out.append(Case(label(row.name, "P.mT @ x, ", n), lambda s, x, op=op: op(s).mT @ x, _with_payload(n)))
            if row.name == "NeuralSort": out.append(Case(label(row.name, "P[..., :10, :] @ x, ", n), lambda s, x, op=op: op(s)[..., :10, :] @ x, _with_payload(n)))
            out.append(Case(label(row.name, "log_prob, ", n), lambda s, op=op, target=target: op(s).log_prob(target()), _scores(2, n)))
        out.append(Case(label(row.name, "to_dense, ", 1000), lambda s, op=op: op(s).to_dense(), _scores(2, 1000)))
    for how, options in (("10 rounds", {}), ("10 rounds of power 1", dict(power=1)), ("10 rounds unrolled", dict(gradient="unrolled"))):
        op = SinkhornSort(0.1, iterations=10, **options)
        out.append(Case(label("SinkhornSort", f"{how}, P @ x, ", 1000), lambda s, x, op=op: op(s) @ x, _with_payload(1000)))
        out.append(Case(label("SinkhornSort", f"{how}, log_prob, ", 1000), lambda s, op=op: op(s).log_prob(torch.empty(2, 1000, dtype=torch.long, device=DEVICE)), _scores(2, 1000)))
    for row in RANKS:
        for n in (1000, 20_000) if row.name in ("SigmoidRank", "GaussianRank") else (1000, 200_000):
            out.append(Case(label(row.name, "", n), row.make(tau=0.1), _scores(2, n)))
        def masked(s, op=row.make(tau=0.1)): return op(s, torch.empty(s.shape, dtype=torch.bool, device=DEVICE))
        out.append(Case(label(row.name, "masked, ", 1000), masked, _scores(2, 1000)))
    for call in FUNCTIONS:
        for n in (1000, 200_000) if call.name == "lapsum_topk" else (1000,): out.append(Case(label(call.name, "", n), lambda s, f=call.f: f(s, 0.1, None), _scores(2, n)))
    for call in LOSSES: out.append(Case(label(call.name, "", 1000), lambda s, f=call.f: f(s, pretend(*s.shape), 0.1, None), _scores(2, 1000)))
    return out + _of_lists(label)


def _of_lists(label):
    "What takes offsets on a GPU, for lists of ten items on average."
    from softsortlib import functional, losses
    def offsets(s): return torch.empty(s.shape[-1] // 10 + 1, dtype=torch.long, device=DEVICE)
    calls = {"soft_sort": functional.soft_sort, **{f"soft_rank:{m}": lambda s, m=m, **more: functional.soft_rank(s, method=m, **more) for m in ("softsort", "laplace", "sigmoid")}}
    calls |= {name: lambda s, name=name, **more: getattr(losses, name)(s, pretend(*s.shape), **more) for name in ("approx_ndcg_loss", "listnet_loss", "listmle_loss")}
    found = [Case(label(name, "lists, ", n), lambda s, f=f: f(s, tau=0.1, offsets=offsets(s)), _scores(n)) for name, f in calls.items() for n in (1000, 100_000)]
    def learned(s, tau): return functional.soft_rank(s, tau=tau, offsets=offsets(s))
    return found + [Case(label("soft_rank:softsort", "lists, tau learned, ", 1000), learned, lambda: (pretend(1000, grad=True), pretend(100, grad=True)))]
