"""The loss that goes with sparse rows, (W4.2), against its definition as a largest value."""
import pytest
import torch
from torch.testing import assert_close

from softsortlib import SoftSort
from softsortlib.rowwise import SparseRows


def entropy(p, simplex):
    "Omega, zero at the corners."
    if simplex == "sparsemax": return (p.square() - p).sum(-1) / 2
    return (p.pow(1.5) - p).sum(-1) * 4 / 3


@pytest.mark.parametrize("simplex", ("sparsemax", "entmax15"))
def test_the_loss_is_the_largest_value_less_that_of_the_target(simplex, rng):
    "max over p of <p, z> - Omega(p), less z at the target; the rows are where it is largest, and its gradient is that of its values."
    s = torch.tensor([0.2, 1.0, 0.9, -3.0], dtype=torch.float64, requires_grad=True)
    target, base = torch.tensor([2, 0, 1, 3]), SoftSort(tau=0.5)(s)
    z = base._logits(None).detach()
    def value(p): return (p * z[:, None]).sum(-1) - entropy(p, simplex)
    P = SparseRows(base, simplex)
    loss, rows = P.fenchel_young(target), P.to_dense().detach()
    largest = value(rows[:, None])[:, 0]
    assert_close(loss.detach(), largest - z.gather(-1, target[:, None])[:, 0])
    others = torch.distributions.Dirichlet(torch.full((4,), 0.3, dtype=torch.float64)).sample((2000,)).expand(4, 2000, 4)
    near = (0.999 * rows[:, None] + 0.001 * others)
    assert (value(others).amax(-1) <= largest).all() and (value(near).amax(-1) <= largest + 1e-12).all()
    assert torch.autograd.gradcheck(lambda s: SparseRows(SoftSort(tau=0.5)(s), simplex).fenchel_young(target), s)
