"""Walk the sizes of sets, batches and payloads, and name the worst jumps of the price of one set between neighbouring sizes.

    python tests/prices.py                      what people use most, at small sizes, a third of them, in some minutes
    python tests/prices.py SoftSort lapsum      the calls whose name holds one of these words
    python tests/prices.py --full               every call of sameness.py, with a temperature that learns and with weights, at all sizes and around every
                                                switch, in some hours

A price is the time, and with --full the memory where it is large, of a forward and a backward pass, single precision, one thread, for
one set, or for one column where the payload grows. Both sizes of a pair are timed in turns, so that what else the machine does touches
both. What was measured is kept in `--out`, a line a pair: stop it when you like, the next run goes on.
"""
import argparse
import json
import math
import re
import time
from pathlib import Path
from typing import NamedTuple

import torch
from regimes import switches
from sameness import NOISY, SUBJECTS, Around, questions
from tables import FUNCTIONS, HOST_FUNCTIONS, LOSSES, OPERATORS

from softsortlib import functional
from softsortlib.lab.bench import peak_memory
from softsortlib.lab.limits import trim_memory

MAIN = re.compile("(SoftSort|SoftSortOfSquares|NeuralSort|LapSum|Bitonic|OddEven|SinkhornSort), (P|log_prob|to_dense)|(Laplace|Sigmoid|Gaussian)Rank$|Permutahedron$"
                  "|(approx_ndcg|spearman|kendall|lambda|listmle|neural_ndcg)_loss$|soft_topk_mask:(lapsum|sparse|threshold)$")
DEAR = dict(Perturbed=22, Stochastic=24, ImplicitRank=22, Sparsemax=24, Entmax=24, ErrorFree=24, OddEven=22, SinkhornSort=26, lambda_loss=26, neural_ndcg_loss=24, SoftKNN=22, soft_matching=22,     # log2 of the B n^2 that ends in time
            GumbelSinkhorn=22, permutation_bce=22, soft_permutation=22, BlackboxRank=22, SimpleTopK=22, pirank_loss=22, to_dense=24, chunked=20)
DEAREST = {"NeuralSort, P.mT": 28}
SEVERAL = 64 << 20    # bytes below which memory is not compared
COLUMNS = (1, 64, 128, 256, 512, 1024, 2048)


class Pair(NamedTuple):
    "Two neighbouring sizes: batches, elements and columns, and why they are looked at."
    case: str
    here: tuple  # (B, n, d)
    there: tuple
    why: str


def weighted():
    "Calls that take weights, as calls of sameness.py."
    losses = {f"{call.name}, weights": lambda s, tau, mask, a, call=call: call.f(s, a.y, tau, mask, weights=a.key) for call in LOSSES if call.name in ("spearman_loss", "kendall_loss")}
    ranks = {f"soft_rank:{method}, weights": lambda s, tau, mask, a, method=method: functional.soft_rank(s, method=method, tau=tau, weights=a.key)
             for method in ("softsort", "sigmoid", "gaussian", "laplace")}
    masks = {f"soft_topk_mask:{method}, weights": lambda s, tau, mask, a, method=method: functional.soft_topk_mask(s, s.shape[-1] / 8, method=method, tau=tau, weights=a.key)
             for method in ("lapsum", "sinkhorn")}
    return losses | ranks | masks


def left_out():
    "What sameness.py has not: calls that draw noise, and the other kind of two losses."
    draws = {subject.name: subject.f for row in OPERATORS if not row.promise("repeats") for subject in questions(row) if "log_prob" not in subject.name}
    draws |= {call.name: lambda s, tau, mask, a, call=call: call.f(s, tau.item(), mask) for call in FUNCTIONS + HOST_FUNCTIONS if call.public in NOISY}
    return draws | {f"{call.name}:sigmoid": lambda s, tau, mask, a, call=call: call.f(s, a.y, tau, mask, kind="sigmoid") for call in LOSSES if call.name in ("kendall_loss", "weighted_kendall_loss")}


def calls(full):
    "{name: f(s, tau, mask, around)}; a name that ends in `tau` is called with a temperature that learns."
    found = {name: subject.f for name, subject in SUBJECTS.items() if full or MAIN.match(name)}
    learning = {f"{name}, tau": f for name, f in found.items() if "autograd" in SUBJECTS[name].modes}
    return {**found, **learning, **weighted(), **left_out()} if full else found


def around_switches():
    "Neighbouring sizes on both sides of every switch of a CPU, with its name."
    for name, (value, measure) in switches().items():
        if measure == "n":
            for n in (int(value) - 1, int(value)):
                yield (1 if n > 300 else 64, n, 1), (1 if n > 300 else 64, n + 1, 1), name
        elif measure in ("B n", "B n^2"):
            for n in (5, 20, 48, 100):
                B = int(value) // (n if measure == "B n" else n * n)
                if 1 <= B <= 1 << 18: yield (B, n, 1), (B + 1, n, 1), name
            if measure == "B n^2":
                n = math.isqrt(int(value))
                yield (1, n, 1), (1, n + 1, 1), name


