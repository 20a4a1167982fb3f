"""The tests of the operators under the oldest versions that settings.ini declares, or under the newest that the index has.

    python tools/torch_versions.py oldest       torch, numpy and numba at their lower bounds
    python tools/torch_versions.py newest       whatever `pip install softsortlib` would take today
    python tools/torch_versions.py oldest -k compile

Makes the environment .venv-oldest or .venv-newest with uv, from nothing, and runs the tests that need no extra. What was counted goes into
nbs/results/versions.json, which nbs/statements.ipynb shows.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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


def counted(junit):
    "How many tests passed, failed and were skipped, from pytest's report."
    suite = ET.parse(junit).getroot().find("testsuite").attrib
    failed, skipped = int(suite["failures"]) + int(suite["errors"]), int(suite["skipped"])
    return dict(passed=int(suite["tests"]) - failed - skipped, failed=failed, skipped=skipped)


def tests(which):
    "The folders and files that are run."
    return [f"tests/{folder}" for folder in FOLDERS] + [f"tests/{name}.py" for name in FILES + (["test_onnx"] if which == "newest" else [])]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("which", choices=["oldest", "newest"])
    ap.add_argument("--python", default=sys.executable, help="the interpreter of the environment")
    args, more = ap.parse_known_args()
    home = ROOT / f".venv-{args.which}"
    subprocess.run([shutil.which("uv") or "uv", "venv", "-q", "--clear", "-p", args.python, home], check=True)
    python = home / "bin" / "python"
    install(python, args.which)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"NUMBA_CACHE_DIR": str(home / "cache")}
    junit = home / "said.xml"
    done = subprocess.run([python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={junit}", *tests(args.which), *more], cwd=ROOT, env=env)
    if not more: record(args.which, versions(python), counted(junit))
    sys.exit(done.returncode)


if __name__ == "__main__": main()
