"""The same input gives the same bits, on the same machine with the same number of threads: every operator, its products, and their gradients.

The usual run compares a few calls; `SOFTSORTLIB_GRID=full pytest tests/test_bits.py` compares fifty of more sizes."""
import os

import pytest
import torch
from tables import OPERATORS, RANKS

FULL = os.environ.get("SOFTSORTLIB_GRID") == "full"
RUNS = 50 if FULL else 8
SIZES = (5, 200, 700) if FULL else (5, 200)


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def asked(answer, x):
    "What is asked of an operator: soft ranks, or products with both sides and the matrix."
    if isinstance(answer, torch.Tensor): return {"ranks": answer}
    m, n = answer.shape[-2:]
    return {"P @ x": answer @ x[..., :n, :], "P.mT @ x": answer.mT @ x[..., :m, :], "P": answer.to_dense()}


def answers(op, scores, values, shift):
    "{what: (value, gradient of the scores)} of one call, with tensors that lie somewhere else in memory each time."
    moved = torch.empty(scores.numel() + shift)[shift:].view(scores.shape).copy_(scores)
    s = moved.requires_grad_()
    found = asked(op(s), values)
    return {what: (y.detach(), *torch.autograd.grad((y * y.detach().cos()).sum(), s, retain_graph=True)) for what, y in found.items()}


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("row", [*OPERATORS, *RANKS], ids=lambda row: row.name)
def test_the_same_input_gives_the_same_bits(row, n, rng):
    scores, values = torch.randn(2, n, generator=rng), torch.randn(2, n, 3, generator=rng)
    op = row.make(tau=0.1)
    first = answers(op, scores, values, 0)
    for run in range(1, RUNS):
        for what, found in answers(op, scores, values, run % 7).items():
            for kind, a, b in zip(("value", "gradient"), first[what], found):
                assert torch.equal(a, b), f"{what}, {kind}: run {run} differs from the first in {int((a != b).sum())} of {a.numel()} numbers"