def on_a_grid(largest):
    "Powers of two and what lies between them, for one set and for many."
    n = 4
    while n < largest:
        for size in (n, n * 3 // 2):
            for B in (1, 64, 4096):
                if B * size <= 1 << 20: yield (B, size, 1), (B, size + 1, 1), "grid"
        n *= 2


def around_columns():
    "Twice as many columns, whose price must be the same; and one more around each switch of columns."
    for B, n in ((1, 1000), (1, 300), (64, 50)):
        for few, many in zip(COLUMNS[1:], COLUMNS[2:]): yield (B, n, few), (B, n, many), "columns"
        for name, (value, measure) in switches().items():
            if measure == "d" and value > 1: yield (B, n, int(value) - 1), (B, n, int(value)), name


def bearable(case, B, n, d):
    "Whether a case ends in time at a size."
    most = min([40, *(log for name, log in {**DEAR, **DEAREST}.items() if name in case)])
    return B * n * n <= 1 << most and B * n * d <= 1 << (20 if d == 1 else 24)


def pairs(full):
    "All pairs of all cases that can be measured in bearable time."
    sizes = list(dict.fromkeys([*around_switches(), *on_a_grid(1 << (20 if full else 10))]))
    for case in calls(full):
        subject = SUBJECTS.get(case)
        more = list(around_columns()) if subject and "d" in subject.options else []
        for here, there, why in dict.fromkeys(sizes + more):
            B, n, d = there
            small = n <= 1100 and (B == 1 or B * n * n <= 1 << 19) if d == 1 else n <= 300 and d <= 512
            if (full or small) and bearable(case, *there): yield Pair(case, here, there, why)


def data(B, n, d, learns):
    "Scores, temperature and what belongs to the elements."
    rng = torch.Generator().manual_seed(0)
    s = torch.rand(B, n, generator=rng).requires_grad_()
    around = Around(s.detach().clone().requires_grad_(), (s.detach() * 7 % 5).long(), 0.5 + torch.rand(B, n, generator=rng), d)
    return s, torch.tensor(0.1, requires_grad=learns), None, around


def seconds(f, given):
    "One forward and backward pass: the time of the processor, which other programs do not lengthen."
    start = time.process_time()
    y = f(*given)
    if y.requires_grad: y.sum().backward()
    return time.process_time() - start


def peak(f, given):
    "Bytes that a forward and backward pass adds to what the process holds; None where the system does not tell."
    trim_memory()
    return peak_memory(lambda: seconds(f, given))


def measure(pair, f, budget, memory):
    "The prices of a set, or of a column of one, at both sizes."
    sizes = pair.here, pair.there
    given = [data(*size, pair.case.endswith(", tau")) for size in sizes]
    for one in given: seconds(f, one)                                    # without what the first call compiles
    best, start = [min(seconds(f, one) for _ in range(2)) for one in given], time.perf_counter()
    while time.perf_counter() - start < budget: best = [min(b, seconds(f, one)) for b, one in zip(best, given)]
    sets = [B * d for B, _, d in sizes]
    held = [peak(f, one) if memory else None for one in given]
    row = pair._asdict() | {"microseconds": [1e6 * b / B for b, B in zip(best, sets)], "bytes": held}
    row["time"] = row["microseconds"][1] / row["microseconds"][0]
    row["memory"] = (held[1] / sets[1]) / (held[0] / sets[0]) if None not in held and min(held) > 0 and max(held) > SEVERAL else 1.0
    return row


def jump(row):
    "How far the price of a set rises, or falls by more than what a call costs apart from its sets."
    (a, b), (here, there) = row["microseconds"], (B * d for B, _, d in (row["here"], row["there"]))
    return max(row["time"], a * here / (b * there))


def report(rows, most=25):
    "The worst jumps, up or down."
    def far(row): return max(jump(row), row["memory"] / 4 * 3, 0.75 / row["memory"])
    rows = sorted(rows, key=far, reverse=True)
    over = [r for r in rows if jump(r) > 1.5 or not 0.5 <= r["memory"] <= 2]
    print(f"{len(rows)} pairs, {len(over)} jump by more than 1.5 in time or 2 in memory; the worst:")
    print(f"{'case':32s} {'sets of':>18s} {'then':>18s} {'us a set':>20s} {'time':>6s} {'memory':>7s}  switch")
    for r in rows[:most]:
        here, there = (" x ".join(map(str, size)) for size in (r["here"], r["there"]))
        a, b = r["microseconds"]
        print(f"{r['case']:32s} {here:>18s} {there:>18s} {a:9.1f} {b:10.1f} {r['time']:6.2f} {r['memory']:7.2f}  {r['why']}")


def key(row): return row["case"], *row["here"], *row["there"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only cases whose name holds one of these")
    parser.add_argument("--full", action="store_true", help="every name and all sizes")
    parser.add_argument("--out", type=Path, default=Path(".cache/prices.jsonl"), help="what was measured, a line a pair")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    known = {key(row): row for row in map(json.loads, args.out.read_text().splitlines())} if args.out.exists() else {}
    todo = [p for p in pairs(args.full) if not args.words or any(w in p.case for w in args.words)]
    if not args.full and not args.words: todo = todo[::3]
    functions, chosen = calls(args.full), {key(p._asdict()): p for p in todo}
    print(f"{len(chosen)} pairs of {len({p.case for p in todo})} cases, {len(chosen.keys() & known.keys())} of them measured before", flush=True)
    try:
        with args.out.open("a") as file:
            for k in [k for k in chosen if k not in known]:
                known[k] = measure(chosen[k], functions[chosen[k].case], 0.4 if args.full else 0.05, args.full)
                print(json.dumps(known[k]), file=file, flush=True)
    except KeyboardInterrupt:
        print("stopped; the same command goes on")
    report([known[k] for k in chosen if k in known])


if __name__ == "__main__": main()
