"""Walk the sizes of sets and batches, and name the worst jumps of the price of one set between neighbouring sizes.

    python tools/prices.py                      all cases, around every switch and on a grid between them
    python tools/prices.py SoftSort lapsum      the cases whose name holds one of these words
    python tools/prices.py --quick              small sizes only

A price is the time, and where it is large the memory, of a forward and a backward pass, single precision, one thread, for one
set. Both sizes of a pair are timed in turns, so that what else the machine does touches both. What was measured is kept in
`--out`, a line a pair: stop it when you like, the next run goes on.
"""
import argparse
import importlib
import json
import pkgutil
import time
from pathlib import Path
from typing import NamedTuple

import torch

import softsortlib
from softsortlib import GaussianRank, LapSum, LaplaceRank, NeuralSort, Permutahedron, SigmoidRank, SinkhornSort, SoftSort, SortingNetwork, losses, soft_topk_mask
from softsortlib.engine.dispatch import SWITCHES
from softsortlib.lab.bench import peak_memory
from softsortlib.lab.limits import trim_memory

QUESTIONS = {
    "product": lambda P, s: (P @ s).sum(),
    "transposed": lambda P, s: (P.mT @ s.detach()).square().sum(),
    "likelihood": lambda P, s: P.log_prob(P.hard()).sum(),
    "matrix": lambda P, s: P.to_dense().square().sum(),
    "wide": lambda P, s: (P @ s[..., None].detach().expand(*s.shape, 64).contiguous()).square().sum(),
}
OPERATORS = {"SoftSort": SoftSort(0.1), "SoftSort^2": SoftSort(0.03, power=2), "NeuralSort": NeuralSort(1.0), "LapSum": LapSum(0.1),
             "bitonic": SortingNetwork(tau=0.1), "odd-even": SortingNetwork("odd_even", tau=0.1), "Sinkhorn": SinkhornSort(0.1)}
RANKS = {"LaplaceRank": LaplaceRank(0.1), "SigmoidRank": SigmoidRank(0.1), "GaussianRank": GaussianRank(0.1), "Permutahedron": Permutahedron(0.1)}
LOSSES = {"approx_ndcg": losses.approx_ndcg_loss, "spearman": losses.spearman_loss, "kendall": losses.kendall_loss,
          "lambda": losses.lambda_loss, "listmle": losses.listmle_loss, "neural_ndcg": losses.neural_ndcg_loss}
MOST = {"matrix": 1 << 24, "wide": 1 << 24}    # entries of all matrices, or numbers of the payload
QUADRATIC = {"odd-even": 1 << 22, "NeuralSort transposed": 1 << 28, "neural_ndcg": 1 << 24, "lambda": 1 << 26, "Sinkhorn": 1 << 26}     # B n^2 that ends in time
SEVERAL = 64 << 20    # bytes below which memory is not compared


class Pair(NamedTuple):
    "Two neighbouring sizes: batches and elements, and why they are looked at."
    case: str
    here: tuple  # (B, n)
    there: tuple
    why: str


