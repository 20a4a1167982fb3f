"""Transport on a line: the statements of chapter T1, with weights and milestones, against a linear program."""
import pytest
import torch
from torch.testing import assert_close

linprog = pytest.importorskip("scipy.optimize").linprog

from softsortlib.transport.line import convex_cost, line_potentials, sinkhorn

COSTS = {"squared": convex_cost(2), "power 1.5": convex_cost(1.5), "cosh": lambda d: d.cosh(), "leaning": lambda d: d.exp() - d}
SIZES = [(5, 5), (7, 3), (3, 8), (1, 4)]


@pytest.fixture
def rng(): return torch.Generator().manual_seed(7)


def problem(n, m, rng, even=False):
    "Sorted inputs and milestones, with weights that sum to one."
    x, y = (torch.randn(k, generator=rng, dtype=torch.float64).sort().values for k in (n, m))
    a, b = (torch.ones(k, dtype=torch.float64) if even else torch.rand(k, generator=rng, dtype=torch.float64) + 0.1 for k in (n, m))
    return x, y, a / a.sum(), b / b.sum()


def solved(C, a, b):
    "The cheapest plan (n, m) and its cost, by a linear program."
    n, m = C.shape
    marginals = torch.cat([torch.eye(n).repeat_interleave(m, 1), torch.eye(m).repeat(1, n)]).double()
    best = linprog(C.flatten().numpy(), A_eq=marginals.numpy(), b_eq=torch.cat([a, b]).numpy())
    return torch.as_tensor(best.x).view(n, m), best.fun


@pytest.mark.parametrize("power", [1, 1.0, 1.5, 2, 2.0, 3])
def test_a_cost_by_its_power(power):
    d = torch.tensor([-3.0, -0.5, 0.0, 0.25, 2.0], dtype=torch.float64)
    assert_close(convex_cost(power)(d), torch.tensor([abs(v) ** power for v in d.tolist()], dtype=torch.float64))


@pytest.mark.parametrize("n, m", SIZES)
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("even", [False, True])
def test_no_paths_cross(n, m, cost, even, rng):
    "Prop T1.1: a later input never goes to an earlier milestone, and the plan takes both sides in order."
    x, y, a, b = problem(n, m, rng, even)
    P, _ = solved(COSTS[cost](y - x[:, None]), a, b)
    i, j = (P > 1e-9).nonzero().T
    for k, l in zip(i.tolist(), j.tolist()): assert not ((i > k) & (j < l)).any()
    A, B = a.cumsum(0), b.cumsum(0)
    shared = torch.minimum(A[:, None], B) - torch.maximum((A - a)[:, None], B - b)
    assert_close(P, shared.clamp(min=0), atol=1e-8, rtol=0)


@pytest.mark.parametrize("n, m", SIZES)
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("even", [False, True])
def test_prices_from_sorting_are_optimal(n, m, cost, even, rng):
    "Prop T1.2: feasible, and worth as much as the cheapest plan."
    x, y, a, b = problem(n, m, rng, even)
    C = COSTS[cost](y - x[:, None])
    f = line_potentials(x, y, a, b, COSTS[cost])
    g = (C - f[:, None]).min(0).values
    assert (f[:, None] + g <= C + 1e-12).all()
    assert float((a * f).sum() + (b * g).sum()) == pytest.approx(solved(C, a, b)[1], rel=1e-7, abs=1e-9)


def by_quantiles(x, y, a, b, h, points=200_000):
    "The integral of h(Q_b - Q_a) by midpoints."
    u = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    at = [z[torch.searchsorted(w.cumsum(0), u).clamp(max=len(z) - 1)] for z, w in ((x, a), (y, b))]
    return h(at[1] - at[0]).mean()


@pytest.mark.parametrize("n, m", SIZES)
@pytest.mark.parametrize("cost", COSTS)
def test_the_cost_is_the_integral_over_quantile_functions(n, m, cost, rng):
    "Prop T1.3, for any weights."
    x, y, a, b = problem(n, m, rng)
    assert float(by_quantiles(x, y, a, b, COSTS[cost])) == pytest.approx(solved(COSTS[cost](y - x[:, None]), a, b)[1], rel=1e-3)


