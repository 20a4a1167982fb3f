"""Time an older version of the package and this one in turns, and compare what both answer.

    python tests/versions.py main                    the working tree beside a branch or a commit: the whole grid, in a quarter of an hour
    python tests/versions.py HEAD~5 LapSum 20x1000   cells whose name holds all of these words
    python tests/versions.py HEAD~5 --tau 0.01 10    at other temperatures, for scores from a normal distribution

A cell is a forward and a backward pass in single precision on two threads. Each version runs in a process of its own, and both take turns round
after round, so that what else the machine does touches both; the ratio is that of the fastest passes, above one where this version is the slower
one. What seems slow is timed again in new processes: where memory lies makes a tenth, for as long as a process lives. Values and gradients are
compared in single and in double precision, in units of the largest number.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

import softsortlib
from softsortlib import functional, losses

ROOT = Path(__file__).resolve().parent.parent
SIZES = (20, 5), (256, 20), (20, 128), (20, 1000)
MILLION = (1, 10**6)
LISTS = 10_000, 10          # how many, and how long
SECONDS, ROUNDS = 0.05, 9   # that a turn takes, at least; turns of each version
SLOW, AGAIN = 1.15, 3       # a ratio that wants a look; in how many pairs of processes
MAY_DIFFER = {"float32": 1e-5, "float64": 1e-12}

OPERATORS = {
    "SoftSort": lambda tau: softsortlib.SoftSort(tau),
    "SoftSort of squares": lambda tau: softsortlib.SoftSort(tau, power=2),
    "NeuralSort": lambda tau: softsortlib.NeuralSort(tau),
    "LapSum": lambda tau: softsortlib.LapSum(tau),
    "bitonic": lambda tau: softsortlib.SortingNetwork("bitonic", tau=tau),
    "SinkhornSort": lambda tau: softsortlib.SinkhornSort(tau),
}
LINEAR = "SoftSort", "SoftSort of squares", "LapSum"    # a million scores fit
METHODS = "softsort", "laplace", "sigmoid", "gaussian", "permutahedron", "lapsum"


class Cell(NamedTuple):
    "What is asked, f(s, y, tau) for scores s and grades y, both (B, n), and how many scores."
    name: str
    f: Callable
    B: int
    n: int


def product(make, s, y, tau):
    return make(tau)(s) @ y.to(s.dtype)[..., None]


def likelihood(make, s, y, tau):
    return make(tau)(s).log_prob(y.argsort(dim=-1, stable=True))


def matrix(make, s, y, tau):
    return make(tau)(s).to_dense()


def rank(method, s, y, tau):
    return functional.soft_rank(s, method=method, tau=tau)


def top(s, y, tau):
    return functional.soft_topk_mask(s, max(1, s.shape[-1] // 8), method="lapsum", tau=tau)


def of_lists(f, s, y, tau):
    offsets = torch.arange(0, s.numel() + 1, LISTS[1])
    return f(s.flatten(), y.flatten(), tau, offsets)


def grid():
    "All cells."
    for B, n in (*SIZES, MILLION):
        size = f"{B}x{n}"
        for name, make in OPERATORS.items():
            for ask in (product, likelihood, matrix):
                if n < 10**6 or name in LINEAR and ask is not matrix:
                    yield Cell(f"{name}, {ask.__name__}, {size}", partial(ask, make), B, n)
        for method in METHODS:
            yield Cell(f"rank by {method}, {size}", partial(rank, method), B, n)
        yield Cell(f"mask of the top k by lapsum, {size}", top, B, n)
        if n < 10**6:
            yield Cell(f"approx_ndcg_loss, {size}", lambda s, y, tau: losses.approx_ndcg_loss(s, y, tau=tau), B, n)
            yield Cell(f"spearman_loss, {size}", lambda s, y, tau: losses.spearman_loss(s, y, tau=tau), B, n)
    lists = {
        "soft_sort": lambda s, y, tau, offsets: functional.soft_sort(s, tau=tau, offsets=offsets),
        "soft_rank": lambda s, y, tau, offsets: functional.soft_rank(s, tau=tau, offsets=offsets),
        "rank by laplace": lambda s, y, tau, offsets: functional.soft_rank(s, method="laplace", tau=tau, offsets=offsets),
        "approx_ndcg_loss": lambda s, y, tau, offsets: losses.approx_ndcg_loss(s, y, tau=tau, offsets=offsets),
        "spearman_loss": lambda s, y, tau, offsets: losses.spearman_loss(s, y, tau=tau, offsets=offsets),
    }
    for name, f in lists.items():
        yield Cell(f"{name} of lists, {LISTS[0]}x{LISTS[1]}", partial(of_lists, f), *LISTS)


# ------------------------------------------------------------------ one version

def passed(cell, tau, dtype):
    "A function that makes a forward and a backward pass and returns the answer and the gradient."
    rng = torch.Generator().manual_seed(0)
    s = torch.randn(cell.B, cell.n, generator=rng, dtype=torch.float64).to(dtype)
    y = torch.randint(0, 5, s.shape, generator=rng)
    wave = None

    def step():
        nonlocal wave
        x = s.detach().requires_grad_()
        out = cell.f(x, y, tau)
        wave = torch.arange(out.numel(), dtype=dtype).mul(0.7).cos().reshape(out.shape) if wave is None else wave
        out.backward(wave)
        return out.detach(), x.grad
    return step


def seconds(step, count):
    "How long a pass takes, the mean of so many."
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) / count


def serve():
    "Do what comes by the standard input, a line each: prepare a cell, or time it."
    torch.set_num_threads(2)
    cells, told, sys.stdout = {cell.name: cell for cell in grid()}, sys.stdout, sys.stderr
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "cell" in asked:
                cell, dtypes = cells[asked["cell"]], (torch.float32, torch.float64)
                torch.save({str(d).removeprefix("torch."): passed(cell, asked["tau"], d)() for d in dtypes}, asked["to"])
                step = passed(cell, asked["tau"], torch.float32)
                step()
                answer = seconds(step, 1)
            else:
                answer = seconds(step, asked["count"])
        except Exception as e:          # an older version may not know the call
            answer = f"{type(e).__name__}: {str(e)[:80]}"
        print(json.dumps(answer), file=told, flush=True)


# ------------------------------------------------------------------ two versions

class Version:
    "A process that runs the package of one folder."
    def __init__(self, folder):
        how = dict(env={**os.environ, "PYTHONPATH": str(folder)}, cwd=folder, text=True)
        self.process = subprocess.Popen([sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **how)

    def ask(self, **what):
        "What the process answers."
        print(json.dumps(what), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the process of one version ended at {what}")
        return json.loads(line)

    def end(self):
        "Let it go."
        self.process.communicate()


def unpacked(commit):
    "The folder of a commit's package; what it compiles stays there for the next time."
    done = subprocess.run(["git", "rev-parse", "--verify", "--quiet", commit + "^{commit}"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"there is no commit {commit!r} here: name a branch, a tag or a hash, as git log shows it")
    folder = ROOT / ".cache" / "versions" / done.stdout.strip()
    if not (folder / "softsortlib").exists():
        folder.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", done.stdout.strip(), "softsortlib"], cwd=ROOT, check=True, capture_output=True).stdout
        with tempfile.TemporaryDirectory(dir=folder) as made:       # half a package would be taken for all of it
            subprocess.run(["tar", "-x", "-C", made], input=archive, check=True)
            Path(made, "softsortlib").rename(folder / "softsortlib")
    return folder


def apart(old, new):
    "How far two answers of one precision are apart, value and gradient, in units of their largest number."
    def far(a, b):
        if a.shape != b.shape:
            return math.inf
        unit = a.abs().amax().clamp(min=torch.finfo(a.dtype).tiny)
        return ((a - b).abs().amax() / unit).item()
    return max(far(a, b) for a, b in zip(old, new))


def compared(cell, tau, old, new, folder):
    "The row of a cell: milliseconds of both versions, their ratio, how far answers are apart; or why there is none."
    files = [folder / "old.pt", folder / "new.pt"]
    first = [version.ask(cell=cell.name, tau=tau, to=str(file)) for version, file in zip((old, new), files)]
    row = dict(cell=cell.name, tau=tau)
    for who, said in zip(("the older version", "this version"), first):
        if isinstance(said, str):
            return row | {"why": f"{who}: {said}"}
    count, best = max(1, math.ceil(SECONDS / max(first))), [math.inf, math.inf]
    for _ in range(ROUNDS):
        best = [min(b, version.ask(count=count)) for b, version in zip(best, (old, new))]
    was, now = map(torch.load, files)
    return row | {"milliseconds": [1e3 * b for b in best], "ratio": best[1] / best[0]} | {d: apart(was[d], now[d]) for d in MAY_DIFFER}


def fastest(row, again):
    "A row with the fastest passes of both times."
    best = [min(pair) for pair in zip(row["milliseconds"], again["milliseconds"])]
    return row | {"milliseconds": best, "ratio": best[1] / best[0]}


def timed(todo, folder):
    "The row of each cell, in a new process of either version."
    old, new = Version(folder), Version(ROOT)
    try:
        with tempfile.TemporaryDirectory() as answers:
            for cell, tau in todo:
                yield compared(cell, tau, old, new, Path(answers))
    finally:
        old.end()
        new.end()


def report(rows, most=12):
    "The median, the slowest cells, those whose answers differ, those that one version has not."
    done = sorted((r for r in rows if "ratio" in r), key=lambda r: -r["ratio"])
    if done:
        slow = sum(r["ratio"] > SLOW for r in done)
        print(f"\ncells: {len(done)}; median ratio: {statistics.median(r['ratio'] for r in done):.3f}; above {SLOW}: {slow}; the slowest:")
        for r in done[:most]:
            a, b = r["milliseconds"]
            print(f"  {r['ratio']:5.2f}  {a:9.3f} -> {b:9.3f} ms  {r['cell']}, tau {r['tau']:g}")
    for d, bound in MAY_DIFFER.items():
        far = [r for r in done if not r[d] <= bound]
        print(f"{d}: answers differ by at most {max((r[d] for r in done), default=0):.1e}; by more than {bound:g}: {len(far)}")
        for r in sorted(far, key=lambda r: -r[d])[:most]:
            print(f"  {r[d]:.1e}  {r['cell']}, tau {r['tau']:g}")
    for r in rows:
        if "why" in r:
            print(f"not compared: {r['cell']} ({r['why']})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the older version: a branch, a tag or a hash")
    parser.add_argument("words", nargs="*", help="only cells whose name holds all of these")
    parser.add_argument("--tau", nargs="+", type=float, default=[0.1], help="temperatures")
    parser.add_argument("--out", type=Path, help="a file that gets a line of JSON for each cell")
    args = parser.parse_args()
    cells = [cell for cell in grid() if all(word in cell.name for word in args.words)]
    if not cells:
        parser.error(f"no cell holds {' and '.join(args.words)}; there are: " + "; ".join(cell.name for cell in grid()))
    print(f"{len(cells) * len(args.tau)} cells; the first call of each compiles in both versions", flush=True)
    folder, rows, todo = unpacked(args.commit), {}, [(cell, tau) for tau in args.tau for cell in cells]
    try:
        for _ in range(AGAIN):
            for row in timed(todo, folder):
                key = row["cell"], row["tau"]
                rows[key] = fastest(rows[key], row) if key in rows else row
                print(f"{rows[key].get('ratio', math.nan):6.2f}  {row['cell']}, tau {row['tau']:g}", flush=True)
            todo = [(cell, tau) for cell, tau in todo if rows[cell.name, tau].get("ratio", 0) > SLOW]
    except KeyboardInterrupt:
        print("stopped")
    rows = list(rows.values())
    if args.out:
        args.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report(rows)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