def cases():
    "Name -> a function of scores (B, n) that gives a number."
    found = {f"{name} {question}": lambda s, op=op, ask=ask: ask(op(s), s) for name, op in OPERATORS.items() for question, ask in QUESTIONS.items()}
    found |= {name: lambda s, op=op: op(s).square().sum() for name, op in RANKS.items()}
    found |= {name: lambda s, f=f: f(s, (s.detach() * 7 % 5).floor()).sum() for name, f in LOSSES.items()}
    found |= {f"topk {method}": lambda s, method=method: soft_topk_mask(s, max(1, s.shape[-1] // 5), method=method, tau=0.1).square().sum() for method in ("lapsum", "sparse", "threshold")}
    return found


def around_switches():
    "Neighbouring sizes on both sides of every switch of a CPU, with its name."
    for module in pkgutil.walk_packages(softsortlib.__path__, "softsortlib."):
        if ".lab" not in module.name: importlib.import_module(module.name)                  # whoever has a switch writes it down as it is imported
    for name, (value, measure) in SWITCHES.items():
        if measure == "n":
            for n in (int(value) - 1, int(value)):
                yield (1 if n > 300 else 64, n), (1 if n > 300 else 64, n + 1), name
        elif measure in ("B n", "B n^2"):
            for n in (5, 20, 48, 100):
                B = int(value) // (n if measure == "B n" else n * n)
                if 1 <= B <= 1 << 18: yield (B, n), (B + 1, n), name
            if measure == "B n^2":
                n = int(value ** 0.5)
                yield (1, n), (1, n + 1), name


def on_a_grid(largest):
    "Powers of two and what lies between them, for one set and for many."
    n = 4
    while n < largest:
        for size in (n, n * 3 // 2):
            for B in (1, 64, 4096):
                if B * size <= 1 << 20: yield (B, size), (B, size + 1), "grid"
        n *= 2


def pairs(quick):
    "All pairs of all cases that can be measured in bearable time."
    sizes = list(dict.fromkeys([*around_switches(), *on_a_grid(1 << (11 if quick else 20))]))
    for case in cases():
        most = min([1 << 40] + [v for k, v in {**MOST, **QUADRATIC}.items() if k in case])
        for here, there, why in sizes:
            entries = there[0] * there[1] * (64 if "wide" in case else there[1])
            if entries <= most and there[0] * there[1] <= (1 << 17 if quick else 1 << 20): yield Pair(case, here, there, why)


def seconds(f, scores):
    "One forward and backward pass: the time of the processor, which other programs do not lengthen."
    s = scores.detach().requires_grad_()
    start = time.process_time()
    f(s).backward()
    return time.process_time() - start


def peak(f, scores):
    "Bytes that a forward and backward pass adds to what the process holds; None where the system does not tell."
    trim_memory()
    return peak_memory(lambda: seconds(f, scores))


def measure(pair, f, budget=0.4):
    "The prices of a set at both sizes."
    scores = [torch.rand(*size, generator=torch.Generator().manual_seed(0)) for size in (pair.here, pair.there)]
    best, start = [seconds(f, s) for s in scores], time.perf_counter()
    best = [min(seconds(f, s) for _ in range(2)) for s in scores]                   # without what the first call compiles
    while time.perf_counter() - start < budget: best = [min(b, seconds(f, s)) for b, s in zip(best, scores)]
    memory = [peak(f, s) for s in scores]
    sets = pair.here[0], pair.there[0]
    row = pair._asdict() | {"microseconds": [1e6 * b / B for b, B in zip(best, sets)], "bytes": memory}
    row["time"] = row["microseconds"][1] / row["microseconds"][0]
    row["memory"] = (memory[1] / sets[1]) / (memory[0] / sets[0]) if None not in memory and min(memory) > 0 and max(memory) > SEVERAL else 1.0
    return row


def report(rows, most=25):
    "The worst jumps, up or down."
    def far(row): return max(row["time"], 1 / row["time"], row["memory"] / 4 * 3, 0.75 / row["memory"])
    rows = sorted(rows, key=far, reverse=True)
    over = [r for r in rows if not 1 / 1.5 <= r["time"] <= 1.5 or not 0.5 <= r["memory"] <= 2]
    print(f"{len(rows)} pairs, {len(over)} jump by more than 1.5 in time or 2 in memory; the worst:")
    print(f"{'case':26s} {'sets of':>16s} {'then':>16s} {'us a set':>20s} {'time':>6s} {'memory':>7s}  switch")
    for r in rows[:most]:
        here, there = (f"{B} x {n}" for B, n in (r["here"], r["there"]))
        a, b = r["microseconds"]
        print(f"{r['case']:26s} {here:>16s} {there:>16s} {a:9.1f} {b:10.1f} {r['time']:6.2f} {r['memory']:7.2f}  {r['why']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only cases whose name holds one of these")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--out", default=".cache/prices.jsonl", help="what was measured, a line a pair")
    args = parser.parse_args()
    torch.set_num_threads(1)
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    known = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(r["case"], *r["here"], *r["there"]) for r in known}
    todo = [p for p in pairs(args.quick) if not args.words or any(w in p.case for w in args.words)]
    chosen = {(p.case, *p.here, *p.there) for p in todo}
    functions = cases()
    try:
        with out.open("a") as file:
            for p in todo:
                if (p.case, *p.here, *p.there) in done: continue
                row = measure(p, functions[p.case])
                known.append(row)
                print(json.dumps(row), file=file, flush=True)
    except KeyboardInterrupt:
        print("stopped; the same command goes on")
    report([r for r in known if (r["case"], *r["here"], *r["there"]) in chosen])


if __name__ == "__main__": main()
