"""JupyterLab on the notebooks, with the kernel of this environment.

    python tools/lab.py [a notebook of nbs/] [any option of jupyter lab]
"""
import os, subprocess, sys
from pathlib import Path

from repo import NBS

ENV = {**os.environ, "JUPYTER_PREFER_ENV_PATH": "1",      # this environment's kernel, before one of the same name in the home folder
       "MATPLOTLIBRC": str(NBS / "matplotlibrc")}

def kernel():
    "Install the kernel `python3` that the notebooks name into this environment, where it is not there"
    if not (Path(sys.prefix) / "share/jupyter/kernels/python3/kernel.json").exists():
        subprocess.run([sys.executable, "-m", "ipykernel", "install", "--sys-prefix", "--name", "python3"], check=True, capture_output=True)

def command(*options):
    as_root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [sys.executable, "-m", "jupyterlab", "--notebook-dir", str(NBS), *as_root, *options]

if __name__ == "__main__":
    kernel()
    sys.exit(subprocess.run(command(*(f"--LabApp.default_url=/lab/tree/{a}" if a.endswith(".ipynb") else a for a in sys.argv[1:])), env=ENV).returncode)
