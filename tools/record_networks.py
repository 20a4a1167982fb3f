"""Time and memory of sorting networks beside the public code and the other operators: the networks paper's table 4, redone.

    python tools/record_networks.py nbs/results/networks_cpu.json [--quick]
    python tools/record_networks.py nbs/results/networks_cpu.json --ranks     # adds fast ranks and transport, beside NeuralSort in the same run

Each row: forward and backward for the matrix of one batch of float32 scores, methods in turn within one run, median of the repeats.
Peers that are not installed are left out. --quick leaves out what takes more than a few seconds.
"""
import importlib, importlib.metadata, json, os, platform, subprocess, sys, time
from pathlib import Path

import torch

from softsortlib.networks.operator import SortingNetwork, default_steepness
from softsortlib.core.operators import get_operator
from softsortlib.core.rank_operators import get_rank_operator

SIZES, BATCHES = (4, 16, 32, 128, 1024), {4: 20, 16: 20, 32: 20, 128: 20, 1024: 1}


def has(name):
    try: importlib.import_module(name)
    except ImportError: return False
    return True


def dense(op):
    def run(s, g): torch.autograd.grad(op(s).to_dense(), s, g)
    return run


def public(kind, n, steepness):
    from diffsort import DiffSortNet
    network = DiffSortNet(kind, n, steepness=steepness)
    def run(s, g): torch.autograd.grad(network(s)[1], s, g.mT)
    return run


def methods(n, quick):
    "Name -> function of scores and the gradient of the matrix."
    out = {}
    for kind in ("bitonic", "odd_even"):
        steepness = default_steepness(kind, n)
        out[kind] = dense(SortingNetwork(kind, tau=1 / steepness))
        if n <= 128: out[f"{kind}, plain"] = dense(SortingNetwork(kind, tau=1 / steepness, backend="torch"))
        if has("diffsort") and (n < 1024 or kind == "bitonic" and not quick): out[f"{kind}, diffsort"] = public(kind, n, steepness)
    for name in ("softsort", "neuralsort", "sinkhorn"):
        if name == "sinkhorn" and n > 128: continue
        try: out[name] = dense(get_operator(name, tau=0.1))
        except ValueError: pass
    return out


def of_ranks(n):
    "What the paper has beside the networks: fast ranks (of the scores, no matrix), transport (plan and ranks), and NeuralSort to compare with."
    def ranks(op):
        def run(s, g): torch.autograd.grad(op(s), s, g[..., 0])
        return run
    found = {"neuralsort": dense(get_operator("neuralsort", tau=0.1)), "permutahedron": ranks(get_rank_operator("permutahedron", tau=0.1))}
    found["sinkhorn"] = dense(get_operator("sinkhorn", tau=0.1))
    if has("torchsort"):
        import torchsort
        found["permutahedron, torchsort"] = ranks(lambda s: torchsort.soft_rank(s, regularization_strength=0.1))
    return found


def measure_ranks(path):
    "Add the rows of `of_ranks` to a record, with an environment of their own: the smallest of the repeats, since other jobs only ever add time."
    rng, rows = torch.Generator().manual_seed(0), []
    for n in SIZES:
        s = torch.randn(BATCHES[n], n, generator=rng).requires_grad_()
        g = torch.randn(BATCHES[n], n, n, generator=rng)
        fs, repeats = of_ranks(n), {4: 100, 16: 50, 32: 30, 128: 15, 1024: 7}[n]
        times = {name: [] for name in fs}
        for f in fs.values(): f(s, g)
        for _ in range(repeats):
            for name, f in fs.items():
                start = time.perf_counter(); f(s, g); times[name].append(time.perf_counter() - start)
        for name, t in times.items(): rows.append(dict(method=name, n=n, batch=BATCHES[n], seconds=min(t), repeats=repeats))
        print(n, {k: f"{1e3 * min(t):.2f} ms" for k, t in times.items()}, flush=True)
    record = json.loads(Path(path).read_text())
    record["ranks"] = dict(environment=environment(torch.get_num_threads(), "paper"), rows=rows)
    Path(path).write_text(json.dumps(record, indent=1) + "\n")


