"""Make an environment with softsortlib and every peer library that a package registry serves; one that cannot be installed is named with the reason.

    python tools/bench_peers.py [folder]           .venv-peers if none is named
"""
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

root = Path(__file__).resolve().parent.parent
# softtorch and torchpsort ask for Python 3.12 in their metadata and run on 3.11; dependencies are named one by one so that torch stays as it is
PEERS = {
    "softtorch": ["--no-deps", "--ignore-requires-python", "softtorch", "torchopt", "optree", "graphviz", "POT"],
    "torchpsort": ["--no-deps", "--ignore-requires-python", "torchpsort"],
    "torchsort": ["--no-deps", "--no-build-isolation", "torchsort"],
    "diffsort": ["--no-deps", "diffsort"],
    "POT": ["--no-deps", "POT"],
}
env = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else root / ".venv-peers"
if not env.exists(): venv.create(env, with_pip=True)
pip = [env / "bin" / "python", "-m", "pip", "install", "-q"]
subprocess.run([*pip, "-c", root / "requirements.lock", "-e", root, "scipy", "setuptools", "wheel", "jaxtyping", "typer", "rich"], check=True)
# torchsort takes a CUDA compiler on the path for a CUDA torch, and fails where torch is one for the CPU
hidden = os.pathsep.join(folder for folder in os.environ["PATH"].split(os.pathsep) if not shutil.which("nvcc", path=folder))
for name, what in PEERS.items():
    path = hidden if name == "torchsort" else os.environ["PATH"]
    try: done = subprocess.run([*pip, *what], capture_output=True, text=True, timeout=900, env=dict(os.environ, PATH=path))
    except subprocess.TimeoutExpired: print(f"{name}: absent, the installation took longer than 15 minutes"); continue
    reason = [line for line in done.stderr.splitlines() if "rror" in line][-1:] or ["no reason given"]
    print(f"{name}: installed" if done.returncode == 0 else f"{name}: absent, {reason[0].strip()}")
sys.exit(0)
