"""Which lines and branches of the package its tests run, the laboratory left out: the record that `nbs/statements.ipynb` shows.

    python tools/measure_coverage.py                   what is missing of it, then nbs/results/coverage.json
    python tools/measure_coverage.py --minutes 4       stop after the piece under way and go on next time
    python tools/measure_coverage.py --lines ranks     which lines are not run, of the modules whose name has this in it
    python tools/measure_coverage.py --fresh           forget what was measured before

Kernels run uncompiled (NUMBA_DISABLE_JIT=1), as plain Python, because a tracer sees no machine code; those of Triton run in its interpreter,
in the processes that the tests start. Tests that take longer than PATIENCE seconds that way are left out: they measure size, and reach
no line that a small one does not. A piece is a file of tests, or every k-th test of a long one, in a process of its own.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest

import repo
from repo import ROOT

DATA, RECORD = ROOT / ".cache" / "coverage", ROOT / "nbs" / "results" / "coverage.json"
PATIENCE = 5
OTHERS = ("test_custom_operators", "test_properties", "test_arguments", "test_messages", "test_defects", "test_extremes")    # these run a bit of everything
READS = ("core/test_types.py",)                                                                            # the type checker reads, and runs nothing
SHARES = {"core/test_contract.py": 6, "core/test_copies.py": 2, "losses/test_conventions.py": 2, "test_properties.py": 6, "test_arguments.py": 2}      # so that a piece takes a few minutes
COMPILED = ("engine/test_first_call.py", "distributed/test_distributed.py")         # asks what the compiler did; has few kernels, and processes that wait for one another
SETTINGS = """[run]
source = softsortlib
omit = */softsortlib/lab/*, */softsortlib/_modidx.py
branch = True
parallel = True
patch = subprocess
data_file = {data}
[report]
exclude_also =
    if TYPE_CHECKING:
