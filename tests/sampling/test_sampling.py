"""Estimators by sampling: mixtures of orders, perturbed sorts, regrets, differences, Plackett-Luce policies, each against enumerated truth."""
import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from softsortlib import soft_rank
from softsortlib.core import permutation_matrix, plackett_luce_log_prob
from softsortlib.ranks import GaussianRank
from softsortlib.sampling import BlackboxRank, ImplicitRank, OrderPermutation, Perturbed, plackett_luce_reward, ranking_regret


def seeded(seed=0): return torch.Generator().manual_seed(seed)


def orders_of(n): return torch.tensor(list(itertools.permutations(range(n))))


def near(found, exact, sigmas=4.5):
    "Whether the mean of estimates (repeats, ...) is the exact value within its standard error."
    error = found.std(0) / len(found) ** 0.5
    return ((found.mean(0) - exact).abs() <= sigmas * error + 1e-12).all()


def gradients(f, s, repeats): return torch.stack([torch.autograd.grad(f(), s)[0] for _ in range(repeats)])


@pytest.mark.parametrize("balanced", [True, False])
def test_products_are_those_of_the_matrix(balanced, rng):
    "Prop S1.1 and (S1.2), values and gradients of payload and tilt, for batches, extra batches and chosen rows."
    orders = torch.stack([torch.stack([torch.randperm(6, generator=rng) for _ in range(3)]) for _ in range(5)])
    tilt = torch.zeros(5, 3, dtype=torch.float64)
    x = torch.randn(2, 3, 6, 4, generator=rng, dtype=torch.float64)
    def lazy(tilt, x):
        t = tilt - tilt.mean(0) if balanced else tilt
        P = OrderPermutation(orders, orders[0], t, balanced, torch.float64)
        return P @ x, P.mT @ x, P[..., [4, 1], :] @ x, P[..., 1:3, :].mT @ x[..., :2, :], P.to_dense(), P.log_prob(orders[1])
    def dense(tilt, x):
        t = tilt - tilt.mean(0) if balanced else tilt
        D = (permutation_matrix(orders).double() * (1 / 5 + t)[..., None, None]).sum(0)
        log = D.gather(-1, orders[1][..., None])[..., 0].log()
        return D @ x, D.mT @ x, D[..., [4, 1], :] @ x, D[..., 1:3, :].mT @ x[..., :2, :], D, log
    for value, want in zip(lazy(tilt, x), dense(tilt, x)): assert_close(value, want)
    args = (tilt.requires_grad_(), x.requires_grad_())
    for value, want in zip(lazy(*args), dense(*args)):
        for a, b in zip(torch.autograd.grad(value.square().sum(), args, allow_unused=True, retain_graph=True), torch.autograd.grad(want.square().sum(), args, allow_unused=True, retain_graph=True)):
            if b is not None: assert_close(a, b)


def test_what_was_never_drawn_has_no_likelihood_and_no_slope():
    "Entries are shares of the draws, and their logarithms -inf where there was none, with a finite gradient for the others."
    orders = torch.tensor([[0, 1, 2], [0, 2, 1], [0, 1, 2], [0, 1, 2]])
    tilt = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    P = OrderPermutation(orders, orders[0], tilt, balanced=False, dtype=torch.float64)
    shares = torch.tensor([[1, 0, 0], [0, 0.75, 0.25], [0, 0.25, 0.75]], dtype=torch.float64)
    assert_close(P.to_dense(), shares)
    for target in ([0, 1, 2], [1, 2, 0], [2, 2, 1]):
        log_p = P.log_prob(torch.tensor(target))
        assert_close(log_p, shares[range(3), target].log())
        drawn = log_p.isfinite()
        if not drawn.any(): continue
        slope, = torch.autograd.grad(log_p[drawn].sum(), tilt)
        want = sum((orders[:, i] == target[i]) / shares[i, target[i]] for i in range(3) if drawn[i])
        assert_close(slope, want.double())


def test_two_draws_are_enough():
    s = torch.tensor([0.0, 1.0, 3.0])
    assert Perturbed(1.0, samples=2, generator=seeded())(s).to_dense().sum(-1).eq(1).all()


