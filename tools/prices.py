"""Walk the sizes of sets, batches and payloads, and name the worst jumps of the price of one set between neighbouring sizes.

    python tools/prices.py                      the main operators and losses at small sizes, a third of them, in some minutes
    python tools/prices.py SoftSort lapsum      the cases whose name holds one of these words
    python tools/prices.py --full               every public name that takes scores (tests/tables.py), with weights, temperatures that learn and
                                                both kinds of every loss, at all sizes and around every switch, in some hours

A price is the time, and with --full the memory where it is large, of a forward and a backward pass, single precision, one thread, for
one set, or for one column where the payload grows. Both sizes of a pair are timed in turns, so that what else the machine does touches
both. What was measured is kept in `--out`, a line a pair: stop it when you like, the next run goes on.
"""
import argparse
import importlib
import json
import pkgutil
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch

import softsortlib
from softsortlib import GaussianRank, LapSum, LaplaceRank, NeuralSort, Permutahedron, SigmoidRank, SinkhornSort, SoftSort, SortingNetwork, losses, soft_rank, soft_topk_mask
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
TENS = ("SoftKNN", "soft_matching", "GumbelSinkhorn", "permutation_bce", "soft_permutation", "ImplicitRank", "BlackboxRank", "SimpleTopK", "pirank_loss")     # which make whole matrices, or take thousands of steps
QUADRATIC = {"Perturbed": 1 << 22, "Stochastic": 1 << 24, "Sparsemax": 1 << 24, "Entmax": 1 << 24, "ErrorFree": 1 << 24, "OddEven": 1 << 22, "odd-even": 1 << 22, "NeuralSort transposed": 1 << 28, "neural_ndcg": 1 << 24, "lambda": 1 << 26, "Sinkhorn": 1 << 26}     # B n^2 that ends in time
SEVERAL = 64 << 20    # bytes below which memory is not compared
COLUMNS = (64, 128, 256, 512, 1024, 2048)
ROOT = Path(__file__).resolve().parent.parent


class Pair(NamedTuple):
    "Two neighbouring sizes: batches, elements and columns, and why they are looked at."
    case: str
    here: tuple  # (B, n) or (B, n, d)
    there: tuple
    why: str


def grades(s): return (s.detach() * 7 % 5).floor()


