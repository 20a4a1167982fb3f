"""The tests of the operators under the oldest versions that settings.ini declares, or under the newest that the index has.

    python tools/torch_versions.py oldest       torch, numpy and numba at their lower bounds
    python tools/torch_versions.py newest       whatever `pip install softsortlib` would take today
    python tools/torch_versions.py oldest --minutes 8    begin no test after that, and go on next time
    python tools/torch_versions.py oldest -k compile     these alone, and no record

Makes the environment .venv-oldest or .venv-newest with uv and runs the tests that need no extra. What passed is not run again, until `--fresh`;
what failed is. A test that ends the process failed. What was counted goes into nbs/results/versions.json, which nbs/statements.ipynb shows.
"""
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import repo
from repo import ROOT

START = time.time()
RECORD = ROOT / "nbs" / "results" / "versions.json"
FOLDERS = ["core", "engine", "rowwise", "networks", "transport", "ranks", "selection", "sampling", "ragged", "functional", "losses"]
FILES = ["test_custom_operators", "test_defects", "test_extremes", "test_messages", "test_arguments", "test_properties"]
TOOLS = ["pytest", "hypothesis", "scipy"]         # what the tests themselves need
ONNX = ["onnx", "onnxscript", "onnxruntime"]      # and, under the newest, tests/test_onnx.py


def install(python, which):
    "The package's own requirements, lowest or highest, and then what the tests need beside them."
    uv = shutil.which("uv")
    if not uv: sys.exit("this needs uv: pip install uv")
    resolution = {"oldest": "lowest-direct", "newest": "highest"}[which]
    subprocess.run([uv, "pip", "install", "-q", "-p", python, "--resolution", resolution, "-e", ROOT], check=True)
    frozen = subprocess.run([uv, "pip", "freeze", "-p", python, "--exclude-editable"], check=True, capture_output=True, text=True).stdout
    held = [line for line in frozen.splitlines() if line.startswith(("torch==", "numpy==", "numba=="))]
    print(*held, flush=True)
    subprocess.run([uv, "pip", "install", "-q", "-p", python, *held, *TOOLS, *(ONNX if which == "newest" else [])], check=True)


def versions(python):
    "What the environment of an interpreter holds."
    code = "import sys; from importlib.metadata import version as v; print(sys.version.split()[0], *map(v, ('torch', 'numpy', 'numba')))"
    said = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}).stdout
    return dict(zip(("python", "torch", "numpy", "numba"), said.split()))


def record(which, held, counts):
    "Keep what ran under which versions."
    kept = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    RECORD.write_text(json.dumps({**kept, which: {**held, **counts}}, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def tests(which):
    "The folders and files that are run."
    return [f"tests/{folder}" for folder in FOLDERS] + [f"tests/{name}.py" for name in FILES + (["test_onnx"] if which == "newest" else [])]


def outcomes(kept):
    "{test: passed, skipped, failed}; the last word on each, and failed where a test began and never ended."
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    return {test: outcome for outcome, test in (line.split(" ", 1) for line in lines)}


def counted(said, names):
    "How many of these tests passed, failed and were skipped, and how many were not reached."
    found = [said.get(name) for name in names]
    return {word: found.count(word) for word in ("passed", "failed", "skipped")}, found.count(None)


# What follows is a plugin of the pytest that runs the tests: it leaves out what has passed, writes down each outcome, and ends in time.

def keep(outcome, test):
    with open(os.environ["VERSIONS_KEPT"], "a", encoding="utf-8") as f: f.write(f"{outcome} {test}\n")


def pytest_collection_modifyitems(config, items):
    kept = Path(os.environ["VERSIONS_KEPT"])
    kept.with_suffix(".names").write_text("\n".join(item.nodeid for item in items), encoding="utf-8")
    done = {test for test, outcome in outcomes(kept).items() if outcome != "failed"}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_runtest_logstart(nodeid):
    import pytest
    if time.time() - START > 60 * float(os.environ["VERSIONS_MINUTES"]): pytest.exit("the time is over", returncode=77)
    keep("failed", nodeid)


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed": keep(report.outcome, report.nodeid)


def main():
    ap = repo.arguments(__doc__)
    ap.add_argument("which", choices=["oldest", "newest"])
    ap.add_argument("--python", default=sys.executable, help="the interpreter of the environment")
    ap.add_argument("--home", type=Path, help="the environment, instead of .venv-oldest or .venv-newest")
    ap.add_argument("--minutes", type=float, default=1e9, help="begin no test after that")
    ap.add_argument("--fresh", action="store_true", help="make the environment anew and forget what passed")
    args, more = ap.parse_known_args()
    home = args.home or ROOT / f".venv-{args.which}"
    python, kept = home / "bin" / "python", home / "outcomes.txt"
    if args.fresh or not python.exists():
        subprocess.run([shutil.which("uv") or "uv", "venv", "-q", "--clear", "-p", args.python, home], check=True)
        install(python, args.which)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools")]), "NUMBA_CACHE_DIR": str(home / "cache"), "VERSIONS_KEPT": str(kept), "VERSIONS_MINUTES": str(args.minutes)}
    watch = [] if more else ["-p", "torch_versions"]
    done = subprocess.run([python, "-m", "pytest", "-p", "no:cacheprovider", *watch, *tests(args.which), *more], cwd=ROOT, env=env)
    if more: sys.exit(done.returncode)
    counts, left = counted(outcomes(kept), kept.with_suffix(".names").read_text(encoding="utf-8").splitlines())
    print(counts, f"{left} not reached" if left else "")
    if left: sys.exit(f"{left} tests are left: run it again")
    record(args.which, versions(python), counts)
    sys.exit(done.returncode)


if __name__ == "__main__": main()