@pytest.mark.parametrize("baseline", [True, False])
@pytest.mark.parametrize("n", [2, 4, 6])
def test_score_function_of_orders_is_unbiased(n, baseline, rng):
    "Prop S2.1, S2.2 and S2.3: expected ranks and a discontinuous reward, to scores and temperature."
    s = torch.randn(n, generator=rng, dtype=torch.float64, requires_grad=True)
    tau = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    orders, g = orders_of(n), torch.randn(n, generator=rng, dtype=torch.float64)
    p = plackett_luce_log_prob(s / tau, orders).exp()
    exact = p @ (g[orders] @ torch.arange(1.0, n + 1).double()) + p @ (orders[:, 0] < n // 2).double()
    exact = torch.cat([a.reshape(-1) for a in torch.autograd.grad(exact, (s, tau))])
    draw = seeded(3)
    def once():
        P = Perturbed(tau, 20, generator=draw, descending=True, baseline=baseline)(s)
        value = (P.mT @ torch.arange(1.0, n + 1).double()) @ g + P.expect((P.orders[..., 0] < n // 2).double())
        return torch.cat([a.reshape(-1) for a in torch.autograd.grad(value, (s, tau))])
    assert near(torch.stack([once() for _ in range(300)]), exact)


def test_normal_noise_has_the_gradient_of_gaussian_ranks(rng):
    s = torch.randn(2, 5, generator=rng, dtype=torch.float64, requires_grad=True)
    tau = torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=True)
    g = torch.randn(2, 5, generator=rng, dtype=torch.float64)
    exact = torch.autograd.grad((GaussianRank(tau)(s) * g).sum(), (s, tau))
    draw = seeded(1)
    found = [torch.autograd.grad(((Perturbed(tau, 50, "normal", draw)(s).mT @ torch.arange(1.0, 6.0).double()) * g).sum(), (s, tau)) for _ in range(300)]
    for each, want in zip(zip(*found), exact): assert near(torch.stack(each), want)


@pytest.mark.parametrize("noise", ["gumbel", "normal"])
def test_second_derivatives_are_unbiased(noise, rng):
    "(S2.3), twice; the truth is enumerated, or that of Gaussian ranks."
    s, g = torch.randn(3, generator=rng, dtype=torch.float64, requires_grad=True), torch.randn(3, generator=rng, dtype=torch.float64)
    orders, draw = orders_of(3), seeded(2)
    def hessian(value):
        [first] = torch.autograd.grad(value, s, create_graph=True)
        return torch.stack([torch.autograd.grad(a, s, retain_graph=True)[0] for a in first])
    exact = {"gumbel": plackett_luce_log_prob(s, orders).exp() @ (3.0 - orders.argsort(-1)).double() @ g, "normal": GaussianRank(1.0)(s) @ g}[noise]
    found = torch.stack([hessian((Perturbed(1.0, 100, noise, draw)(s).mT @ torch.arange(1.0, 4.0).double()) @ g) for _ in range(200)])
    assert near(found, hessian(exact)) and found.std() > 0


def test_balanced_weights_keep_row_sums(rng):
    s = torch.randn(5, generator=rng, dtype=torch.float64, requires_grad=True)
    D = Perturbed(1.0, 8, generator=seeded())(s).to_dense()
    for sums in (D.sum(-1), D.sum(-2)):
        for total in sums: assert torch.autograd.grad(total, s, retain_graph=True)[0].abs().max() < 1e-12


def test_a_gumbel_score_is_quieter_than_its_noise(rng):
    "Prop S2.3: the score of the order has no larger variance than the score of the noise, for one and the same noise."
    s = torch.randn(4, generator=rng, dtype=torch.float64, requires_grad=True)
    z = -torch.empty(20_000, 4, dtype=torch.float64).exponential_(generator=seeded(5)).log()
    orders = (s.detach() + z).argsort(-1, descending=True)
    first = (orders[:, 0] == 0).double()[:, None]
    noise = first * (1 - (-z).exp())                                                   # nabla nu for Gumbel
    each = s.expand(20_000, 4).detach().requires_grad_()
    order = first * torch.autograd.grad(plackett_luce_log_prob(each, orders).sum(), each)[0]
    assert ((noise.mean(0) - order.mean(0)).abs() < 5 * (noise.var(0) / 20_000).sqrt()).all() and (order.var(0) < noise.var(0)).all()


def test_orders_need_linear_memory(rng):
    "A hundred thousand items: a matrix would be eighty gigabytes."
    s = torch.randn(100_000, generator=rng, requires_grad=True)
    P = Perturbed(0.1, 4, generator=seeded())(s)
    assert torch.autograd.grad((P @ s).square().sum() + (P.mT @ s.detach()).sum(), s)[0].isfinite().all()


def test_regret_is_non_negative_and_its_gradient_the_mean_rank(rng):
    "Prop S3.1, with masks; gradcheck holds draw by draw."
    s, mask = torch.randn(3, 5, generator=rng, dtype=torch.float64), torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 1, 0, 0]]).bool()
    ranks = s.masked_fill(~mask, math.inf).argsort(-1).argsort(-1).double() + 1
    z = s.clone().requires_grad_()
    def f(z, noise="gumbel"): return ranking_regret(z, ranks.flip(0).masked_fill(~mask, 0), mask, samples=30, noise=noise, generator=seeded(2))
    for noise in ("gumbel", "normal"):
        assert torch.autograd.gradcheck(lambda z: f(z, noise), z)
        assert (ranking_regret(s, ranks.masked_fill(~mask, 0), mask, generator=seeded(1), noise=noise) >= 0).all()
    short = ranking_regret(s[1, mask[1]], ranks[1, mask[1]], generator=seeded(1), samples=40_000)
    assert_close(short, ranking_regret(s, ranks.masked_fill(~mask, 0), mask, generator=seeded(1), samples=40_000)[1], rtol=0.05, atol=0.02)


