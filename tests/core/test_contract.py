"""The contract of DESIGN in every operator of the library: shapes, dtypes, directions, masks, ties, NaN, transforms, errors."""
import math

import pytest
import torch
from torch.testing import assert_close

import softsortlib
from softsortlib import Operator, get_operator, is_row_stochastic

NAMES = sorted(Operator.names)
SORTS = [n for n in NAMES if not n.startswith("gumbel")]
NETWORKS = ("bitonic", "odd_even", "network")
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
TAU = {name: 0.3 for name in SORTS}


def scores(*shape, rng, dtype=torch.float64): return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)


def distinct(batch, n, rng):
    "Scores at least 1 apart, in random order."
    return torch.stack([torch.randperm(n, generator=rng) for _ in range(batch)]).double()


def test_every_operator_of_the_table_is_here():
    assert {"softsort", "neuralsort", "stochastic", "sinkhorn", "bitonic", "odd_even"} <= set(NAMES) | {"stochastic"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 3, 5), (1, 1)])
@pytest.mark.parametrize("name", SORTS)
def test_shapes_and_dtypes(name, shape, dtype, rng):
    s = scores(*shape, rng=rng, dtype=dtype)
    P = get_operator(name, tau=TAU[name])(s)
    n = shape[-1]
    assert P.shape == (*shape, n) and P.dtype == dtype and P.device == s.device
    assert is_row_stochastic(P, 1e-5 if dtype.itemsize > 2 else 2e-2).all()
    tol = dict(rtol=2e-2, atol=2e-2) if dtype.itemsize == 2 else dict(rtol=1e-4, atol=1e-5)
    x = scores(*shape, 2, rng=rng, dtype=dtype)
    D = P.to_dense().double()
    assert (P @ x).dtype == (P.mT @ x).dtype == P.log_prob(s.argsort()).dtype == dtype
    assert_close((P @ x).double(), D @ x.double(), **tol)
    assert_close((P.mT @ x).double(), D.mT @ x.double(), **tol)
    assert_close((P[..., : (n + 1) // 2, :] @ x).double(), (D @ x.double())[..., : (n + 1) // 2, :], **tol)
    assert_close(P.log_prob(P.hard()).double().exp(), D.gather(-1, P.hard()[..., None])[..., 0], **tol)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("name", SORTS)
def test_hard_limit_and_direction(name, descending, rng):
    "With tau far below the gaps every operator is the hard sort, both ways, and its hard() is argsort."
    s = distinct(8, 7, rng)
    P = get_operator(name, tau=1e-3, descending=descending)(s)
    assert torch.equal(P.hard(), s.argsort(descending=descending))
    assert_close(P @ s, s.sort(descending=descending).values, atol=2e-2, rtol=0)


@pytest.mark.parametrize("name", SORTS)
def test_directions_mirror_each_other(name, rng):
    s = scores(3, 6, rng=rng)
    up, down = (get_operator(name, tau=0.5, descending=d)(s).to_dense() for d in (False, True))
    assert_close(up, down.flip(-2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SORTS)
def test_permuting_the_scores_permutes_the_columns(name, rng):
    s, perm = scores(2, 7, rng=rng), torch.randperm(7, generator=rng)
    if name in NETWORKS: pytest.skip("a network compares lanes: its output depends on the order of its input")
    P, Q = (get_operator(name, tau=0.5)(z).to_dense() for z in (s, s[..., perm]))
    assert_close(Q, P[..., perm], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", SORTS)
def test_masked_sets_equal_short_sets(name, rng):
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [1, 0, 0, 0, 0]]).bool()
    s = scores(3, 5, rng=rng).masked_fill(~mask, math.nan)
    x = scores(3, 5, rng=rng).masked_fill(~mask, math.inf)
    for descending in (False, True):
        op = get_operator(name, tau=0.5, descending=descending)
        P = op(s, mask)
        for b in range(3):
            n = int(mask[b].sum())
            short = op(s[b, mask[b]])
            assert_close((P @ x)[b, :n], short @ x[b, mask[b]], rtol=1e-5, atol=1e-6)
            assert not (P @ x)[b, n:].any() and not P.to_dense()[b, n:].any() and not P.to_dense()[b][:, ~mask[b]].any()
            assert torch.equal(P.hard()[b, :n], mask[b].nonzero()[:, 0][short.hard()])
            if name != "sinkhorn": assert sorted(P.hard()[b].tolist()) == list(range(5))  # a transport plan may have two rows with one argmax


@pytest.mark.parametrize("name", SORTS)
def test_gradients_of_masked_sets_are_finite(name, rng):
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    s = scores(2, 4, rng=rng).masked_fill(~mask, 1e30).requires_grad_()
    P = get_operator(name, tau=0.5)(s, mask)
    loss = (P @ torch.ones(2, 4, 2).double().cumsum(1)).square().sum() + P.log_prob(P.hard()).sum() + P.to_dense().square().sum()
    [g] = torch.autograd.grad(loss, s)
    assert g.isfinite().all() and not g[~mask].any() and g[mask].any()


@pytest.mark.parametrize("name", SORTS)
def test_ties_give_finite_symmetric_gradients(name, rng):
    s = torch.tensor([[1.0, 0.0, 1.0, 1.0, -2.0]]).double().requires_grad_()
    P = get_operator(name, tau=0.5)(s)
    if name not in NETWORKS: assert_close(P.to_dense()[..., 0], P.to_dense()[..., 2])
    [g] = torch.autograd.grad((P @ s).square().sum() + (P.to_dense() ** 3).sum(), s)
    assert g.isfinite().all() and g.any()
    if name not in NETWORKS: assert_close(g[0, 0], g[0, 2]); assert_close(g[0, 0], g[0, 3])
    assert sorted(P.hard()[0].tolist()) == list(range(5)) or name == "sinkhorn"


@pytest.mark.parametrize("name", SORTS)
@pytest.mark.filterwarnings("ignore:.*converge.*")
def test_nan_stays_in_its_own_row_of_the_batch(name, rng):
    s = scores(3, 5, rng=rng)
    clean = get_operator(name, tau=0.5)(s) @ s
    s[1, 2] = math.nan
    P = get_operator(name, tau=0.5)(s)
    assert_close((P @ s)[[0, 2]], clean[[0, 2]])
    assert not (P @ s)[1].isfinite().all()


@pytest.mark.parametrize("name", SORTS)
def test_learnable_temperature_of_each_set(name, rng):
    s = scores(2, 5, rng=rng)
    tau = torch.nn.Parameter(torch.tensor([0.2, 1.5], dtype=torch.float64))
    op = get_operator(name, tau=tau)
    assert list(op.parameters()) == [tau]
    out = op(s) @ s
    for b in range(2): assert_close(out[b], get_operator(name, tau=tau[b].item())(s[b]) @ s[b], rtol=1e-6, atol=1e-7)
    [g] = torch.autograd.grad(out.square().sum(), tau)
    numeric = torch.stack([((get_operator(name, tau=t.item() + 1e-4)(s[b]) @ s[b]).square().sum() - (get_operator(name, tau=t.item() - 1e-4)(s[b]) @ s[b]).square().sum()) / 2e-4
                           for b, t in enumerate(tau.detach())])
    assert_close(g, numeric, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", SORTS)
def test_the_gradient_is_the_derivative(name, rng):
    s, x = scores(2, 5, rng=rng).requires_grad_(), scores(2, 5, rng=rng).requires_grad_()
    target = s.argsort(descending=True)
    kwargs = dict(tolerance=1e-12, max_iterations=20_000) if name == "sinkhorn" else {}
    op = get_operator(name, tau=0.7, **kwargs)
    for f in (lambda s, x: op(s) @ x, lambda s, x: op(s).mT @ x, lambda s, x: op(s).log_prob(target), lambda s, x: op(s).to_dense()):
        torch.autograd.gradcheck(f, (s, x) if f(s, x).grad_fn is not None else (s,), atol=1e-5)


@pytest.mark.parametrize("name", SORTS)
def test_compiles_without_a_break(name, rng):
    if name == "sinkhorn": pytest.skip("iterates until convergence, which depends on the data")
    s = scores(3, 5, rng=rng, dtype=torch.float32)
    op = get_operator(name, tau=0.5)
    def f(s):
        P = op(s)
        return P @ s, P.log_prob(s.argsort()), P.to_dense()
    for a, b in zip(torch.compile(f, fullgraph=True, backend="aot_eager")(s), f(s)): assert_close(a, b)


@pytest.mark.parametrize("name", SORTS)
def test_transforms_of_functions(name, rng):
    if name == "sinkhorn": pytest.skip("iterates until convergence, which depends on the data")
    s = scores(3, 5, rng=rng)
    op = get_operator(name, tau=0.5)
    f = lambda s: (op(s) @ s).square().sum()
    z = s.clone().requires_grad_()
    assert_close(torch.func.vmap(torch.func.grad(f))(s), torch.autograd.grad(f(z), z)[0])


@pytest.mark.parametrize("name", NAMES)
def test_repr_shows_the_parameters(name):
    assert "tau=0.25" in repr(get_operator(name, tau=0.25))


@pytest.mark.parametrize("bad, error, says", [
    (lambda op: op([3.0, 1.0]), TypeError, "list"),
    (lambda op: op(torch.tensor([3, 1])), TypeError, "int64"),
    (lambda op: op(torch.tensor(1.0)), ValueError, r"\(\)"),
    (lambda op: op(torch.empty(2, 0)), ValueError, r"\(2, 0\)"),
    (lambda op: op(torch.ones(2, 3), torch.ones(2, 4).bool()), ValueError, "mask"),
    (lambda op: op(torch.ones(2, 3), torch.ones(2, 3)), TypeError, "bool"),
    (lambda op: type(op)(tau=0.0), ValueError, "tau"),
    (lambda op: type(op)(tau=-1.0), ValueError, "tau"),
    (lambda op: type(op)(tau=math.nan), ValueError, "tau"),
    (lambda op: type(op)(tau=torch.tensor([0.1, 0.2, 0.3]))(torch.ones(2, 4)), ValueError, "tau"),
])
@pytest.mark.parametrize("name", ["softsort", "neuralsort", "sinkhorn"])
def test_errors_name_the_argument(name, bad, error, says):
    with pytest.raises(error, match=says): bad(get_operator(name, tau=0.5))


def test_a_wrong_name_suggests_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'softsort'"): get_operator("softsrot")
