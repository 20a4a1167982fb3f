"""Forward mode: every operator, function and loss has tangents, at every size, of any order where there are derivatives of that order."""
import warnings

import pytest
import torch
from regimes import REGIMES
from sameness import ONCE, Around, subjects
from torch.autograd import forward_ad
from torch.testing import assert_close

import softsortlib as ss
from softsortlib import core, losses, sampling, transport

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:.*is deprecated:DeprecationWarning")      # torch, when it first makes its own rules of forward mode
TAU = torch.tensor(0.7, dtype=torch.float64)
CALLS = {name: subject for name, subject in subjects().items() if "create_graph" in subject.modes and subject.modes != ONCE}
SMOOTH = {
    "SoftSort": lambda s: ss.SoftSort(0.5)(s) @ s,
    "power 2": lambda s: ss.SoftSort(0.5, power=2)(s) @ s,
    "NeuralSort": lambda s: ss.NeuralSort(0.5)(s) @ s,
    "LapSum": lambda s: ss.LapSum(0.5)(s) @ s,
    "bitonic": lambda s: ss.SortingNetwork(tau=0.5)(s) @ s,
    "SinkhornSort": lambda s: ss.SinkhornSort(0.5, tolerance=1e-12, max_iterations=10_000)(s) @ s,
    "quantiles": lambda s: ss.SinkhornSort(0.5, tolerance=1e-12, max_iterations=10_000).quantiles(s, [0.3, 0.5]) @ s,
    "SigmoidRank": ss.SigmoidRank(0.5),
    "GaussianRank": ss.GaussianRank(0.5),
    "LaplaceRank": ss.LaplaceRank(0.5),
    "Permutahedron": ss.Permutahedron(0.5),
    "entropic": ss.Permutahedron(0.5, regularization="kl"),
    "top k": lambda s: ss.soft_topk_mask(s, 3, tau=0.5),
    "Plackett-Luce": lambda s: core.plackett_luce_log_prob(s, torch.arange(s.shape[-1])),
    "matching": lambda s: transport.soft_matching(s[:, None] * s, 0.5, 10) @ s,
    "Spearman": lambda s: losses.spearman_loss(s, torch.arange(s.shape[-1]).to(s), tau=0.5),
}

PLAIN = dict(SoftSort=ss.SoftSort(0.5), NeuralSort=ss.NeuralSort(0.5), LapSum=ss.LapSum(0.5), SinkhornSort=ss.SinkhornSort(0.5), LaplaceRank=ss.LaplaceRank(0.5),
             Permutahedron=ss.Permutahedron(0.5))


def drawn(*shape, seed=0): return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pairing(f, s, v):
    "<u, J v> by forward mode and <J^T u, v> by reverse mode, and the sum of the latter's sizes."
    leaf = s.clone().requires_grad_()
    y = f(leaf)
    u = drawn(*y.shape, seed=7)
    g, = torch.autograd.grad(y, leaf, u)
    value, tangent = torch.func.jvp(f, (s,), (v,))
    assert_close(value, y.detach())
    return (u * tangent).sum(), (g * v).sum(), (g * v).abs().sum() + (u * tangent).abs().sum()


def sets(name, n):
    "How many, and how long. A network of as many layers as lanes takes seconds for two sets of 300; from 288 lanes on its notes come in segments."
    return (1, 290) if name.startswith("OddEven") and n == 300 else (2, n)


def surroundings(B, n): return Around(drawn(B, n, seed=2), torch.arange(B * n).reshape(B, n) % 5, drawn(B, n, seed=3))