def main_cases():
    "Name -> a function of scores (B, n) that gives a number; of those that people use most."
    found = {f"{name} {question}": lambda s, op=op, ask=ask: ask(op(s), s) for name, op in OPERATORS.items() for question, ask in QUESTIONS.items()}
    found |= {name: lambda s, op=op: op(s).square().sum() for name, op in RANKS.items()}
    found |= {name: lambda s, f=f: f(s, grades(s)).sum() for name, f in LOSSES.items()}
    found |= {f"topk {method}": lambda s, method=method: soft_topk_mask(s, max(1, s.shape[-1] // 5), method=method, tau=0.1).square().sum() for method in ("lapsum", "sparse", "threshold")}
    return found


def learning(s): return torch.full(s.shape[:1], 0.1, requires_grad=True)


def weights_of(s): return 0.5 + s.detach()


def other_ways():
    "The same with weights, with a temperature that learns, and of the other kinds."
    found = {f"{name}, weights": lambda s, f=f: f(s, grades(s), weights=weights_of(s)).sum() for name, f in LOSSES.items() if name in ("spearman", "kendall")}
    found |= {f"{name}, tau": lambda s, f=f: f(s, grades(s), tau=learning(s)).sum() for name, f in LOSSES.items() if name != "listmle"}
    found |= {f"rank {method}, weights": lambda s, method=method: soft_rank(s, method=method, tau=0.1, weights=weights_of(s)).square().sum() for method in ("softsort", "sigmoid", "gaussian", "laplace")}
    found |= {f"topk {method}, weights": lambda s, method=method: soft_topk_mask(s, s.shape[-1] / 8, method=method, tau=0.1, weights=weights_of(s)).square().sum() for method in ("lapsum", "sinkhorn")}
    found |= {f"{name} product, tau": lambda s, name=name: (type(OPERATORS[name])(tau=learning(s))(s) @ s).sum() for name in ("SoftSort", "NeuralSort", "LapSum", "bitonic", "Sinkhorn")}
    found |= {f"{name}, tau": lambda s, name=name: type(RANKS[name])(learning(s))(s).square().sum() for name in RANKS}
    found |= {f"{name}, {kind}": lambda s, f=f, kind=kind: f(s, grades(s), kind=kind).sum() for name, f in {"kendall": losses.kendall_loss, "weighted kendall": losses.weighted_kendall_loss}.items() for kind in ("logistic", "sigmoid")}
    return found


def public_cases():
    "Every operator, function and loss of the tables that the tests go through, so that a new name comes in by itself."
    sys.path.insert(0, str(ROOT / "tests"))
    tables = importlib.import_module("tables")
    found = {f"{row.name} {question}": lambda s, row=row, ask=ask: ask(row.make(tau=0.1)(s), s) for row in tables.OPERATORS for question, ask in QUESTIONS.items()
             if question != "likelihood" or row.promises.get("claims") and "of" not in row.promises}
    found |= {row.name: lambda s, row=row: row.make(tau=0.1)(s).square().sum() for row in tables.RANKS}
    found |= {call.name: lambda s, call=call: call.f(s, 0.1, None).square().sum() for call in tables.FUNCTIONS + tables.HOST_FUNCTIONS if not call.name.startswith("chunked")}
    found |= {call.name: lambda s, call=call: call.f(s, grades(s), 0.1, None).sum() for call in tables.LOSSES + tables.HOST_LOSSES if not call.name.startswith("hard_metric")}
    return found


def cases(full):
    return {**public_cases(), **other_ways(), **main_cases()} if full else main_cases()


def by_columns(name):
    "A function of scores and of the number of columns of a payload, for an operator."
    def f(s, d):
        x = (s.detach()[..., None] * torch.linspace(1, 2, d)).requires_grad_()
        return (OPERATORS[name](s) @ x).square().sum()
    return f


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


def around_columns():
    "Twice as many columns, whose price must be the same; and one more around each switch of columns."
    for B, n in ((1, 1000), (1, 300), (64, 50)):
        for d in COLUMNS[:-1]: yield (B, n, d), (B, n, 2 * d), "columns"
        for name, (value, measure) in SWITCHES.items():
            if measure == "d" and value > 1: yield (B, n, int(value) - 1), (B, n, int(value)), name


def hard(case, n, B, entries):
    "Whether a case takes too long at a size."
    most = min([1 << 40] + [v for k, v in {**MOST, **QUADRATIC}.items() if k.lower() in case.lower()])
    return entries > most or case in TENS and entries > 1 << 22


def pairs(full):
    "All pairs of all cases that can be measured in bearable time."
    sizes = list(dict.fromkeys([*around_switches(), *on_a_grid(1 << (20 if full else 10))]))
    seen = set()
    for case in cases(full):
        for here, there, why in sizes:
            B, n = there
            small = n <= 1100 and B * n * n <= 1 << 19 or B == 1 and n <= 1100
            if (case, here, there) in seen or not full and not small: continue
            if hard(case, n, B, B * n * (64 if "wide" in case else n)) or B * n > 1 << 20: continue
            seen.add((case, here, there))
            yield Pair(case, here, there, why)
    for name in OPERATORS:
        for here, there, why in around_columns():
            if full or there[1] <= 300 and there[2] <= 512: yield Pair(f"{name} columns", here, there, why)


def seconds(f, scores):
    "One forward and backward pass: the time of the processor, which other programs do not lengthen."
    s = scores.detach().requires_grad_()
    start = time.process_time()
    y = f(s)
    if y.requires_grad: y.backward()
    return time.process_time() - start


def peak(f, scores):
    "Bytes that a forward and backward pass adds to what the process holds; None where the system does not tell."
    trim_memory()
    return peak_memory(lambda: seconds(f, scores))


def measure(pair, f, budget, memory):
    "The prices of a set, or of a column of one, at both sizes."
    scores = [torch.rand(*size[:2], generator=torch.Generator().manual_seed(0)) for size in (pair.here, pair.there)]
    asks = [(lambda s, d=size[2]: f(s, d)) if len(size) > 2 else f for size in (pair.here, pair.there)]
    [seconds(ask, s) for ask, s in zip(asks, scores)]
    best, start = [min(seconds(ask, s) for _ in range(2)) for ask, s in zip(asks, scores)], time.perf_counter()      # without what the first call compiles
    while time.perf_counter() - start < budget: best = [min(b, seconds(ask, s)) for b, ask, s in zip(best, asks, scores)]
    sets = [size[0] * (size[2] if len(size) > 2 else 1) for size in (pair.here, pair.there)]
    held = [peak(ask, s) if memory else None for ask, s in zip(asks, scores)]
    row = pair._asdict() | {"microseconds": [1e6 * b / B for b, B in zip(best, sets)], "bytes": held}
    row["time"] = row["microseconds"][1] / row["microseconds"][0]
    row["memory"] = (held[1] / sets[1]) / (held[0] / sets[0]) if None not in held and min(held) > 0 and max(held) > SEVERAL else 1.0
    return row


def jump(row):
    "How far the price of a set rises, or falls by more than what a call costs apart from its sets."
    (a, b), sizes = row["microseconds"], (row["here"], row["there"])
    here, there = (size[0] * (size[2] if len(size) > 2 else 1) for size in sizes)
    return max(row["time"], a * here / (b * there))


def report(rows, most=25):
    "The worst jumps, up or down."
    def far(row): return max(jump(row), row["memory"] / 4 * 3, 0.75 / row["memory"])
    rows = sorted(rows, key=far, reverse=True)
    over = [r for r in rows if jump(r) > 1.5 or not 0.5 <= r["memory"] <= 2]
    print(f"{len(rows)} pairs, {len(over)} jump by more than 1.5 in time or 2 in memory; the worst:")
    print(f"{'case':26s} {'sets of':>16s} {'then':>16s} {'us a set':>20s} {'time':>6s} {'memory':>7s}  switch")
    for r in rows[:most]:
        here, there = (" x ".join(map(str, size)) for size in (r["here"], r["there"]))
        a, b = r["microseconds"]
        print(f"{r['case']:26s} {here:>16s} {there:>16s} {a:9.1f} {b:10.1f} {r['time']:6.2f} {r['memory']:7.2f}  {r['why']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only cases whose name holds one of these")
    parser.add_argument("--full", action="store_true", help="every name and all sizes")
    parser.add_argument("--out", default=".cache/prices.jsonl", help="what was measured, a line a pair")
    args = parser.parse_args()
    torch.set_num_threads(1)
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    known = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(r["case"], *r["here"], *r["there"]) for r in known}
    todo = [p for p in pairs(args.full) if not args.words or any(w in p.case for w in args.words)]
    if not args.full and not args.words: todo = todo[::3]
    chosen = {(p.case, *p.here, *p.there) for p in todo}
    functions = cases(args.full) | {f"{name} columns": by_columns(name) for name in OPERATORS}
    print(f"{len(todo)} pairs of {len({p.case for p in todo})} cases, {sum((p.case, *p.here, *p.there) in done for p in todo)} of them measured before")
    try:
        with out.open("a") as file:
            for p in todo:
                if (p.case, *p.here, *p.there) in done: continue
                row = measure(p, functions[p.case], 0.4 if args.full else 0.05, args.full)
                known.append(row)
                print(json.dumps(row), file=file, flush=True)
    except KeyboardInterrupt:
        print("stopped; the same command goes on")
    report([r for r in known if (r["case"], *r["here"], *r["there"]) in chosen])


if __name__ == "__main__": main()
