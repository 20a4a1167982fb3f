"""`make lab`: JupyterLab opens the notebooks with the kernel of this environment."""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(not importlib.util.find_spec("jupyterlab"), reason="JupyterLab is not installed")
def test_lab_runs_a_line_in_the_right_kernel():
    done = subprocess.run([sys.executable, ROOT / "tools" / "lab.py", "--check"], capture_output=True, text=True, timeout=180, env=dict(os.environ, PYTHONWARNINGS=""))
    assert done.returncode == 0, done.stderr
    assert sys.prefix in done.stdout