def test_regret_has_the_hessian_of_the_expectation(rng):
    s, y, draw = torch.randn(3, generator=rng, dtype=torch.float64, requires_grad=True), torch.tensor([2.0, 3.0, 1.0]).double(), seeded()
    orders = orders_of(3)
    want = torch.autograd.functional.jacobian(lambda s: plackett_luce_log_prob(s, orders).exp() @ (3.0 - orders.argsort(-1)).double(), s.detach())
    def hessian():
        [first] = torch.autograd.grad(ranking_regret(s, y, samples=100, generator=draw), s, create_graph=True)
        return torch.stack([torch.autograd.grad(a, s, retain_graph=True)[0] for a in first])
    assert near(torch.stack([hessian() for _ in range(200)]), want)


@pytest.mark.parametrize("step", [0.05, 1.0, 20.0])
def test_blackbox_is_the_gradient_of_its_ramp(step, rng):
    "Prop S4.1, by central differences of (S4.2) at a point of differentiability, descending and masked too."
    s, g = (torch.randn(4, 6, generator=rng, dtype=torch.float64) for _ in range(2))
    places = torch.arange(1.0, 7.0).double()
    def ramp(s): return ((s.sort(-1).values - (s - step * g).sort(-1).values) @ places).sum() / step
    z = s.clone().requires_grad_()
    [found] = torch.autograd.grad((BlackboxRank(step)(z) * g).sum(), z)
    want = torch.stack([(ramp(s + e) - ramp(s - e)) / 2e-6 for e in 1e-6 * torch.eye(24).double().reshape(24, 4, 6)]).reshape(4, 6)
    assert_close(found, want, rtol=1e-5, atol=1e-6)
    [down] = torch.autograd.grad((BlackboxRank(step, descending=True)(z) * -g).sum(), z)
    assert_close(down, found)
    mask = torch.tensor([1, 1, 0, 1, 0, 1]).bool()
    padded, short = s.masked_fill(~mask, math.nan).requires_grad_(), s[:, mask].requires_grad_()
    [a] = torch.autograd.grad((BlackboxRank(step)(padded, mask) * g).sum(), padded)
    [b] = torch.autograd.grad((BlackboxRank(step)(short) * g[:, mask]).sum(), short)
    assert_close(a[:, mask], b) and not a[:, ~mask].any()


def test_implicit_rank_estimates_its_difference(rng):
    "Prop S4.2 against enumeration."
    s, g, draw, orders = torch.randn(4, generator=rng, dtype=torch.float64), torch.randn(4, generator=rng, dtype=torch.float64), seeded(), orders_of(4)
    def mu(z): return plackett_luce_log_prob(z, orders).exp() @ (4.0 - orders.argsort(-1)).double()
    for step in (0.3, 3.0):
        z = s.clone().requires_grad_()
        found = gradients(lambda: ImplicitRank(1.0, step, 20, generator=draw)(z) @ g, z, 300)
        assert near(found, (mu(s) - mu(s - step * g)) / step)
    assert soft_rank(s, method=ImplicitRank(1.0, generator=draw)).shape == (4,)