def environment(threads, preset):
    "Versions, threads and how busy the machine was."
    found = dict(torch=torch.__version__, python=platform.python_version(), machine=platform.machine(), threads=threads, cores=os.cpu_count(),
                 load=os.getloadavg()[0], dtype="float32", date=time.strftime("%Y-%m-%d"), preset=preset)
    for name in ("diffsort", "torchsort", "numba"):
        if has(name): found[name] = importlib.metadata.version(name)
    return found


def memory(code):
    "Peak extra memory in bytes of the last line of `code`, in a process of its own after a small rehearsal."
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else None


MEMORY = """
import re, torch
torch.set_num_threads({threads})
{setup}
def status(key): return 1024 * int(re.search(key + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1])
def run(n):
    f, s, g = make(n), torch.randn(1, n).requires_grad_(), torch.randn(1, n, n)
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS"); torch.autograd.grad(f(s), s, g); return status("VmHWM") - before
run(64); print(run({n}))
"""


def main(path, quick):
    threads, rng, rows = torch.get_num_threads(), torch.Generator().manual_seed(0), []
    for n in SIZES:
        batch = BATCHES[n]
        s = torch.randn(batch, n, generator=rng).requires_grad_()
        g = torch.randn(batch, n, n, generator=rng)
        fs = methods(n, quick)
        repeats = {4: 200, 16: 100, 32: 60, 128: 9, 1024: 3}[n] // (3 if quick else 1) or 1
        times = {name: [] for name in fs}
        for f in fs.values(): f(s, g)
        for _ in range(repeats):
            for name, f in fs.items():
                start = time.perf_counter(); f(s, g); times[name].append(time.perf_counter() - start)
        for name, t in times.items(): rows.append(dict(method=name, n=n, batch=batch, seconds=sorted(t)[len(t) // 2], repeats=repeats))
        print(n, {k: f"{1e3 * sorted(t)[len(t) // 2]:.2f} ms" for k, t in times.items()}, flush=True)
    n = 65536
    s, op = torch.randn(n, generator=rng).requires_grad_(), SortingNetwork(tau=1 / default_steepness("bitonic", n))
    values, sort = lambda: torch.autograd.grad((op(s) @ s).sum(), s), lambda: s.detach().sort()
    times = [[], []]
    for f in (values, sort): f()
    for _ in range(7):
        for f, t in zip((values, sort), times): start = time.perf_counter(); f(); t.append(time.perf_counter() - start)
    for name, t in zip(("bitonic, values only", "torch.sort, forward only"), times): rows.append(dict(method=name, n=n, batch=1, seconds=sorted(t)[3], repeats=7))
    print({r["method"]: r["seconds"] for r in rows[-2:]}, flush=True)
    setup = "from softsortlib.networks.operator import SortingNetwork\ndef make(n): return lambda s: SortingNetwork('{kind}', tau=0.1)(s).to_dense()"
    peer = "from diffsort import DiffSortNet\ndef make(n):\n    f = DiffSortNet('{kind}', n, steepness=10.0); return lambda s: f(s)[1]"
    for kind in ("bitonic", "odd_even"):
        for n in (1024,):  # below, the allocator's leftovers are larger than what is measured
            for name, code in ((kind, setup), (f"{kind}, diffsort", peer)):
                if "diffsort" in name and (not has("diffsort") or kind == "odd_even" and n > 128 or quick and n > 128): continue
                bytes_ = memory(MEMORY.format(threads=threads, n=n, setup=code.format(kind=kind)))
                if bytes_ is not None: rows.append(dict(method=name, n=n, batch=1, peak_extra_bytes=bytes_))
    older = json.loads(Path(path).read_text()) if Path(path).exists() else {}
    kept = {"ranks": older["ranks"]} if "ranks" in older else {}
    made = origin()
    here = {**made["environment"], **environment(threads, "quick" if quick else "paper")}
    record = dict(made, environment=here, rows=rows, **kept)
    Path(path).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    if "--ranks" in sys.argv: measure_ranks(sys.argv[1])
    else: main(sys.argv[1], "--quick" in sys.argv)
