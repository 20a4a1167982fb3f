"""Every custom operator of the package under `torch.library.opcheck`, found by enumeration: at the arguments it meets in use.

The tables are run forward, backward and twice backward, and each operator that torch's dispatcher sees is kept with what it
was given. An operator that no entry of the tables reaches fails the test, so that a new one cannot be forgotten.
"""
import importlib
import pkgutil
import warnings

import pytest
import torch
from tables import FUNCTIONS, LOSSES, OPERATORS, PARTS, RANKS, described_names, public_names
from torch.utils._python_dispatch import TorchDispatchMode

import softsortlib
from softsortlib import NeuralSort, Permutahedron, SinkhornSort, SoftSort
from softsortlib.engine import radix
from softsortlib.losses import kendall_loss, lambda_loss
from softsortlib.networks.layers_autograd import network_arguments
from softsortlib.ragged.lists import list_numbers
from softsortlib.ragged.sums import rest_of_lists
from softsortlib.ranks import pair_sum
from softsortlib.rowwise.products import sorted_sums
from softsortlib.selection import SparseTopK
from softsortlib.transport import Gibbs, potentials

PREFIX = "softsortlib::"
N = 96      # shorter sets are computed by plain torch, without an operator


def every_operator():
    "The names of the custom operators that the modules of the package register."
    for part in PARTS + (softsortlib.engine,):
        for module in pkgutil.walk_packages(part.__path__, part.__name__ + "."): importlib.import_module(module.name)
    return sorted(name.removeprefix(PREFIX) for name in torch._C._dispatch_get_all_op_names() if name.startswith(PREFIX))


class Recorder(TorchDispatchMode):
    "Keeps the first call of each custom operator at each kind of arguments."
    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(getattr(func, "name", lambda: "")()) if isinstance(func, torch._ops.OpOverload) else ""
        if name.startswith(PREFIX):
            key = name.removeprefix(PREFIX), tuple(a if not isinstance(a, (torch.Tensor, float)) else "" for a in args)
            self.calls.setdefault(key, (func, args))
        return func(*args, **(kwargs or {}))


def twice(out, *inputs):
    "The gradient of the gradient, where there is one."
    out = sum(o.double().square().sum() for o in (out if isinstance(out, tuple) else (out,)) if o.requires_grad)
    if not isinstance(out, torch.Tensor): return
    try:
        first = [g for g in torch.autograd.grad(out, inputs, create_graph=True, allow_unused=True) if g is not None and g.requires_grad]
        if first: torch.autograd.grad(sum(g.square().sum() for g in first), inputs, allow_unused=True)
    except NotImplementedError: pass        # an operator with one derivative says so


def use_everything(rng):
    "All tables on small sets, and what an operator returns in all its uses."
    s = torch.randn(2, N, generator=rng, dtype=torch.float64)
    y = torch.randint(0, 3, (2, N), generator=rng)
    mask = torch.arange(N) != torch.tensor([[N], [2]])
    for row in OPERATORS:
        for tau in (torch.tensor([[0.5], [0.7]], dtype=torch.float64).squeeze(-1), 0.5):
            z, x = s.clone().requires_grad_(), s[..., None].clone().requires_grad_()
            t = tau.clone().requires_grad_() if isinstance(tau, torch.Tensor) else tau
            def use(f): twice(f(row.make(tau=t)(z, mask)), *(a for a in (z, x, t) if isinstance(a, torch.Tensor)))
            for f in (lambda P: P @ x, lambda P: P.mT @ x, lambda P: P.log_prob(P.hard()), lambda P: P.to_dense(), lambda P: P[..., :2, :] @ x): use(f)
    for row in RANKS:
        for z in (s.clone().requires_grad_(), s.float().requires_grad_()): twice(row.make(tau=0.5)(z, mask), z)
    for call in FUNCTIONS + LOSSES:
        z = s.clone().requires_grad_()
        twice(call.f(z, *([y] if call in LOSSES else []), 0.5, mask if call.masked else None), z)
    rest(s)


