"""The tests of the operators under the oldest versions that settings.ini declares, or under the newest that the index has.

    python tools/torch_versions.py oldest       torch, numpy and numba at their lower bounds
    python tools/torch_versions.py newest       whatever `pip install softsortlib` would take today
    python tools/torch_versions.py oldest -k compile

Makes the environment .venv-oldest or .venv-newest with uv, from nothing, and runs the tests that need no extra.
"""
import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["core", "engine", "rowwise", "networks", "ranks", "functional"]
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
    folders = [f"tests/{folder}" for folder in FOLDERS] + (["tests/test_onnx.py"] if args.which == "newest" else [])
    sys.exit(subprocess.run([python, "-m", "pytest", "-p", "no:cacheprovider", *folders, *more], cwd=ROOT, env=env).returncode)


if __name__ == "__main__": main()