"""
# Why a line is not run: the first pattern of "part/module.py:function" or of the line itself that fits.
REASONS = (
    ("where", "*_triton.py:*", "launches on a GPU, and kernels of which the interpreter runs a copy that the tracer does not see"),
    ("where", "engine/compile.py:_exp_neg*", "code that only numba compiles, in the place of `exp_neg`"),
    ("where", "engine/compile.py:KernelCache*", "the cache of compiled kernels, which nothing fills here"),
    ("where", "engine/compile.py:_Wait*", "the word to those who wait for the compiler"),
    ("where", "*:_fake*", "shapes alone, asked by torch's tracer, which tests of compiled graphs do in the usual run"),
    ("line", r"cuda|triton|device_count|\.type != \"cpu\"", "on a GPU"),
    ("line", r"NotImplementedError|has_triton|ImportError", "a package that is not installed, or a subclass that nobody wrote"),
)


def pieces():
    "{name: (file, share, of how many)} of the pieces: the files of tests, long ones in shares."
    folders = [p for p in sorted((ROOT / "tests").iterdir()) if p.is_dir() and (ROOT / "softsortlib" / p.name).is_dir() and p.name != "lab"]
    own = sorted((p for folder in folders for p in folder.glob("test_*.py")), key=lambda p: (p.parent.name in ("core", "distributed"), p))
    files = {p.relative_to(ROOT / "tests").as_posix(): p for p in own + [ROOT / "tests" / f"{name}.py" for name in OTHERS]}
    shares = [(name, path, SHARES.get(name, 1)) for name, path in files.items() if name not in READS]
    return {f"{name}:{i}" if n > 1 else name: (path, i, n) for name, path, n in shares for i in range(n)}


def run(name, path, share, of):
    "Measure one piece: what pytest says in its last line."
    folder = DATA / re.sub(r"\W", "_", name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "rc").write_text(SETTINGS.format(data=folder / "data"), encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")]), "COVERAGE_RCFILE": str(folder / "rc"), "COVERAGE_SHARE": f"{share}/{of}"}
    if name not in COMPILED: env["NUMBA_DISABLE_JIT"] = "1"
    command = [sys.executable, "-m", "coverage", "run", "-m", "pytest", "-p", "measure_coverage", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning", "--no-header", "--tb=line", path]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    (folder / "said").write_text(done.stdout + done.stderr, encoding="utf-8")
    said = re.sub(r"\x1b\[\d*m", "", done.stdout).strip().splitlines()
    return said[-1] if said else done.stderr[-200:]


def patience(seconds):
    "From here on a test is skipped after so many seconds of this process, or ten times as many on the clock; 0: after no time."
    timers = {signal.SIGPROF: signal.ITIMER_PROF, signal.SIGALRM: signal.ITIMER_REAL}
    def too_long(sign, frame):
        if "coverage" in Path(frame.f_code.co_filename).parts: signal.setitimer(timers[sign], 0.01)      # the tracer holds a lock there: a little later
        else: raise pytest.skip.Exception(f"takes more than {seconds} s uncompiled")
    for (sign, timer), after in zip(timers.items(), (seconds, 10 * seconds)):
        signal.signal(sign, too_long)
        signal.setitimer(timer, after)


def pytest_collection_modifyitems(config, items):
    share, of = map(int, os.environ.get("COVERAGE_SHARE", "0/1").split("/"))
    config.hook.pytest_deselected(items=[item for i, item in enumerate(items) if i % of != share])
    items[:] = items[share::of]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item): patience(6 * PATIENCE)          # what a fixture makes serves many tests


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item): patience(PATIENCE)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item): patience(0)


def combined():
    "What all pieces ran: coverage's own report."
    rc = DATA / "rc"
    rc.write_text(SETTINGS.format(data=DATA / "all").replace("parallel = True\npatch = subprocess\n", ""), encoding="utf-8")
    for line in (["combine", "--keep", "-q", *DATA.rglob("data.*")], ["json", "-q", "-i", "-o", DATA / "report.json"]):
        subprocess.run([sys.executable, "-m", "coverage", line[0], f"--rcfile={rc}", *line[1:]], cwd=ROOT, check=True)
    return json.loads((DATA / "report.json").read_text(encoding="utf-8"))["files"]


def reason(where, line):
    "Why a line is not run; an empty string where no rule says it."
    for kind, pattern, why in REASONS:
        if fnmatch(where, pattern) if kind == "where" else re.search(pattern, line): return why
    return ""


def missed(module, functions):
    "{reason: {function: how many lines}} of the lines that are not run, by coverage's own list of functions, which tells two of one name apart by their lines"
    text, out = (ROOT / "softsortlib" / module).read_text(encoding="utf-8").splitlines(), {}
    for name, found in functions.items():
        name = name.partition("@")[0]
        for line in found["missing_lines"]: out.setdefault(reason(f"{module}:{name}", text[line - 1]), Counter())[name] += 1
    return out


def record(files, said):
    "What is kept of the report."
    modules = {}
    for name, found in sorted(files.items()):
        module, s = Path(name).relative_to("softsortlib").as_posix(), found["summary"]
        if not s["num_statements"]: continue
        modules[module] = dict(lines=s["num_statements"], run=s["covered_lines"], branches=s["num_branches"], taken=s["covered_branches"], missed=missed(module, found["functions"]))
    from softsortlib.lab.records import origin                  # not above: pytest loads this file as a plug-in, before the tracer would see the package
    return dict(python=".".join(map(str, sys.version_info[:2])), patience=PATIENCE, pieces=said, modules=modules, **origin())


def main():
    ap = repo.arguments(__doc__)
    ap.add_argument("--minutes", type=float, default=1e9, help="begin no piece after that")
    ap.add_argument("--lines", metavar="NAME", help="print the lines that are not run")
    ap.add_argument("--fresh", action="store_true", help="measure every piece anew")
    args, start = ap.parse_args(), time.time()
    if args.fresh: shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True, exist_ok=True)
    done = DATA / "done.json"
    said = json.loads(done.read_text(encoding="utf-8")) if done.exists() else {}
    for name, (path, share, of) in pieces().items():
        if name in said or args.lines: continue
        if time.time() - start > 60 * args.minutes: sys.exit(f"{len(said)} of {len(pieces())} pieces: run it again")
        said[name] = run(name, path, share, of)
        print(f"{name}: {said[name]}", flush=True)
        done.write_text(json.dumps(said, indent=1), encoding="utf-8")
    files = combined()
    for name, found in files.items():
        if args.lines and args.lines in name: print(name, found["missing_lines"], "branches", found["missing_branches"])
    if args.lines: return
    kept = record(files, said)
    RECORD.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for what, of in (("lines", "run"), ("branches", "taken")):
        total, hit = (sum(m[key] for m in kept["modules"].values()) for key in (what, of))
        print(f"{what}: {hit} of {total}, {hit / total:.1%}")


if __name__ == "__main__": main()
