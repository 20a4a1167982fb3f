"Pictures: what is drawn is what the library computes, with its labels; and what is refused."
import sys

import pytest
import torch

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from softsortlib import SoftSort, SortingNetwork, soft_rank, soft_sort  # noqa: E402
from softsortlib.functional import plot_permutation, plot_temperature  # noqa: E402


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def rings(ax): return [[int(position), int(x)] for x, position in ax.collections[0].get_offsets()]


def test_the_matrix_and_its_hard_permutation(rng):
    s = torch.randn(7, generator=rng, requires_grad=True)
    mask = torch.tensor([True, False, True, True, True, False, True])
    for P in (SoftSort(0.3)(s), SortingNetwork(tau=0.2, descending=True)(s), SoftSort(0.3)(s, mask), SoftSort(0.3)(s)[..., 2:5, :], SoftSort(0.3)(s.bfloat16(), mask)[..., :6, :]):
        ax = P.plot()
        assert torch.equal(torch.from_numpy(ax.images[0].get_array().filled()), P.to_dense().detach().float())
        real = min(P.m, int(mask.sum())) if P.mask is not None else P.m
        assert rings(ax) == [[i, int(j)] for i, j in enumerate(P.hard()[:real])]
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("input", "position")
        assert ax.images[0].get_clim() == (0, 1)


def test_an_axis_that_is_given_is_drawn_on(rng):
    s = torch.randn(4, generator=rng)
    _, axes = plt.subplots(1, 4)
    assert plot_permutation(SoftSort(0.3)(s), axes[3]) is axes[3] and SoftSort(0.3)(s).plot(ax=axes[3]) is axes[3]
    assert all(a is b for a, b in zip(plot_temperature(s, axes=axes[:3]), axes))
    assert len(plt.get_fignums()) == 1


@pytest.mark.parametrize("method", ["softsort", "neuralsort", "lapsum", "network", "sinkhorn", "permutahedron"])
def test_values_ranks_and_slopes_against_the_temperature(method, rng):
    s, taus = torch.randn(4, generator=rng, dtype=torch.float64), [0.05, 0.4, 3.0]
    with torch.no_grad(): axes = plot_temperature(s, method, taus)
    values, ranks, slopes = (torch.stack([torch.from_numpy(line.get_ydata()) for line in ax.lines], -1) for ax in axes)
    h = 1e-5
    for tau, value, rank, slope in zip(taus, values, ranks, slopes):
        torch.testing.assert_close(value, soft_sort(s, method=method, tau=tau), rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(rank, soft_rank(s, method=method, tau=tau), rtol=1e-6, atol=1e-8)
        up, down = (soft_rank(s + d * torch.eye(4, dtype=s.dtype), method=method, tau=tau).diagonal() for d in (h, -h))
        torch.testing.assert_close(slope, (up - down) / (2 * h), rtol=1e-3, atol=1e-4)
    for ax in axes: assert ax.get_xscale() == "log" and ax.get_xlabel() == "tau" and ax.lines[0].get_xdata().tolist() == taus


def test_the_temperatures_follow_the_set():
    for s in (torch.tensor([1.0, 2.0, 5.0]), torch.tensor([1.0, 2.0, 5.0], dtype=torch.bfloat16), 1e6 * torch.tensor([1.0, 2.0, 5.0])):
        tau = plot_temperature(s)[0].lines[0].get_xdata()
        assert tau[0] == pytest.approx(0.004 * float(s.min())) and tau[-1] == pytest.approx(40.0 * float(s.min())) and len(tau) == 60
    for s in (torch.ones(3), torch.ones(1)): assert all(torch.isfinite(torch.tensor(line.get_ydata())).all() for ax in plot_temperature(s) for line in ax.lines)


@pytest.mark.parametrize("call, error, says", [
    (lambda: plot_permutation(SoftSort(0.1)(torch.zeros(2, 3))), ValueError, r"P must be of one set, \(m, n\), got \(2, 3, 3\)"),
    (lambda: SoftSort(0.1)(torch.zeros(2, 3)).plot(), ValueError, "P must be of one set"),
    (lambda: plot_permutation(torch.eye(3)), TypeError, "P must be a SoftPermutation, got Tensor"),
    (lambda: plot_temperature(torch.zeros(2, 3)), ValueError, r"scores must be one set, \(n,\), got shape \(2, 3\)"),
    (lambda: plot_temperature([1.0]), TypeError, "scores must be a torch.Tensor"),
    (lambda: plot_temperature(torch.rand(3), "laplace"), TypeError, "gives ranks only"),
    (lambda: plot_temperature(torch.rand(3), taus=[0.0, 1.0]), ValueError, "tau must be positive"),
])
def test_mistakes(call, error, says):
    with pytest.raises(error, match=says): call()


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match="a picture needs matplotlib .* pip install matplotlib"): SoftSort(0.1)(torch.rand(3)).plot()
