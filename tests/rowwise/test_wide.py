"""A payload of many columns is multiplied by matrices: each column is what it is alone, and whoever cannot be multiplied is not."""
import pytest
import torch
from torch.testing import assert_close

from softsortlib import NeuralSort, SoftSort
from softsortlib.rowwise import wide

OPERATORS = {"NeuralSort": lambda tau: NeuralSort(40 * tau), "square": lambda tau: SoftSort(tau ** 2, power=2), "cube": lambda tau: SoftSort(tau ** 3, power=3)}


def all_of(op, s, x, g, back=False, mask=None):
    "The product and the gradients to scores and payload."
    s, x = s.clone().requires_grad_(), x.clone().requires_grad_()
    P = op(s) if mask is None else op(s, mask)
    y = (P.mT if back else P) @ x
    return y, *torch.autograd.grad(y, (s, x), g)


def by_columns(op, s, x, g, back=False, mask=None):
    "The same for some columns at a time, so few that a walk takes them."
    parts = [all_of(op, s, a, b, back, mask) for a, b in zip(x.split(32, -1), g.split(32, -1))]
    return torch.cat([p[0] for p in parts], -1), sum(p[1] for p in parts), torch.cat([p[2] for p in parts], -1)


@pytest.fixture
def asked(monkeypatch):
    "How often matrices were multiplied."
    found = []
    for name in ("multiply", "pull_product"):
        real = getattr(wide, name)
        monkeypatch.setattr(f"softsortlib.rowwise.products.{name}", lambda *a, real=real: found.append(1) or real(*a))
    return found


@pytest.mark.parametrize("back", (False, True))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("name", OPERATORS)
def test_columns_are_what_they_are_alone(name, dtype, back, asked, rng):
    s, offset = torch.randn(3, 300, generator=rng, dtype=dtype), torch.tensor([0.0, 1e4]).repeat(48).to(dtype)
    x, g = offset + torch.randn(2, 3, 300, 96, generator=rng, dtype=dtype)
    g = g - offset
    mask = torch.arange(300) < torch.tensor([[300], [280], [1]])
    for tau in (0.3, 30.0):
        for m in (None, mask):
            ours, theirs = (f(OPERATORS[name](tau), s, x, g, back, m) for f in (all_of, by_columns))
            exact = by_columns(OPERATORS[name](tau), s.double(), x.double(), g.double(), back, m)
            for a, b, c in zip(ours, theirs, exact):
                far = (b - c).abs().max()
                assert (a - c).abs().max() <= 4 * far + (2e-6 if dtype == torch.float32 else 1e-12) * c.abs().max()
    assert len(asked) == 8


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("bad", (float("inf"), float("nan"), 1e30))
def test_what_cannot_be_multiplied_stays_in_its_own_rows(name, bad, asked, rng):
    s = torch.cat([torch.randn(200, generator=rng), 1e4 + torch.randn(200, generator=rng)])[None]
    x = torch.randn(1, 400, 64, generator=rng)
    x[0, 300] = bad
    y = OPERATORS[name](2.0)(s) @ x
    assert_close(y[:, :200], (OPERATORS[name](2.0)(s) @ x.masked_fill(x == x[0, 300, 0], 0).nan_to_num(0, 0, 0))[:, :200], rtol=1e-4, atol=1e-5)
    assert y[:, :200].isfinite().all()


def test_blocks_of_rows_and_of_sets_add_up(monkeypatch, asked, rng):
    monkeypatch.setattr(wide, "_BLOCK", 5000)
    s, (x, g) = torch.randn(7, 90, generator=rng, dtype=torch.float64), torch.randn(2, 7, 90, 64, generator=rng, dtype=torch.float64)
    for back in (False, True):
        for op in (NeuralSort(50.0, backend="numba"), SoftSort(3.0, power=3, backend="numba")):
            for a, b in zip(all_of(op, s, x, g, back), by_columns(op, s, x, g, back)): assert_close(a, b)
    rows = torch.tensor([3, 80, 4, 5, 1])
    P = NeuralSort(50.0, backend="numba")(s)
    assert_close((P @ x)[:, rows], P[..., rows, :] @ x)
    assert len(asked) >= 10


def test_second_derivatives_of_a_wide_product(rng):
    s, x = torch.randn(30, generator=rng, dtype=torch.float64, requires_grad=True), torch.randn(30, 64, generator=rng, dtype=torch.float64)
    def slope(backend): return torch.autograd.grad((NeuralSort(20.0, backend=backend)(s) @ x).square().sum(), s, create_graph=True)[0]
    assert_close(*(torch.autograd.grad(slope(backend).square().sum(), s)[0] for backend in ("numba", "torch")))
