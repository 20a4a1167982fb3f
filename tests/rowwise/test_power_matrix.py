"The matrix of any power against its definition: dtypes, masks, extremes, gradients of every order."
import pytest
import torch
from torch.testing import assert_close

from softsortlib.rowwise.reference import Power
from softsortlib.rowwise.softsort import SoftSort, SoftSortPermutation

POWERS = (0.5, 1, 1.5, 2.0, 3.0)


def inputs(rng, n, tau, dtype=torch.float64):
    return torch.randn(3, n, generator=rng, dtype=dtype), torch.full((3,), tau, dtype=dtype)


def matrix(s, tau, p, backend="numba"):
    op = SoftSort(1.0, power=p, backend=backend)
    op.tau = tau
    return op(s).to_dense()


def definition(s, tau, p):
    gap = (s.sort(-1).values[..., None] - s[..., None, :]).abs()
    return (-gap.masked_fill(gap == 0, 1).pow(p).masked_fill(gap == 0, 0) / tau[:, None, None]).softmax(-1)


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("dtype, tol", [(torch.float64, 1e-12), (torch.float32, 3e-5)])
@pytest.mark.parametrize("tau", [1e-4, 0.1, 100.0])
@pytest.mark.parametrize("n", [1, 2, 33, 300])          # one tile, and several
def test_the_definition_on_a_grid(rng, n, tau, dtype, tol, p):
    s, tau = inputs(rng, n, tau)
    G = torch.randn(3, n, n, generator=rng, dtype=s.dtype)
    low = [a.to(dtype).requires_grad_() for a in (s, tau)]
    high = [a.detach().double().requires_grad_() for a in low]
    P, Q = matrix(*low, p), definition(*high, p)
    assert_close(P.double(), Q, rtol=0, atol=tol)
    assert_close(P.sum(-1), torch.ones_like(P[..., 0]))
    for ours, theirs in zip(*(torch.autograd.grad(A, leaves, G.to(dtype).to(A.dtype), allow_unused=True, materialize_grads=True) for A, leaves in ((P, low), (Q, high)))):
        assert_close(ours.double(), theirs, rtol=tol, atol=tol * max(1, theirs.abs().max().item()))


@pytest.mark.parametrize("p", POWERS[3:])
def test_scores_whose_power_overflows(p):
    s = torch.tensor([[0.0, 1.0, 1e30, -3e38, 1.0 + 1e-3]], requires_grad=True)
    P, plain = SoftSort(0.5, power=p, backend="numba")(s).to_dense(), SoftSortPermutation(s, 0.5, Power(p), False, s.dtype).to_dense()
    G = torch.arange(25.0).view(1, 5, 5)
    assert_close(P, plain)
    ours, theirs = (torch.autograd.grad(Q, s, G)[0] for Q in (P, plain))
    assert_close(ours, theirs)
    assert ours.isfinite().all()


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("padding", [0.0, float("nan"), float("inf"), 1e30])
def test_padded_elements_have_no_part(rng, p, padding):
    n, real = 400, 250
    s = torch.randn(2, n, generator=rng, dtype=torch.float64)
    mask = torch.arange(n) < torch.tensor([[n], [real]])
    s = s.masked_fill(~mask, padding).requires_grad_()
    P = SoftSort(0.1, power=p)(s, mask)
    G = torch.randn(2, n, n, generator=rng, dtype=torch.float64)
    short = s.detach()[1:, :real].requires_grad_()
    alone = SoftSortPermutation(short, 0.1, Power(p), False, s.dtype)
    assert_close(P.to_dense()[1, :real, :real], alone.to_dense()[0])
    assert P.to_dense()[1, :real, real:].eq(0).all() and P.to_dense()[1].isfinite().all()
    ours = torch.autograd.grad(P.to_dense(), s, G)[0]
    theirs = torch.autograd.grad(alone.to_dense(), short, G[1:, :real, :real])[0]
    assert_close(ours[1, :real], theirs[0])
    assert ours[1, real:].eq(0).all()


def test_a_gradient_that_is_not_a_number_comes_through(rng):
    s, tau = inputs(rng, 70, 1e-3)
    s.requires_grad_()
    G = torch.zeros(3, 70, 70, dtype=torch.float64)
    G[1, 2, 3] = torch.nan
    gs = torch.autograd.grad(matrix(s, tau, 2), s, G)[0]
    assert gs[1].isnan().any() and gs[0].eq(0).all()


@pytest.mark.parametrize("p", [2.0, 3.0])
def test_derivatives_of_every_order(rng, p):
    leaves = [a.requires_grad_() for a in inputs(rng, 6, 0.7)]
    for backend in ("numba", "torch"):
        assert torch.autograd.gradcheck(lambda *a: matrix(*a, p, backend), leaves)
        assert torch.autograd.gradgradcheck(lambda *a: matrix(*a, p, backend), leaves)


@pytest.mark.parametrize("p", [1.5, 2.0])
def test_vmap_and_some_rows(rng, p):
    s, tau = inputs(rng, 30, 0.3)
    over = torch.func.vmap(lambda s, tau: matrix(s, tau, p))(s, tau)
    assert_close(over, definition(s, tau, p))
    many = torch.randn(600, generator=rng)
    P = SoftSort(0.01, power=p)(many)
    assert_close(P[..., [3, 500], :].to_dense(), P.to_dense()[[3, 500]])
    descending = SoftSort(0.01, power=p, descending=True)(many)
    assert_close(descending.to_dense(), P.to_dense().flip(-2))


def test_nothing_of_its_size_is_kept(rng):
    s, tau = inputs(rng, 300, 0.1)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda a: sizes.append(a.numel()) or a, lambda a: a):
        matrix(s.requires_grad_(), tau, 2)
    assert sizes and max(sizes) <= s.numel()


@pytest.mark.parametrize("p", (1.7, 2.0, 3.0))
@pytest.mark.parametrize("scores", ([0.5, -1.0, 2.0], [1.0, 0.0, 0.0, -1.0]))
def test_second_derivatives_of_windows_at_a_tie(rng, scores, p):
    "The derivative of a square has a slope at a tie as well; that of another power has none, or an infinite one, which counts as none."
    s, tau = torch.tensor([scores], dtype=torch.float64, requires_grad=True), torch.full((1,), 0.5, dtype=torch.float64)
    x, G = torch.randn(2, 1, len(scores), 2, generator=rng, dtype=torch.float64)
    def second(f):
        g, = torch.autograd.grad((f(s) @ x * G).sum(), s, create_graph=True)
        return torch.autograd.grad(g.cos().sum(), s)[0]
    def op(s): return SoftSort(tau, power=p, backend="numba")(s)
    def by_definition(s): return SoftSortPermutation(s, tau[:, None], Power(p), False, s.dtype).to_dense()
    assert_close(second(op), second(by_definition))