@pytest.mark.parametrize("n", [6, 300])
@pytest.mark.parametrize("name", CALLS)
def test_tangents_are_the_transpose_of_gradients(name, n):
    B, n = sets(name, n)
    around = surroundings(B, n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", transport.ConvergenceWarning)
        forward, reverse, scale = pairing(lambda s: CALLS[name].f(s, TAU, None, around), drawn(B, n), drawn(B, n, seed=1))
    assert abs(forward - reverse) <= 1e-8 * scale + 1e-14       # sums of a whole column do not move


@pytest.mark.parametrize("n", [6, 300])
@pytest.mark.parametrize("name", CALLS)
def test_tangents_of_the_temperature_are_the_transpose_of_its_gradient(name, n):
    B, n = sets(name, n)
    s, around = drawn(B, n), surroundings(B, n)
    tau = torch.tensor(float(TAU), dtype=torch.float64)
    leaf = tau.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", transport.ConvergenceWarning)
        y = CALLS[name].f(s, leaf, None, around)
        if not y.requires_grad: pytest.skip("the temperature is not learned")
        u = drawn(*y.shape, seed=7)
        g, = torch.autograd.grad(y, leaf, u)
        _, tangent = torch.func.jvp(lambda a: CALLS[name].f(s, a, None, around), (tau,), (torch.ones_like(tau),))
    assert abs((u * tangent).sum() - g) <= 1e-8 * (g.abs() + (u * tangent).abs().sum()) + 1e-14


@pytest.mark.parametrize("regime", ["integers with ties", "all tied", "offset 1e4", "outlier of 1e17"])
@pytest.mark.parametrize("name", PLAIN)
def test_tangents_of_data_that_is_not_normal(name, regime):
    for n in (6, 300):
        s, x = REGIMES[regime](1, n, torch.float64, torch.Generator().manual_seed(0))[0], drawn(n, seed=4)
        forward, reverse, scale = pairing(lambda s: ranks(s) if isinstance(ranks := PLAIN[name], ss.core.RankOperator) else ranks(s) @ x, s, drawn(n, seed=1))
        assert abs(forward - reverse) <= 1e-8 * scale + 1e-12


@pytest.mark.parametrize("name", ["SoftSort", "LapSum", "LaplaceRank", "SigmoidRank", "Permutahedron", "top k"])
def test_a_size_does_not_change_what_can_be_differentiated(name):
    forward, reverse, scale = pairing(SMOOTH[name], drawn(20_000), drawn(20_000, seed=1))
    assert abs(forward - reverse) <= 1e-8 * scale


@pytest.mark.parametrize("n", [6, 300])
@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives_in_every_order_of_the_modes(name, n):
    "Forward over reverse, reverse over reverse, forward over forward, and forward over reverse by dual numbers."
    def f(s): return SMOOTH[name](s).sin().sum()
    s, v = drawn(n), drawn(n, seed=1)
    _, pull = torch.func.vjp(torch.func.grad(f), s)
    product, = pull(v)
    assert_close(torch.func.jvp(torch.func.grad(f), (s,), (v,))[1], product, rtol=1e-7, atol=1e-9)
    twice = torch.func.jvp(lambda s: torch.func.jvp(f, (s,), (v,))[1], (s,), (v,))[1]
    assert_close(twice, product @ v, rtol=1e-7, atol=1e-9)
    with forward_ad.dual_level(), torch.no_grad():
        tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(s, v))).tangent
    assert_close(tangent, torch.func.grad(f)(s) @ v, rtol=1e-7, atol=1e-9)
    with forward_ad.dual_level():           # and the gradient of dual numbers has tangents
        dual = forward_ad.make_dual(s.clone().requires_grad_(), v)
        g, = torch.autograd.grad(f(dual), dual)
        found = forward_ad.unpack_dual(g).tangent
    assert_close(found, product, rtol=1e-7, atol=1e-9)


