"""`torch.export` leaves the batch open, and the number of scores where the method allows it: what is exported once says at other sizes what the code says."""
import os

import pytest
import torch
from torch.export import Dim

import softsortlib as L
from softsortlib import SoftSort, soft_sort
from softsortlib.core.operators import Operator
from softsortlib.core.rank_operators import RankOperator

FULL = os.environ.get("SOFTSORTLIB_GRID") == "full"     # every function of 10 and of 200 scores, with and without tau and mask
pytestmark = pytest.mark.filterwarnings("ignore")       # torch's own, of its exporter


class Model(torch.nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x, mask=None): return self.f(x, mask)


def named(base): return sorted(name for name, cls in base.names.items() if cls.__module__.startswith("softsortlib."))


def functions(**tau):
    "{name: function of x (B, n) and mask}."
    def of(f, *args, **kwargs): return lambda x, mask: f(x, *args, mask=mask, **kwargs, **tau)
    calls = {}
    for name in named(Operator):
        op = Operator.names[name](**tau)
        calls[f"{name}: product"] = lambda x, mask, op=op: op(x, mask) @ x
        calls[f"{name}: transpose"] = lambda x, mask, op=op: op(x, mask).mT @ x
        calls[f"{name}: matrix"] = lambda x, mask, op=op: op(x, mask).to_dense()
        calls[f"{name}: topk"] = lambda x, mask, name=name: L.soft_topk(x, 3, method=name, mask=mask, **tau)[0]
    calls |= {name: RankOperator.names[name](**tau) for name in named(RankOperator)}
    squares, sparse = SoftSort(power=2, **tau), SoftSort(simplex="sparsemax", **tau)
    calls |= {"squares": lambda x, mask: squares(x, mask) @ x, "sparse rows": lambda x, mask: sparse(x, mask) @ x, "order": lambda x, mask: SoftSort(**tau)(x, mask).hard()}
    calls |= {"straight through": lambda x, mask: SoftSort(**tau)(x, mask).straight_through() @ x, "topk rows": lambda x, mask: L.soft_topk(x, 3, mask=mask, **tau)[1].to_dense()}
    for f in (soft_sort, L.soft_rank): calls |= {f.__name__: of(f), f"{f.__name__}, hard": of(f, hard=True)}
    calls |= {"soft_argsort": of(L.soft_argsort), "soft_quantile": of(L.soft_quantile, 0.3), "quantiles": of(L.soft_quantile, torch.tensor([0.1, 0.77])), "soft_median": of(L.soft_median)}
    calls |= {"median by transport": of(L.soft_median, method="sinkhorn"), "soft_trimmed_mean": of(L.soft_trimmed_mean), "sorted by blocks": of(soft_sort, method="permutahedron")}
    calls |= {f"mask: {method}": of(L.soft_topk_mask, 3, method=method) for method in ("lapsum", "sinkhorn", "sparse", "threshold", "simple")}
    return calls | {"mask, hard": of(L.soft_topk_mask, 3, hard=True)}


NAMES = [*functions(tau=0.3)]
NETWORKS = ("bitonic", "network", "odd_even")
ANY_N = [name for name in NAMES if not name.startswith(NETWORKS)]
WAYS = [(tau, masked) for tau in (0.3, None) for masked in (False, True)]
CASES = [(name, n, *way) for i, name in enumerate(NAMES) for j, n in enumerate((10, 200)) for k, way in enumerate(WAYS) if FULL or not name.startswith("network") and i % 2 == j and i // 2 % 4 == k]


def function(name, tau): return functions(**({} if tau is None else dict(tau=tau)))[name]


def arguments(B, n, masked, rng):
    x = torch.randn(B, n, generator=rng)
    return (x, torch.arange(n) < torch.randint(n // 2 + 1, n + 1, (B, 1), generator=rng)) if masked else (x,)


def exported(f, example, sizes): return torch.export.export(Model(f), example, dynamic_shapes=tuple(sizes for _ in example)).module()


def assert_same(program, f, args):
    torch.manual_seed(0)     # for what draws
    wanted = f(*args, *[None] * (2 - len(args)))
    torch.manual_seed(0)
    torch.testing.assert_close(program(*args), wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name,n,tau,masked", CASES)
def test_one_program_for_every_batch(name, n, tau, masked, rng):
    f = function(name, tau)
    program = exported(f, arguments(4, n, masked, rng), {0: Dim("batch", min=1, max=4096)})
    for B in (1, 4, 7, 60): assert_same(program, f, arguments(B, n, masked, rng))


@pytest.mark.parametrize("name", ANY_N if FULL else ANY_N[1::5])
def test_one_program_for_every_batch_and_every_n(name, rng):
    f = function(name, 0.3)
    program = exported(f, arguments(4, 10, True, rng), {0: Dim("batch", min=1, max=4096), 1: Dim("n", min=4, max=1024)})
    for B, n in ((1, 4), (3, 33), (2, 200)): assert_same(program, f, arguments(B, n, True, rng))


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_network_says_that_its_n_is_fixed(kind, rng):
    with pytest.raises(ValueError, match="n must be fixed for a sorting network.*leave only the batch open, or take SoftSort"):
        exported(lambda x, mask: soft_sort(x, method=kind, tau=0.3), arguments(4, 10, False, rng), {1: Dim("n", min=4, max=64)})


@pytest.mark.parametrize("n", (10, 200))
@pytest.mark.parametrize("open_size", ("AUTO", "DYNAMIC"))
def test_a_batch_that_torch_may_leave_open_is_open(open_size, n, rng):
    def f(x, mask): return soft_sort(x)
    program = exported(f, arguments(4, n, False, rng), {0: getattr(Dim, open_size)})
    for B in (2, 9, 300): assert_same(program, f, arguments(B, n, False, rng))


def test_batches_in_several_dimensions(rng):
    def f(x, mask): return L.soft_rank(x, tau=0.3) + soft_sort(x, 1, tau=0.3)
    program = exported(f, (torch.randn(4, 3, 10, generator=rng),), {0: Dim("a", min=1, max=512), 1: Dim("b", min=2, max=512)})
    for A, B in ((1, 2), (6, 5), (40, 30)): assert_same(program, f, (torch.randn(A, B, 10, generator=rng),))


def test_the_program_learns(rng):
    def f(x, mask): return soft_sort(x, tau=0.3)
    program = exported(f, arguments(4, 10, False, rng), {0: Dim("batch", min=1, max=4096)})
    x, w = torch.randn(7, 10, generator=rng), torch.randn(7, 10, generator=rng)
    a, b = (x.clone().requires_grad_() for _ in range(2))
    (program(a) * w).sum().backward()
    (f(b, None) * w).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-5)
