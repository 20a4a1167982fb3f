"""Write requirements.lock: the development environment, resolved for every supported Python."""
import subprocess
from pathlib import Path

root = Path(__file__).resolve().parent.parent
lock = root / "requirements.lock"
torch = [line for line in lock.read_text().splitlines() if line.startswith("torch==")]
command = "uv pip compile -q --universal --python-version 3.10 --extra dev --no-header --no-annotate setup.py --constraint -".split()
found = subprocess.run(command, cwd=root, input="\n".join(torch), text=True, capture_output=True, check=True).stdout.splitlines()
# torch's own CUDA packages are left to the build of torch that is installed
keep = [line for line in found if not line.startswith(("nvidia-", "cuda-"))]
lock.write_text("# The development environment, pinned for Python 3.10 to 3.13. Write it anew with: make lock\n" + "\n".join(keep) + "\n")
