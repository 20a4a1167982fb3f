"""Whatever is in the tables under `torch.utils.checkpoint` without re-entry: it throws saved tensors away, lets a backward pass read each of them once, and computes them anew."""
import pytest
import torch
from tables import FUNCTIONS, LOSSES, OPERATORS, RANKS
from torch.utils.checkpoint import checkpoint

SIZES = 70, 300       # on both sides of where most algorithms change


def questions(make):
    "What is asked of an operator."
    def product(s, x): return make(tau=0.5)(s) @ x
    def transposed(s, x): return make(tau=0.5)(s).mT @ x
    def matrix(s, x): return make(tau=0.5)(s).to_dense() @ x[..., None]
    def likelihood(s, x): return make(tau=0.5)(s).log_prob(x.detach().argsort(-1)).clamp(min=-100)
    return product, transposed, matrix, likelihood


def cases():
    "Everything, as functions of scores and of a payload, both (2, n)."
    for row in OPERATORS:
        for f in questions(row.make): yield f"{row.name}:{f.__name__}", f
    for row in RANKS: yield row.name, lambda s, x, row=row: row.make(tau=0.5)(s)
    for call in FUNCTIONS: yield call.name, lambda s, x, call=call: call.f(s, 0.5, None)
    for call in LOSSES: yield call.name, lambda s, x, call=call: call.f(s, (x.detach() > 0) + (x.detach() > 1).long(), 0.5, None)


def gradients(f, s, x, kept):
    "What f returns, and its gradients, with or without a checkpoint."
    leaves = s.clone().requires_grad_(), x.clone().requires_grad_()
    torch.manual_seed(0)
    out = f(*leaves) if kept else checkpoint(f, *leaves, use_reentrant=False)
    return out, *torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("f", [pytest.param(f, id=name) for name, f in cases()])
def test_gradients_through_a_checkpoint_are_the_same_bits(f, n, rng):
    s, x = torch.randn(2, n, generator=rng), torch.randn(2, n, generator=rng)
    for ours, theirs in zip(gradients(f, s, x, False), gradients(f, s, x, True)):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)