def published_pl_rank(s, rho, theta, top):
    "(S5.2) read aloud, item by item and place by place."
    n, K, G = len(s), len(theta), torch.zeros(len(top), len(s), dtype=torch.float64)
    for k, order in enumerate(top.tolist()):
        r = [theta[i] * rho[order[i]] for i in range(K)]
        for d in range(n):
            p = order.index(d) if d in order else K
            G[k, d] = sum(r[p + 1:])
            left = set(range(n))
            for i in range(min(p, K - 1) + 1):
                Z = sum(s[j].exp() for j in left)
                G[k, d] += s[d].exp() / Z * (rho[d] * theta[i] - sum(r[i:]))
                left.discard(order[i])
    return G.mean(0)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_policy_slope_is_the_formula(k, rng):
    "(S5.3) is (S5.2): the fast slope against loops, on the same sample."
    from softsortlib.core import gumbel_noise
    s, rho = torch.randn(6, generator=rng, dtype=torch.float64), torch.rand(6, generator=rng, dtype=torch.float64) * 4 - 1
    theta = 1 / (torch.arange(k) + 2.0).double().log2()
    z = s.clone().requires_grad_()
    value = plackett_luce_reward(z, rho, k=k, samples=7, generator=seeded(9), baseline=False)
    top = (s + gumbel_noise((7, 6), seeded(9), torch.float64)).topk(k).indices
    assert_close(value.detach(), (rho[top] * theta).sum(-1).mean())
    assert_close(torch.autograd.grad(value, z)[0], published_pl_rank(s, rho, theta, top))


@pytest.mark.parametrize("baseline", [True, False])
@pytest.mark.parametrize("n, k", [(2, 2), (4, 1), (5, 2), (6, 6)])
def test_policy_gradient_is_unbiased(n, k, baseline, rng):
    "Prop S5.1 and S5.2 against enumeration, gains of both signs."
    s, rho, orders, draw = torch.randn(n, generator=rng, dtype=torch.float64, requires_grad=True), torch.randn(n, generator=rng, dtype=torch.float64), orders_of(n), seeded(4)
    theta = torch.rand(k, generator=rng, dtype=torch.float64)
    [exact] = torch.autograd.grad(plackett_luce_log_prob(s, orders).exp() @ (rho[orders[:, :k]] @ theta), s)
    found = gradients(lambda: plackett_luce_reward(s, rho, discounts=theta, k=k, samples=5, generator=draw, baseline=baseline), s, 400)
    assert near(found, exact)
    if baseline: assert found.std(0).mean() < 1e-10 if k == 1 else found.std(0).mean() > 0
    if baseline:
        shifted = gradients(lambda: plackett_luce_reward(s, rho + 50, discounts=theta, k=k, samples=5, generator=seeded(4), baseline=True), s, 1)
        alike = gradients(lambda: plackett_luce_reward(s, rho, discounts=theta, k=k, samples=5, generator=seeded(4), baseline=True), s, 1)
        assert_close(shifted, alike, rtol=1e-6, atol=1e-9)                 # a constant gain is worth nothing to anyone


def test_policy_of_extreme_scores_and_masks(rng):
    s = torch.tensor([[1e4, 0.0, -1e4, 3.0], [0.0, 0.0, 0.0, 0.0]], requires_grad=True)
    mask = torch.tensor([[True, True, True, False], [False, False, False, False]])
    for baseline in (True, False):
        value = plackett_luce_reward(s, torch.tensor([1.0, 2.0, 4.0, 9.0]), mask, generator=seeded(), baseline=baseline)
        [g] = torch.autograd.grad(value.sum(), s)
        assert value.isfinite().all() and value[1] == 0 and g.isfinite().all() and not g[~mask].any()
    many = torch.randn(50_000, generator=rng, requires_grad=True)
    assert torch.autograd.grad(plackett_luce_reward(many, many.detach().relu(), k=10, samples=4, generator=seeded()), many)[0].isfinite().all()


