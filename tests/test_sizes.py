"""The value and the derivatives of a set do not depend on where it lies: padded to any size, in a batch of any size, among lists, beside an element that is far away.

The sizes are those at which the library changes its algorithm (`SWITCHES` in engine/dispatch), one less and one more. The usual run takes a share, in which
every name and every threshold comes up; `SOFTSORTLIB_GRID=full pytest tests/test_sizes.py` takes all of it, in some hours."""
import itertools
import math
import os
import zlib

import pytest
import torch
import torch.distributed as dist
from regimes import FILLERS, PLACES, switches
from sameness import SUBJECTS, Case, against, converges, the_set
from tables import LOSSES

from softsortlib import functional

GRID = os.environ.get("SOFTSORTLIB_GRID", "2")      # sizes for each name, or "full"
FULL = GRID == "full"
MOST = 1 << 24 if FULL else 1100**2     # entries of the matrices of a batch
LARGEST = 2100 if FULL else 520         # real elements of a set
REGIMES = ("normal", "all positive", "all negative", "offset 1e4", "integers with ties")
TIED = "integers with ties"     # where sorting has kinks, and with them no second derivative


def sizes():
    "Batches (B, N), columns d, rows k and shares of the spread, each with the thresholds for whose sake it is there."
    found = {}
    def note(name, **size): found.setdefault(tuple(size.items()), []).append(name)
    for name, (v, measure) in switches().items():
        around = range(v - 1, v + 2) if isinstance(v, int) else ()
        side = math.isqrt(int(v))
        if measure in ("n", "B n"): [note(name, B=1, N=N) for N in around]
        if measure in ("n^2", "B n^2", "B n^2 d", "work"): [note(name, B=1, N=N) for N in (side - 1, side, side + 1)]
        if measure in ("B n^2", "B n^2 d", "work"): [note(name, B=B, N=N) for N in (7, 60) for B in (v // N**2, v // N**2 + 1)]
        if measure == "B n": [note(name, B=B, N=7) for B in (v // 7, v // 7 + 1)]
        if measure == "d": [note(name, d=d) for d in around]
        if measure == "B n d": [note(name, d=v // 1000 + more) for more in (0, 1)]
        if measure == "k": [note(name, k=k) for k in around]
        if "spread / tau" in measure: [note(name, spread=v * share, times_n=measure[0] == "n") for share in (0.999, 1.001)]
    return {size: names for size, names in found.items() if dict(size).get("B", 1) > 0 and dict(size).get("N", 9) > 1}


def fits(B, N, subject):
    "Matrices and batches that a test can wait for."
    dear = dict(SinkhornSort=64, OddEven=16, chunked_quantile=1024, chunked_threshold=1024)     # thousands of rounds, n layers, one set at a time
    return B * N * N <= MOST // dear.get(subject.name.split(",")[0].split(":")[0], 1) and B * N <= 1 << 19


def cases(subject, size, h):
    "The sets of one size: few real elements, nearly all, all; `h` draws the rest."
    size = dict(size)
    draw = dict(regime=REGIMES[h % 5], mode=subject.modes[(h >> 4) % len(subject.modes)], descending=subject.directed and bool(h >> 8 & 1), seed=h >> 9 & 3,
                dtype=(torch.float32, torch.float32, torch.float64)[(h >> 11) % 3])
    if draw["mode"] == "second" and draw["regime"] == TIED: draw["regime"] = "normal"
    padded = dict(place=list(PLACES)[(h >> 14) % 4], filler=FILLERS[(h >> 16) % 6]) if subject.masked else {}
    if "N" in size:
        B, N = size["B"], size["N"]
        if not fits(B, N, subject): return
        if subject.masked:
            if N > 5: yield Case(m=5, B=B, N=N, **padded, **draw)
            if B == 1 and 3 < N <= LARGEST: yield Case(m=N - 1, N=N, **padded, **draw)
        if N <= LARGEST: yield Case(m=N, B=B, **draw)
        if subject.far and B == 1 and N <= LARGEST and draw["mode"] != "vmap":
            first = h >> 20 & 1 and subject.name.endswith("P @ x")       # else last, so that no other place moves
            yield Case(m=N - 1, far=3e4 * (-1) ** (draw["descending"] != first), **draw)
    if "d" in size and "d" in subject.options and fits(1, int(math.sqrt(40 * size["d"])), subject): yield Case(m=5, N=40, **padded, **draw, d=size["d"])
    if "k" in size and "k" in subject.options and fits(1, size["k"] + 3, subject): yield Case(m=size["k"] + 2, N=size["k"] + 3 if subject.masked else 0, **padded, **draw, k=size["k"])
    if "spread" in size and fits(1, 150, subject):
        s = the_set(draw["regime"], 130, draw["dtype"], draw["seed"])[0].double()
        tau = (s.max() - s.min()).item() / size["spread"] * (130 if size["times_n"] else 1)
        yield Case(m=130, N=150 if subject.masked else 0, **padded, **draw, tau=torch.tensor(tau).to(draw["dtype"]).item())


def some(name):
    "The cases of a name, and the thresholds that they stand at."
    every, turn = sizes(), list(SUBJECTS).index(name)
    step = 1 if FULL else max(1, len(every) // int(GRID))
    for i, (size, names) in enumerate(every.items()):
        if (i + turn) % (step if "N" in dict(size) else min(step, 4)): continue      # few names have columns and rows
        for again in range(2 * len(REGIMES) if FULL else 1):
            for case in cases(SUBJECTS[name], size, zlib.crc32(f"{name} {size} {again}".encode())): yield case, names


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_set_is_the_same_wherever_it_lies(name):
    wrong = []
    for case, names in some(name):
        lines = converges(against, SUBJECTS[name], case, twin=bool(SUBJECTS[name].twin) and not case.place and case.B == 1 and case.m < 1100)
        if lines: wrong.append(f"{case}: {'; '.join(lines)} ({names[0]})")
    assert not wrong, "\n".join([f"{name} changes with its surroundings:", *wrong])


def test_every_threshold_comes_up():
    seen = {name for subject in SUBJECTS for _, names in some(subject) for name in names}
    out_of_reach = {name for name, (v, measure) in switches().items() if "gpu" in measure or v >= 1 << 26}
    large = {name for name, (v, measure) in switches().items() if measure in ("n", "B n") and v > 1100 or measure in ("B n^2", "B n d") and v > 1100**2}      # in full
    assert set(switches()) - out_of_reach - (set() if FULL else large) <= seen, set(switches()) - seen


IN_PARTS = {name: getattr(functional, name) for name in ("soft_sort", "soft_rank", "soft_median")}
LOSSES_IN_PARTS = {call.name: call.f for call in LOSSES if call.name in ("spearman_loss", "spearman_loss:sigmoid", "kendall_loss", "approx_ndcg_loss", "precision_loss", "recall_loss")}


@pytest.mark.parametrize("name", [*IN_PARTS, *LOSSES_IN_PARTS])
def test_a_set_in_parts_is_the_same(name, alone):
    "`group=` of one process: the forms in parts, with their carries."
    def f(s, tau, mask, a):
        if name in IN_PARTS: return IN_PARTS[name](s, tau=tau, mask=mask, group=alone)
        return LOSSES_IN_PARTS[name](s, a.y, tau, mask, group=alone)
    subject, wrong = SUBJECTS[name]._replace(f=f), []
    cells = list(itertools.product(((5, 9), (31, 33), (127, 129), (256, 257)), ("autograd", "create_graph", "second"), REGIMES))
    for (m, N), mode, regime in cells if FULL else cells[list(SUBJECTS).index(name) % 4::4]:
        if mode == "second" and (regime == TIED or name in ("precision_loss", "recall_loss")): continue
        case = Case(regime, m, 1, N, "scattered", math.nan, mode=mode, dtype=torch.float64)
        lines = against(subject, case, times=100)       # parts are added up in another order, and not about their mean
        if lines: wrong.append(f"{case}: {'; '.join(lines)}")
    assert not wrong, "\n".join([f"{name} changes in parts:", *wrong])
