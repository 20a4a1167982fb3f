"""Run the notebooks as nbdev_test does, each in a process of its own, and compare what they display now with what is recorded: pages show what their code makes.

    python tools/fresh.py                          every notebook
    python tools/fresh.py nbs/howto.ipynb --jobs 2 these

Outputs are compared on the pages that people read for them: tutorials, how-to, results, the pages of nbs/ itself. The words must be the
same, and numbers agree to one in a thousand. A cell whose output may differ says by how much, or that only its words count:

    #| fresh 0.05          numbers may differ by five per cent
    #| fresh words         numbers are measured: times, counts, memory
    #| fresh no            what it shows depends on the machine as a whole
"""
import copy, os, re, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import nbdev.test
from execnb.shell import CaptureShell
from nbdev.config import get_config

import repo

PAGES = ("tutorials", "experiments", "benchmarks", "")            # the folders of nbs/ whose outputs are compared
TOLERANCE, SMALL = 1e-3, 1e-5                                      # relative; what is smaller than that is rounding
NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?(?![\w])|\bnan\b|\binf\b")
ADDRESS = re.compile(r" at 0x[0-9a-f]+|/tmp/[\w./-]+")

def displayed(cell):
    "The text that a cell shows: what it prints, returns or displays; the newest state of a bar that rewrites itself"
    out = []
    for o in cell.get("outputs", []):
        if o["output_type"] == "error": out.append("".join(o.get("ename", "")) + ": " + "".join(o.get("evalue", "")))
        elif o["output_type"] == "stream" and o.get("name") == "stdout" or "text" in o: out.append("".join(o["text"]))
        else: out.append("".join(o["data"].get("text/markdown") or o["data"].get("text/plain", "")) if "image/png" not in o["data"] and "image/svg+xml" not in o["data"] else "a picture")
    return ADDRESS.sub("", "\n".join(" ".join(line.rsplit("\r", 1)[-1].split()) for text in out for line in text.strip().splitlines()))

def value(text):
    "The number that a text writes"
    return float(text.replace(",", "").replace("−", "-").rstrip("."))

def unit(text):
    "One unit of the last digit that a number shows behind its point, or 0"
    digits, _, power = text.partition("e")
    places = len(digits.partition(".")[2])
    return 10.0 ** (int(power or 0) - places) if places else 0.0

def difference(old, new, tolerance=TOLERANCE):
    "What differs between two texts beyond a relative tolerance of their numbers (None: only the words count), or an empty string"
    words = [" ".join(NUMBER.sub("#", text).split()) for text in (old, new)]
    if words[0] != words[1]:
        at = len(os.path.commonprefix(words))
        return f"{words[0][max(0, at - 40):at + 60]!r} is {words[1][max(0, at - 40):at + 60]!r} now"
    for a, b in zip(NUMBER.findall(old), NUMBER.findall(new), strict=True):
        if tolerance is None or a == b: continue
        x, y = value(a), value(b)
        last = unit(a)
        if not abs(x - y) <= max(tolerance * max(abs(x), abs(y)), SMALL, 1.01 * last): return f"{a} is {b} now"
    return ""

def declared(directives):
    "The tolerance of a cell: a number, None where only the words count, False where nothing is compared"
    word = (directives.get("fresh") or [str(TOLERANCE)])[0]
    return {"words": None, "no": False}.get(word) if word in ("words", "no") else float(word)

class Emptying(CaptureShell):
    "A shell that takes from a cell what it showed before, also where it shows nothing now"
    def cell(self, cell, *args, **how):
        if cell.cell_type == "code": cell["outputs"] = []
        super().cell(cell, *args, **how)

class Comparing(Emptying):
    "A shell that runs a notebook and complains of what it shows differently"
    def run_all(self, nb, **how):
        before = [displayed(c) if c.cell_type == "code" else "" for c in copy.deepcopy(nb.cells)]
        super().run_all(nb, **how)
        found = []
        for cell, old in zip(nb.cells, before):
            if cell.cell_type != "code" or (tolerance := declared(getattr(cell, "directives_", {}))) is False: continue
            if why := difference(old, displayed(cell), tolerance): found.append(f"in the cell {cell.source.strip().splitlines()[0][:70]!r}: {why}")
        self.stale = found

def check(path, deadline=float("inf"), also=()):
    "Run one notebook: (it, whether it runs, what it shows differently, seconds); whether it runs is None where that would begin too late"
    if time.time() > deadline: return path, None, [], 0
    shells, compare = [], path in also or path.relative_to(get_config().nbs_path).parent.as_posix().replace(".", "") in PAGES
    def shell(*args):
        shells.append((Comparing if compare else CaptureShell)(*args))
        return shells[-1]
    nbdev.test.CaptureShell = shell
    ran, seconds = nbdev.test.test_nb(path, skip_flags=get_config().tst_flags.split(), basepath=get_config().lib_path.parent)
    return path, ran, [why for s in shells for why in getattr(s, "stale", [])], seconds

def results(paths, jobs, *how):
    "What `check` says of each notebook, as it comes"
    os.environ.setdefault("MATPLOTLIBRC", str(get_config().nbs_path / "matplotlibrc"))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")            # threads that spin while they wait take the core of the notebook beside them
    server = get_context("forkserver")                             # one process imports what all need; each notebook gets a fork of it
    server.set_forkserver_preload(["torch", "numba", "matplotlib.pyplot", "nbdev.test", "softsortlib", "fresh", "preload"])
    with ProcessPoolExecutor(jobs, mp_context=server, max_tasks_per_child=1) as pool: yield from pool.map(check, paths, *([some] * len(paths) for some in how))

def main():
    ap = repo.arguments(__doc__)
    ap.add_argument("notebooks", nargs="*", type=Path)
    ap.add_argument("--jobs", type=int, default=1)
    args, bad, start = ap.parse_args(), 0, time.time()
    paths = [p.resolve() for p in args.notebooks] or repo.notebooks(get_config().nbs_path)
    for path, ran, stale, seconds in results(paths, args.jobs):
        name = path.relative_to(get_config().config_path)
        for why in stale: print(f"{name}: {why}", flush=True)
        if not ran: print(f"{name} does not run", flush=True)
        bad += not ran or bool(stale)
    print(f"{len(paths)} notebooks in {time.time() - start:.0f} s, {bad} of them fail" + ("; python tools/nb.py NOTEBOOK records what it shows now" if bad else ""))
    return int(bool(bad))

if __name__ == "__main__": sys.exit(main())