def test_second_derivatives_are_right_or_refused(rng):
    s = torch.randn(4, generator=rng, dtype=torch.float64, requires_grad=True)
    for value in (BlackboxRank(1.0)(s).square().sum(), ImplicitRank(1.0, generator=seeded())(s).square().sum(), plackett_luce_reward(s, torch.ones(4), k=2, generator=seeded())):
        [first] = torch.autograd.grad(value, s, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate|require grad"): torch.autograd.grad(first.sum(), s)


def test_noise_is_reproducible_and_leaves_torch_alone(rng):
    s, state = torch.randn(3, 5, generator=rng), torch.get_rng_state()
    calls = [lambda g: Perturbed(generator=g)(s).to_dense(), lambda g: ranking_regret(s, s, generator=g), lambda g: ImplicitRank(tau=1.0, generator=g)(s), lambda g: plackett_luce_reward(s, s, generator=g)]
    for call in calls:
        g = seeded(1)
        a, b, c = call(seeded(1)), call(g), call(g)
        assert torch.equal(a, b) and not torch.equal(b, c)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("make, error, says", [
    (lambda: Perturbed(samples=1), ValueError, "samples must be"),
    (lambda: Perturbed(noise="cauchy"), ValueError, "noise must be one of"),
    (lambda: Perturbed(generator=1), TypeError, "generator must be"),
    (lambda: Perturbed(baseline=1), TypeError, "baseline must be True or False"),
    (lambda: ImplicitRank(step=0.0), ValueError, "step must be positive"),
    (lambda: ranking_regret(torch.ones(3), torch.ones(2)), ValueError, "ranks must be"),
    (lambda: plackett_luce_reward(torch.ones(3), [1, 2, 3]), TypeError, "gains must be a tensor"),
    (lambda: plackett_luce_reward(torch.ones(3), torch.ones(2)), ValueError, "gains must broadcast"),
    (lambda: plackett_luce_reward(torch.ones(3), torch.ones(3), k=0), ValueError, "k must be"),
    (lambda: plackett_luce_reward(torch.ones(3), torch.ones(3), discounts=torch.ones(2)), ValueError, "discounts must be"),
    (lambda: Perturbed(samples=5)(torch.ones(3)).expect(torch.ones(4)), ValueError, "values must be"),
])
def test_errors_name_the_argument(make, error, says):
    with pytest.raises(error, match=says): make()


@pytest.mark.parametrize("masked", (False, True))
def test_interpolated_gradients_under_torch_func(masked, rng):
    "grad and vmap give what autograd gives; the second derivative says that there is none."
    s, w = torch.randn(3, 6, generator=rng), torch.randn(6, generator=rng)
    mask = torch.rand(3, 6, generator=rng) < 0.6 if masked else torch.ones(3, 6, dtype=torch.bool)
    def total(s, mask): return (BlackboxRank(0.7)(s, mask) * w).sum()
    leaf = s.clone().requires_grad_()
    right, = torch.autograd.grad(total(leaf, mask), leaf)
    assert_close(torch.func.grad(total)(s, mask), right)
    assert_close(torch.func.vmap(torch.func.grad(total))(s, mask), right)
    g, = torch.autograd.grad(total(leaf, mask).square(), leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match="differentiated twice"): torch.autograd.grad(g.sum(), leaf)


def test_noise_has_the_scale_of_the_temperature():
    s = torch.randn(4, 9, generator=seeded(), dtype=torch.float64)
    assert torch.equal(ImplicitRank(1.0, generator=seeded())(s), ImplicitRank(64.0, generator=seeded())(64 * s))
    assert not torch.equal(ImplicitRank(1.0, generator=seeded())(s), ImplicitRank(64.0, generator=seeded())(s))


def test_the_tangent_of_a_batch_of_regrets_is_that_of_each_set():
    s, v = torch.randn(2, 3, 5, generator=seeded(), dtype=torch.float64)
    def regret(s): return ranking_regret(s, torch.arange(1.0, 6).double().expand(3, 5), generator=seeded())
    _, tangent = torch.func.jvp(regret, (s,), (v,))
    s.requires_grad_()
    gradient, = torch.autograd.grad(regret(s).sum(), s)
    torch.testing.assert_close(tangent, (gradient * v).sum(-1))
