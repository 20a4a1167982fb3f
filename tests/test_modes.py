"""What a mode must not change: torch.func costs what autograd costs, shapes can be asked for without values, and a name means what an instance means."""
import pytest
import torch
from tables import FUNCTIONS, LOSSES, OPERATORS, RANKS
from torch._subclasses.fake_tensor import FakeTensorMode

from softsortlib import LapSum, NeuralSort, SoftSort, SortingNetwork, losses, soft_rank, soft_sort
from softsortlib.lab.bench import peak_memory
from softsortlib.lab.limits import trim_memory

WIDE = {  # a matrix of double precision, or a tape of one, takes 100 MB at least
    "neuralsort": lambda s: (NeuralSort(1.0)(s) @ s).square().sum(),
    "power": lambda s: (SoftSort(1.0, power=1.5)(s) @ s).square().sum(),
    "network": lambda s: (SortingNetwork()(s) @ s).square().sum(),
    "lapsum": lambda s: (LapSum(1.0)(s).mT @ s).square().sum(),
    "mean": lambda s: (SoftSort(1.0)(s) @ s).square().sum(),
}


@pytest.mark.parametrize("name", WIDE)
def test_torch_func_takes_the_memory_of_a_first_derivative(name, rng):
    f, s = WIDE[name], torch.randn(3600, generator=rng, dtype=torch.float64)
    def by_autograd():
        x = s.clone().requires_grad_()
        return torch.autograd.grad(f(x), x)[0]
    def by_func(): return torch.func.grad(f)(s)
    torch.testing.assert_close(by_func(), by_autograd(), rtol=1e-9, atol=1e-11)
    trim_memory()
    assert (peak_memory(by_func) or 0) < 30e6


DRAWS = {"Stochastic", "Perturbed", "ranking_regret", "plackett_luce_reward"}   # torch draws no exponential numbers from a generator without values


def calls(s, y):
    "Everything in the tables, as functions of no argument."
    for row in OPERATORS: yield row.name, lambda: row.make(tau=0.5)(s) @ s
    for row in RANKS: yield row.name, lambda: row.make(tau=0.5)(s)
    for call in FUNCTIONS: yield call.name, lambda: call.f(s, 0.5, None)
    for call in LOSSES: yield call.name, lambda: call.f(s, y, 0.5, None)


@pytest.mark.parametrize("n", (6, 300))
def test_shapes_without_values(n):
    with FakeTensorMode():
        s, y = torch.randn(2, n), torch.ones(2, n, dtype=torch.long)
        for name, f in calls(s, y):
            if name in DRAWS: continue
            out = f()
            for part in out if isinstance(out, tuple) else (out,):
                assert len(part.shape) <= 4, name


@pytest.mark.parametrize("n", (6, 300))
def test_another_default_device_is_not_that_of_the_scores(n, rng):
    s, y = torch.randn(2, n, generator=rng), torch.randint(3, (2, n), generator=rng)
    before = {name: f() for name, f in calls(s, y)}
    torch.set_default_device("meta")
    try:
        after = {name: f() for name, f in calls(s, y) if name in before}
    finally:
        torch.set_default_device(None)
    for name, was in before.items():
        assert isinstance(was, torch.Tensor) is isinstance(after[name], torch.Tensor), name
        if isinstance(was, torch.Tensor): assert after[name].device == was.device, name


@pytest.mark.parametrize("descending", (False, True))
@pytest.mark.parametrize("n", (3, 5, 9, 16))
@pytest.mark.parametrize("row", [r for r in (*OPERATORS, *RANKS) if isinstance(getattr(r.make(tau=0.3), "descending", None), bool)], ids=lambda r: r.name)
def test_an_instance_sorts_as_its_twin_in_the_other_direction(row, n, descending, rng):
    s = torch.randn(2, n, generator=rng, dtype=torch.float64)
    there, here = row.make(tau=0.3), row.make(tau=0.3).facing(not row.make(tau=0.3).descending)
    ranks = [soft_rank(s, descending=descending, method=m) for m in (there, here)]
    torch.testing.assert_close(*ranks, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ("bitonic", "odd_even"))
def test_a_name_means_what_an_instance_means(kind):
    x = torch.tensor([0.3, 0.1, 0.2, 0.5, 0.7])
    by_name, by_instance = (soft_sort(x, descending=True, method=m) for m in (kind, SortingNetwork(kind)))
    assert torch.equal(by_name, by_instance)


def test_a_turned_operator_compiles(rng):
    op, x = SortingNetwork(tau=torch.nn.Parameter(torch.tensor(0.5))), torch.randn(5, generator=rng)
    def f(x): return soft_sort(x, descending=True, method=op)
    torch.testing.assert_close(torch.compile(f, fullgraph=True, backend="eager")(x), f(x))


def test_a_distributed_tensor_is_refused_where_it_cannot_be_used():
    class Part(torch.Tensor):
        def full_tensor(self): return self
    part, y = torch.ones(5).as_subclass(Part), torch.arange(5.0)
    for f in (lambda: SoftSort()(part), lambda: losses.spearman_loss(y, part), lambda: losses.listmle_loss(part, y),
              lambda: soft_rank(y, mask=(part > 0).as_subclass(Part))):
        with pytest.raises(TypeError, match="to_local"): f()


def relevant(n): return torch.arange(n).remainder(7).eq(1).float().expand(2, n)


OF_EVERY_SIZE = {
    **{name: lambda s, f=getattr(losses, name): f(s, relevant(s.shape[-1]) + relevant(s.shape[-1]).flip(-1))
       for name in ("spearman_loss", "approx_ndcg_loss", "neural_ndcg_loss", "pirank_loss", "lambda_loss")},
    "reciprocal_rank_loss": lambda s: losses.reciprocal_rank_loss(s, relevant(s.shape[-1])),
    "NeuralSort": lambda s: NeuralSort(0.3)(s) @ s, "NeuralSort in double precision": lambda s: NeuralSort(0.3)(s.double()) @ s.double(),
}


@pytest.mark.parametrize("name", OF_EVERY_SIZE)
def test_one_compilation_serves_all_sizes(name, rng):
    "Nine sizes between two switches of the algorithm, one more than the compiler compiles a function again for."
    f, graphs = OF_EVERY_SIZE[name], []
    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=backend)
    for n in range(91, 118, 3):
        s = torch.randn(2, n, generator=rng)
        torch.testing.assert_close(compiled(s), f(s), rtol=1e-5, atol=1e-5)
    assert len(graphs) == 1
