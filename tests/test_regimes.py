"""Value and derivatives at every scale of the data and of the temperature: single precision against double precision of the same numbers, double precision against
the plain twin, and the gradient against differences of the value.

The usual run takes a share; `SOFTSORTLIB_GRID=full pytest tests/test_regimes.py` takes every regime, temperature and size for each name."""
import math
import os

import pytest
import torch
from regimes import MATRICES, REGIMES, TAUS, spread_of
from sameness import IN_SCORES, SUBJECTS, Case, against, converges, laid_out, outcome, the_set, wave
from torch.testing import assert_close

from softsortlib import transport

GRID = os.environ.get("SOFTSORTLIB_GRID", "4")     # cases for each name, or "full"
SIZES = (6, 40, 130, 300, 700) if GRID == "full" else (6, 40)
# Whose gradient is not the slope of the value, and is not meant to be.
NO_SLOPE = {
    "ErrorFreeNetwork": "the value is hard, the gradient that of a soft network",
    "TopKRouter": "the value is hard, the gradient passes straight through",
    "BlackboxRank": "the gradient is a difference of two hard ranks",
    "slatk_loss": "the k-th largest score and the weights are constants to the gradient",
    "quantised_ap_loss": "the range of the bins is a constant to the gradient, as published",
}
# What cannot be otherwise: (names, regimes or "" for all, smallest and largest tau in units of the spread, dtypes, reason).
BOTH, SINGLE = (torch.float32, torch.float64), (torch.float32,)
OUTLIERS = "outlier of 1e17", "outlier of -1e17"
LIMITS = (
    ("soft_matching GumbelSinkhorn", ("spread 1e8", *OUTLIERS), 0, math.inf, BOTH, "the table's temperature is one, at which such costs want many iterations"),
    ("OddEven Bitonic ErrorFreeNetwork", OUTLIERS, 0, math.inf, BOTH, "a network mixes the scores of its lanes: beside 1e17 those of the others have no digits"),
    ("SinkhornSort", (), 0, 0.1, BOTH, "the limit of the temperature zero: its iterations do not converge, and potentials are not determined"),
    ("SinkhornSort", ("all tied", "all zero"), 0, math.inf, BOTH, "scores are standardised, which scores without a spread cannot be"),
    ("BlackboxRank", (), 0, math.inf, BOTH, "a difference of two hard ranks, which jumps"),
    ("spearman_loss soft_metric", (), 100, math.inf, SINGLE, "ranks that differ by less than their rounding"),
    ("listmle_loss", (), 0, 1e-6, BOTH, "the slope of logcumsumexp takes exponentials of differences of 1e10: tau's gradient 1.6e7 for -5e6"),
    ("permutation_bce", (), 0, 0.01, SINGLE, "1 - P has no number in single precision below exp(-87), and the loss no slope"),
)


def is_limit(name, regime, share, dtype):
    return any(name_of(name) in names.split() and (not regimes or regime in regimes) and low <= share <= high and dtype in dtypes for names, regimes, low, high, dtypes, _ in LIMITS)


def every():
    "Regime, temperature in units of the spread, size and dtype."
    return [(regime, tau, n, dtype) for n in SIZES for dtype in (torch.float32, torch.float64) for tau in TAUS for regime in REGIMES]


def cases(name):
    "The cases of a name."
    cells, turn = every(), list(SUBJECTS).index(name)
    some = cells if GRID == "full" else [cells[(turn * 7 + i * 101) % len(cells)] for i in range(int(GRID))]
    subject = SUBJECTS[name]
    mode = "autograd" if "autograd" in subject.modes else "value"
    for i, (regime, share, n, dtype) in enumerate(some):
        if is_limit(name, regime, share, dtype): continue
        tau = torch.tensor(share * spread_of(the_set(regime, n, dtype, 0)[0])).to(dtype).item()
        yield Case(regime, n, mode=mode, dtype=dtype, tau=tau, descending=subject.directed and bool(i % 2), k=2 + i % 2)


def name_of(name): return name.split(",")[0].split(":")[0]