def rest(s):
    "What stands behind an option."
    z, x = s.clone().requires_grad_(), torch.linspace(0, 1, 3, dtype=torch.float64)
    for P in (SoftSort(0.5, power=1.5)(z), SinkhornSort(0.5, power=1)(z), SinkhornSort(0.5, gradient="unrolled")(z), SinkhornSort(0.5, milestones=2)(z)): twice(P @ s, z)
    twice(SinkhornSort(0.5).quantiles(z, [0.3]) @ s, z)
    twice(SinkhornSort(0.5, gradient="unrolled")(z).to_dense(), z)
    for op in (SoftSort(0.5, backend="numba"), SoftSort(0.5, power=2, backend="numba"), NeuralSort(0.5, backend="numba")):
        for f in (lambda P: P @ s, lambda P: P.mT @ s, lambda P: P.to_dense(), lambda P: P.log_prob(P.hard())): twice(f(op(z)), z)
    twice(SoftSort()(z) @ s, z)        # without tau: scores in units of their spread, or the spread by itself
    twice(Permutahedron(regularization="kl")(z), z)
    twice(pair_sum(z, 0.5, torch.ones_like(z), "laplace", plain=False), z)
    many = torch.linspace(-1, 1, 600, dtype=torch.float64).sin().requires_grad_()      # too many pairs for one matrix
    twice(lambda_loss(many, torch.arange(600) % 4, k=2), many)
    twice(kendall_loss(many, torch.arange(600) % 4), many)
    offsets = torch.tensor([0, 3, 3, 40])      # lists that nothing traces; from inside their loss they are not seen
    twice(rest_of_lists(many[None, :40], offsets, list_numbers(offsets)), many)
    torch.autograd.grad(rest_of_lists(many[None, :40], offsets, list_numbers(offsets)).square().sum(), many)
    for of in (softsortlib.soft_sort, softsortlib.soft_rank): twice(of(many[:40], tau=0.5, offsets=offsets), many)
    long = torch.linspace(-1, 1, 9000).sin().requires_grad_()      # long enough for the radix sort
    for row in RANKS + OPERATORS[:1]: twice(row.make(tau=0.5)(long) @ long, long)
    order = z.detach().argsort()      # these serve GPUs, and have their plain form here
    twice(radix._permute(z[..., None].expand(2, N, 2), order), z)
    torch.autograd.grad(SparseTopK(2, 0.5)(z).square().sum(), z)
    down, some = z.detach().sort(descending=True).values.requires_grad_(), torch.tensor([N, 5])
    twice(sorted_sums(down, some, ""), down)
    tau, lam, size = torch.full((2,), 0.5, dtype=z.dtype), torch.full((2,), 0.25, dtype=z.dtype), torch.tensor([N, 5])
    for which in (0, 1): twice(network_arguments(z, tau, lam, size, "bitonic", "cauchy", True, False)[which], z)
    torch.autograd.grad(network_arguments(z, tau, lam, size, "bitonic", "cauchy", True, True)[1].square().sum(), z)
    weights = torch.full((2, N), 1 / N, dtype=torch.float64), torch.full((2, 3), 1 / 3, dtype=torch.float64)
    twice(potentials(Gibbs(z.sort().values, x.expand(2, 3), 0.5), *weights), z)


@pytest.fixture(scope="module")
def recorded():
    recorder = Recorder()
    with recorder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        use_everything(torch.Generator().manual_seed(0))
    return recorder.calls


# has kernels of a GPU and no other form; test_tiles_triton.py runs it
ON_A_GPU_ALONE = {"gibbs_pull"}


def test_every_custom_operator_is_met(recorded):
    assert ON_A_GPU_ALONE <= set(every_operator())
    missing = set(every_operator()) - {name for name, _ in recorded} - ON_A_GPU_ALONE
    assert not missing, f"no entry of tests/tables.py reaches {sorted(missing)}: add one, or a use in rest() of this file"


def leaves(args, want):
    return tuple(a.detach().clone().requires_grad_(want and a.is_floating_point() and a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", every_operator())
def test_opcheck(name, recorded):
    found = [call for (op, _), call in recorded.items() if op == name]
    for func, args in found:
        torch.library.opcheck(func, leaves(args, False))
        try: torch.library.opcheck(func, leaves(args, True), test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
        except NotImplementedError: pass


def test_every_public_name_is_in_a_table():
    unknown, gone = public_names() - described_names(), described_names() - public_names()
    assert not unknown, f"add a line to tests/tables.py for {sorted(unknown)}"
    assert not gone, f"tests/tables.py speaks of {sorted(gone)}, which no part offers"