def test_the_hessian_of_a_loss_of_300_scores():
    def f(s): return losses.spearman_loss(s, torch.arange(300.0, dtype=torch.float64), tau=0.5)
    s = drawn(300)
    H = torch.func.hessian(f)(s)
    assert_close(H, H.mT, rtol=1e-7, atol=1e-12)
    leaf = s.clone().requires_grad_()
    g, = torch.autograd.grad(f(leaf), leaf, create_graph=True)
    assert_close(H[17], torch.autograd.grad(g[17], leaf)[0], rtol=1e-7, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")       # torch's own, of constants that it folds
@pytest.mark.parametrize("name", ["SoftSort", "LapSum", "SinkhornSort", "Permutahedron", "top k"])
def test_a_recorded_function_has_its_tangents(name):
    "torch.func.linearize writes the tangents down once."
    for n in (6, 300):
        s, v = drawn(n), drawn(n, seed=1)
        value, push = torch.func.linearize(SMOOTH[name], s)
        assert_close((value, push(v)), torch.func.jvp(SMOOTH[name], (s,), (v,)))


@pytest.mark.filterwarnings("ignore")       # of the compiler
@pytest.mark.parametrize("name", ["LapSum", "Permutahedron"])
def test_no_tangent_is_dropped_by_the_compiler(name):
    torch._dynamo.reset()
    f, s, v = SMOOTH[name], drawn(6), drawn(6, seed=1)
    expected = torch.func.jvp(f, (s,), (v,))
    assert_close(torch.func.jvp(torch.compile(f), (s,), (v,)), expected)
    assert_close(torch.compile(lambda s, v: torch.func.jvp(f, (s,), (v,)))(s, v), expected)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="no tangents inside a compiled function"):
        torch.compile(lambda s, v: torch.func.jvp(f, (s,), (v,)), fullgraph=True)(s, v)


def test_batches_of_tangents():
    s = drawn(3, 5)
    for f in (SMOOTH["SoftSort"], SMOOTH["LapSum"], SMOOTH["SinkhornSort"]):
        assert_close(torch.func.vmap(torch.func.jacfwd(f))(s), torch.func.vmap(torch.func.jacrev(f))(s))


def test_estimators_have_tangents_or_say_why_not():
    s, v = drawn(5), drawn(5, seed=1)
    def noise(): return torch.Generator().manual_seed(0)
    def regret(s): return sampling.ranking_regret(s, torch.arange(1, 6).double(), generator=noise())
    def reward(s): return sampling.plackett_luce_reward(s, torch.arange(5.0).double(), generator=noise())
    for f in (regret, reward): assert_close(torch.func.jvp(f, (s,), (v,))[1], torch.func.grad(f)(s) @ v)
    for second in (lambda: torch.func.grad(lambda s: torch.func.grad(reward)(s) @ v)(s), lambda: torch.func.jvp(torch.func.grad(reward), (s,), (v,))):
        with pytest.raises(NotImplementedError, match="expected reward cannot be differentiated again"): second()
    with pytest.raises(NotImplementedError, match="in reverse mode only: use torch.func.jacrev"): torch.func.jacfwd(sampling.BlackboxRank(1.0))(s)
    def exact(s): return ss.SortingNetwork(swaps="error_free", tau=0.5)(s) @ s.detach()
    assert_close(torch.func.jacfwd(exact)(s), torch.func.jacrev(exact)(s))
    with pytest.raises(NotImplementedError, match="first derivative only"): torch.func.hessian(lambda s: exact(s).square().sum())(s)
    def costly(s): return ss.SinkhornSort(power=torch.cosh)(s) @ s
    with pytest.raises(NotImplementedError, match="power is a function: use gradient='unrolled'"): torch.func.jacfwd(costly)(s)


@pytest.mark.parametrize("operator", [ss.NeuralSort(0.5, backend="torch"), ss.SinkhornSort(0.5, backend="torch"), ss.SoftSort(0.5, distance=lambda a, b: (a - b).abs() ** 1.7)])
def test_tiles_that_are_recomputed_inside_torch_func(operator):
    "A matrix of so many entries is made in tiles, which torch.func could not see through."
    s = drawn(2100)
    def f(s): return (operator(s) @ s).sin().sum()
    leaf = s.clone().requires_grad_()
    assert_close(torch.func.grad(f)(s), torch.autograd.grad(f(leaf), leaf)[0])