def has_kink(slope, u, e, scale):
    "Whether the value, at a tie, has other slopes to one side than to the other, or slopes that do not add up: sorting has, and no gradient."
    alone = [u * (torch.arange(len(u)) == i) for i in range(len(u))]
    sides = max((slope(v, e, 0) - slope(v, e, 0, 0)).abs() for v in (u, *alone))
    return sides > 1e-2 * scale or (sum(slope(v, e, 0) for v in alone) - slope(u, e, 0)).abs() > 1e-4 * scale


def by_differences(subject, case):
    "Where the gradient to the scores and to tau is not the slope of the value: lines of text."
    laid = laid_out(case)
    s, t, lines = laid.s[0], torch.tensor(case.tau, dtype=torch.float64), []
    found = outcome(subject, case)
    if name_of(subject.name) in NO_SLOPE or "s" not in found: return []
    gaps = [gap for gap in s.sort().values.diff().tolist() if gap > 0]
    e = min(1e-3 * case.tau, min(gaps, default=math.inf) / 8)
    near = s.abs() * 2.0**-52 < 1e-8 * e         # what is so far away is not moved by e
    def value(u, e, share): return outcome(subject, case._replace(mode="value"), laid._replace(s=laid.s + e * u), t * (1 + share))["value"]
    def slope(u, e, share, back=-1):
        d = value(u, e, share) - value(u, back * e, back * share)
        return (d * wave(d)).sum() / ((1 - back) * (e or share))
    g, noise = found["s"], 1e-13 * (value(s, 0, 0).abs().sum() + (name_of(subject.name) not in IN_SCORES))
    u = wave(s, 3.0) * near
    if len(gaps) + 1 < len(s) and (len(s) > 10 or has_kink(slope, u, e, (g * u).abs().sum())): return []
    ways = [("s", u, e, 0, (g * u).sum(), (g * u).abs().sum())]
    if near.all(): ways.append(("tau", u, 0, 1e-3, found["tau"] * t, (g * (s - s.median())).abs().sum() + found["tau"].abs() * t))
    for key, u, e, share, right, scale in ways:
        small, large = slope(u, e, share), slope(u, 2 * e, 2 * share)
        by_steps = (4 * small - large) / 3
        bound = 1e-6 * scale + 10 * (by_steps - small).abs() + noise / (e or share)
        if not (right - by_steps).abs() <= bound: lines.append(f"slope {key} {right:.7g} for {by_steps:.7g} (bound {bound:.2g})")
    return lines


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_scale(name):
    wrong, subject = [], SUBJECTS[name]
    for case in cases(name):
        lines = converges(against, subject, case, twin=bool(subject.twin)) or []
        if case.dtype == torch.float64 and case.m <= 40 and case.mode == "autograd": lines += converges(by_differences, subject, case) or []
        if lines: wrong.append(f"{case}: {'; '.join(lines)}")
    assert not wrong, "\n".join([f"{name} is off:", *wrong])


@pytest.mark.parametrize("regime", MATRICES)
@pytest.mark.parametrize("iterations", [None, 20])
def test_matchings(regime, iterations, rng):
    "A matching's gradient is the slope, also where the first kernel is balanced already; and single precision says the same."
    for n in (2, 5):
        for tau in (1.0, 1e6):
            s = MATRICES[regime](1, n, torch.float32, rng)[0].double().requires_grad_()
            w, u, e = wave(s).detach(), wave(s, 3.0).detach(), 1e-3 * tau
            def f(s): return transport.soft_matching(s, tau, iterations, tolerance=1e-12, max_iterations=20_000).to_dense().double().mul(w).sum()
            (g,) = torch.autograd.grad(f(s), s)
            with torch.no_grad(): near, wide = ((f(s + h * u) - f(s - h * u)) / (2 * h) for h in (e, 2 * e))
            assert_close(tau * (g * u).sum(), tau * (4 * near - wide) / 3, rtol=1e-6, atol=1e-8)
            single = s.detach().float().requires_grad_()
            (found,) = torch.autograd.grad(f(single), single)
            assert_close(tau * found.double(), tau * g, rtol=1e-4, atol=1e-5)
