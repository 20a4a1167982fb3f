"The matrix of a plan against its definition: sizes, dtypes, weights of zero, gradients of every order."
import pytest
import torch
from torch.testing import assert_close

from softsortlib.core.permutation import SoftPermutation
from softsortlib.transport.plan_matrix import _plain_matrix, plan_matrix
from softsortlib.transport.sinkhorn_sort import SinkhornSort


def plans(rng, n, m, tau):
    "phi, x, gamma, y and tau of three plans whose entries are of size one or less."
    def numbers(*shape): return torch.randn(3, *shape, generator=rng, dtype=torch.float64)
    return numbers(n), numbers(n), numbers(m) - 3, numbers(m), torch.full((3,), tau, dtype=torch.float64)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("dtype, tol", [(torch.float64, 1e-12), (torch.float32, 3e-7)])
@pytest.mark.parametrize("tau", [1e-6, 0.1, 100.0])
@pytest.mark.parametrize("n, m", [(1, 1), (2, 65), (65, 2), (300, 130)])      # around a vector and around a unit of rows
def test_192_1_and_192_2_on_a_grid(rng, n, m, tau, dtype, tol, power):
    at = [t.requires_grad_() for t in plans(rng, n, m, tau)]
    P, want = plan_matrix(*at, power, dtype), _plain_matrix(*at, power, dtype == torch.float32)
    assert P.dtype == dtype
    assert_close(P, want, rtol=tol, atol=tol)
    G = torch.randn(P.shape, generator=rng, dtype=torch.float64).to(dtype)
    for ours, theirs in zip(torch.autograd.grad(P, at, G), torch.autograd.grad(want, at, G)):
        assert_close(ours, theirs, rtol=tol, atol=100 * tol * max(1, theirs.abs().max().item()))


@pytest.mark.parametrize("power", [1, 2])
def test_derivatives_of_every_order(rng, power):
    at = [t.requires_grad_() for t in plans(rng, 4, 3, 0.7)]
    assert torch.autograd.gradcheck(lambda *a: plan_matrix(*a, power, torch.float64), at)
    assert torch.autograd.gradgradcheck(lambda *a: plan_matrix(*a, power, torch.float64), at)


def test_the_operator_has_all_rules(rng):
    at = [t.requires_grad_() for t in plans(rng, 4, 3, 0.7)]
    torch.library.opcheck(torch.ops.softsortlib.plan_matrix, (*at, 2, False))
    over = torch.func.vmap(lambda *a: plan_matrix(*a, 2, torch.float64))(*at)
    assert_close(over, plan_matrix(*at, 2, torch.float64))


def test_what_is_not_a_number_stays_so(rng):
    phi, x, gamma, y, tau = plans(rng, 70, 70, 0.1)
    x[1, 3] = torch.nan
    P = plan_matrix(phi, x, gamma, y, tau, 2, torch.float32)
    assert P[1, :, 3].isnan().all() and P.isnan().sum() == 70
    huge = plan_matrix(phi + 1000, x, gamma, y, tau, 1, torch.float32)
    assert huge[0].isinf().any() and not huge[0].isnan().any()


@pytest.mark.parametrize("power, descending, dtype", [(1, False, torch.float32), (2, True, torch.float32), (2, False, torch.float64)])
def test_the_matrix_of_an_operator(rng, power, descending, dtype):
    "Ours and the definition of every soft permutation, the exponential of its logarithms, agree with their gradients."
    s = torch.randn(2, 150, generator=rng, dtype=dtype)
    mask = torch.arange(150) < torch.tensor([[150], [90]])
    G = torch.randn(2, 150, 150, generator=rng, dtype=dtype)
    found = []
    for dense in (lambda P: P._dense(None), lambda P: SoftPermutation._dense(P, None)):
        leaf = s.clone().requires_grad_()
        tau = torch.tensor(0.05, dtype=dtype, requires_grad=True)
        P = SinkhornSort(tau, power, descending=descending)(leaf, mask)
        M = dense(P)
        found.append((M, *torch.autograd.grad(M, (leaf, tau), G)))
    tol = 1e-9 if dtype == torch.float64 else 1e-4
    for ours, theirs in zip(*found): assert_close(ours, theirs, rtol=tol, atol=tol * theirs.abs().max().item())
    rows = torch.tensor([3, 100])
    assert_close(P[..., rows, :].to_dense(), P.to_dense()[..., rows, :])