def test_the_cost_of_the_smooth_plan_tends_to_it(rng):
    "Prop T1.3: the cost of Sinkhorn's plan falls to the integral with the temperature."
    x, y, a, b = problem(7, 4, rng)
    C, wanted, gaps = (y - x[:, None]).square(), by_quantiles(x, y, a, b, torch.square), []
    for tau in (1.0, 0.1, 0.02):
        F, G, *_ = sinkhorn(C / tau, a.log(), b.log(), 1e-9, 20_000)
        P = (F[:, None] + a.log()[:, None] + G + b.log() - C / tau).exp()
        gaps.append(float((P * C).sum() - wanted))
    assert gaps[0] > gaps[1] > gaps[2] > -1e-5 and gaps[2] < 0.02


def test_the_identity_needs_a_convex_cost():
    "For the square root of the distance it is wrong: to leave one input where it is, and let the other pass it, is cheaper."
    x, y = torch.tensor([0.0, 1.0]).double(), torch.tensor([1.0, 2.0]).double()
    a, h = torch.full((2,), 0.5).double(), lambda d: d.abs().sqrt()
    assert float(by_quantiles(x, y, a, a, h)) == pytest.approx(1) and solved(h(y - x[:, None]), a, a)[1] == pytest.approx(2 ** 0.5 / 2)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("tau", [1.0, 0.03, 0.003])
def test_newton_never_lets_the_dual_fall(tau, power, monkeypatch, rng):
    "Prop T5.2, from starts far from the solution: D never falls; a step satisfies (T5.2), or it is Sinkhorn's."
    from softsortlib.transport import solver
    from softsortlib.transport.gibbs import Gibbs
    search, begin, taken = solver._search, Gibbs.begin, []

    def watched(respond, dual, F, G, D, step, update, active, slope):
        found = search(respond, dual, F, G, D, step, update, active, slope)
        taken.append((F, D, step, update, active, slope, found[0], found[2]))
        return found

    def far(K, a, b):
        F, G = begin(K, a, b)
        return F + 3 * torch.randn(F.shape, generator=rng, dtype=F.dtype), G

    monkeypatch.setattr(solver, "_search", watched)
    monkeypatch.setattr(Gibbs, "begin", far)
    x, y, a, b = problem(6, 9, rng)
    *_, residual, count = solver._newton(Gibbs(x, y, tau, power), a, b, 1e-8, 500)
    assert residual <= 1e-8 and taken
    for F, D, step, update, active, slope, F_new, D_new in taken:
        slack = 1e-12 * (1 + D.abs())
        assert (D_new >= D - slack).all()
        lengths = [2.0 ** -k for k in range(11)]
        newtons = any(torch.allclose(F_new, F + t * step, rtol=0, atol=1e-10) and (D_new >= D + 1e-4 * t * slope - slack).all() for t in lengths)
        assert newtons or torch.allclose(F_new, update, rtol=0, atol=1e-10)


def test_a_step_of_newton_is_taken_for_each_element_for_itself():
    "(T5.2): the first takes half of its step, and the second, whose step leads downhill at any length, Sinkhorn's update."
    from softsortlib.transport.solver import _search
    F, G = torch.zeros(2, 1, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)
    def dual(F, G): return -(F[:, 0] - 1).square()
    step, update = torch.tensor([[2.5], [-1.0]]).double(), torch.tensor([[0.25], [0.5]]).double()
    active, slope = torch.tensor([[True], [True]]), torch.tensor([2 * 2.5, 2 * 1.0]).double()
    found, _, value = _search(lambda F, G: G, lambda F, G: dual(F, G)[:, None], F, G, dual(F, G)[:, None], step, update, active, slope[:, None])
    assert found.tolist() == [[1.25], [0.5]] and value.tolist() == [[-0.0625], [-0.25]]
