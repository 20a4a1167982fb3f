"""The data that tests draw from, instead of `randn` alone: each regime has shown a fault that the others hide.

A regime is a function of (B, n, dtype, generator) that gives scores; `REGIMES[name](2, 5, torch.float32, rng)`. What stands at padded places is
in `FILLERS`, where they stand in `PLACES`, and temperatures are multiples of the scores' spread in `TAUS`."""
import importlib
import math
import pkgutil

import torch

import softsortlib


def normal(B, n, dtype, rng): return torch.randn(B, n, generator=rng, dtype=torch.float64).to(dtype)


def positive(B, n, dtype, rng): return (1 + normal(B, n, torch.float64, rng).abs()).to(dtype)


def integers(B, n, dtype, rng): return torch.randint(-2, 3, (B, n), generator=rng).to(dtype)


def tied_at(B, n, dtype, rng):
    "Ties of the largest, the second and the third score, where a top k ends."
    s = normal(B, n, torch.float64, rng)
    top = s.topk(min(3, n)).values[:, -1:]
    return torch.where(s >= top, top, s).to(dtype)


def clusters(B, n, dtype, rng): return (1e-3 * normal(B, n, torch.float64, rng) + 1e3 * torch.randint(2, (B, n), generator=rng)).to(dtype)


def outlier(size):
    def draw(B, n, dtype, rng):
        s = normal(B, n, dtype, rng)
        s[:, n // 2] = size
        return s
    return draw


def powers(B, n, dtype, rng): return (2.0 ** torch.randint(-12, 13, (B, n), generator=rng)).to(dtype) * torch.randint(2, (B, n), generator=rng).mul(2).sub(1).to(dtype)


def zeros_of_both_signs(B, n, dtype, rng):
    s = normal(B, n, dtype, rng)
    s[:, ::3] = 0.0
    s[:, 1::3] = -0.0
    return s


REGIMES = {
    "normal": normal,
    "all positive": positive,
    "all negative": lambda *a: -positive(*a),
    "offset 1e4": lambda B, n, dtype, rng: (1e4 + normal(B, n, torch.float64, rng)).to(dtype),
    "spread 1e-6": lambda B, n, dtype, rng: (1e-6 * normal(B, n, torch.float64, rng)).to(dtype),
    "spread 1e8": lambda B, n, dtype, rng: (1e8 * normal(B, n, torch.float64, rng)).to(dtype),
    "integers with ties": integers,
    "all tied": lambda B, n, dtype, rng: torch.full((B, n), 0.3, dtype=dtype),
    "all zero": lambda B, n, dtype, rng: torch.zeros(B, n, dtype=dtype),
    "tied at the k-th place": tied_at,
    "two clusters": clusters,
    "sorted": lambda *a: normal(*a).sort(-1).values,
    "reversed": lambda *a: normal(*a).sort(-1, descending=True).values,
    "outlier of 1e17": outlier(1e17),
    "outlier of -1e17": outlier(-1e17),
    "powers of two": powers,
    "zeros of both signs": zeros_of_both_signs,
}
MATRICES = {        # (B, n, n), for matchings
    "normal": lambda B, n, dtype, rng: torch.randn(B, n, n, generator=rng, dtype=torch.float64).to(dtype),
    "constant": lambda B, n, dtype, rng: torch.full((B, n, n), 0.3, dtype=dtype),
    "zero": lambda B, n, dtype, rng: torch.zeros(B, n, n, dtype=dtype),
    "circulant": lambda B, n, dtype, rng: ((torch.arange(n)[:, None] - torch.arange(n)) % n).expand(B, n, n).to(dtype),
    "far from zero": lambda B, n, dtype, rng: (1e4 + torch.randn(B, n, n, generator=rng, dtype=torch.float64)).to(dtype),
    "with ties": lambda B, n, dtype, rng: torch.randint(-1, 2, (B, n, n), generator=rng).to(dtype),
}
FILLERS = (0.0, 1e30, -1e30, math.nan, math.inf, -math.inf)
TAUS = (1e-6, 1e-2, 0.3, 10.0, 1e6)     # in units of the spread


def back(m, N): return torch.arange(m)


def front(m, N): return torch.arange(N - m, N)


def middle(m, N): return torch.cat([torch.arange(m - m // 2), torch.arange(N - m // 2, N)])


def scattered(m, N): return torch.arange(m) * N // m


PLACES = dict(back=back, front=front, middle=middle, scattered=scattered)       # where m real elements stand among N, by where the padding is


def spread_of(s):
    "A number of the size of the differences of scores (..., n) among themselves, without an outlier; 1 where all are tied."
    s = s.double().flatten()
    deviation = (s - s.median()).abs().median().item() if len(s) > 2 else (s.max() - s.min()).item()
    return deviation or (s - s.median()).abs().mean().item() or 1.0


def switches():
    "Name -> (threshold, measure) of every size at which the library changes its algorithm."
    for module in pkgutil.walk_packages(softsortlib.__path__, "softsortlib."):
        if not module.name.startswith("softsortlib.lab"): importlib.import_module(module.name)
    from softsortlib.core.permutation import _TILE
    from softsortlib.engine.dispatch import SWITCHES
    return {**SWITCHES, "permutation: tile": (_TILE, "B n^2")}
