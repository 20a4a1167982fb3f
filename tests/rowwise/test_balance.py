"""Balancing as one sequence of vectors, by the loops of the CPU and in plain torch, against products of the dense matrix."""
import pytest
import torch
from torch.testing import assert_close

from softsortlib import SoftSort, losses
from softsortlib.rowwise.balance import in_order, laplace_balanced


def by_products(P, x, iterations):
    "The definition: divide columns and rows by their sums."
    P = P.to_dense()
    u = x.new_ones(x.shape)
    def inverse(a): return a.masked_fill(a <= 0, float("inf")).reciprocal()
    for _ in range(iterations):
        v = inverse((P.mT @ u[..., None])[..., 0])
        u = inverse((P @ v[..., None])[..., 0])
    return u * (P @ (v * x)[..., None])[..., 0]


@pytest.mark.parametrize("backend", ["numba", "torch", None])
@pytest.mark.parametrize("n", [2, 3, 40, 300])
@pytest.mark.parametrize("masked, descending", [(False, True), (True, False), (True, True)])
def test_the_definition(backend, n, masked, descending, rng):
    s = torch.randn(4, n, generator=rng, dtype=torch.float64)
    s[0, : n // 2] = 0.25
    mask = torch.rand(4, n, generator=rng) < 0.7 if masked else None
    if masked: mask[:, 0] = True
    s, x = s.requires_grad_(), torch.rand(4, n, generator=rng, dtype=torch.float64, requires_grad=True)
    tau = torch.tensor([0.05, 0.3, 1.0, 30.0], dtype=torch.float64, requires_grad=True)
    G = torch.randn(4, n, generator=rng, dtype=torch.float64)
    if masked: G = G * (torch.arange(n) < mask.sum(-1, keepdim=True))                         # what stands behind the real rows is nobody's
    P = SoftSort(tau, descending=descending, backend=backend)(s, mask)
    ours, theirs = laplace_balanced(in_order(P), x, 4), by_products(SoftSort(tau, descending=descending)(s, mask), x, 4)
    assert_close(ours * (G != 0), theirs * (G != 0))
    found, wanted = (torch.autograd.grad(y, (s, x, tau), G, retain_graph=True) for y in (ours, theirs))
    for a, b in zip(found, wanted): assert_close(a, b, rtol=1e-8, atol=1e-9 * max(1, b.abs().max().item()))


def test_other_matrices_are_balanced_by_products():
    s = torch.linspace(-1, 1, 9).sin()
    assert in_order(SoftSort(0.5, power=2)(s)) is None and in_order(SoftSort(0.5, simplex="sparsemax")(s)) is None
    for method in ("neuralsort", SoftSort(0.5, power=2), SoftSort(0.5, distance=lambda x, y: (x - y).abs())):
        assert losses.neural_ndcg_loss(s, torch.arange(9) % 3, method=method).isfinite()
    exact = losses.neural_ndcg_loss(s, torch.arange(9) % 3, method=SoftSort(0.5, distance=lambda x, y: (x - y).abs()))
    assert_close(losses.neural_ndcg_loss(s, torch.arange(9) % 3, tau=0.5), exact)


def test_many_lists_on_many_threads(rng):
    s, y = torch.randn(64, 700, generator=rng), torch.randint(0, 4, (64, 700), generator=rng)
    whole = losses.neural_ndcg_loss(s, y, tau=0.3, reduction="none")
    assert_close(whole[3:5], losses.neural_ndcg_loss(s[3:5], y[3:5], tau=0.3, reduction="none"))


def test_a_list_that_is_no_number(rng):
    s = torch.randn(2, 50, generator=rng)
    s[1, 3] = float("nan")
    for backend in ("numba", "torch"):
        z = laplace_balanced(in_order(SoftSort(0.5, backend=backend)(s)), torch.ones(2, 50), 2)
        assert z[0].isfinite().all() and z[1].isnan().all()
