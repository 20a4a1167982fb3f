"""On a machine with a GPU: the kernel tests on CUDA, the GPU half of the benchmark, and the sorting table in the preset `paper`.

    make gpu MINUTES=30 DATA=data        # DATA holds MNIST/raw; runs are begun while time is left, all operators before more seeds

Records go to nbs/results, runs to runs/, and a second call goes on where the first one stopped.
"""
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

root = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root))
if not torch.cuda.is_available(): sys.exit("make gpu needs a CUDA device: torch.cuda.is_available() is False here")

start = time.time()
tests = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "cuda", "tests"], cwd=root, env=dict(os.environ, PYTHONPATH=str(root)))
print(f"tests: exit {tests.returncode} after {time.time() - start:.0f} s", flush=True)

from softsortlib.lab.bench import copy_bandwidth, measure, run_benchmark  # noqa: E402
from softsortlib.lab.records import write_json  # noqa: E402

record = run_benchmark(root / "nbs/results/bench_cuda.json", rounds=5, device="cuda",
                       report=lambda row: print(row["case"], row["n"], row["contender"], row.get("median") or row["absent"], flush=True))
record["copy_bandwidth"], record["kernel_tests_exit"] = copy_bandwidth("cuda"), tests.returncode
write_json(root / "nbs/results/bench_cuda.json", record)

from softsortlib.lab.grid import GRIDS, run_grid  # noqa: E402
import softsortlib.lab.tables  # noqa: E402, F401  registers the tables

minutes, data = float(os.environ.get("MINUTES", 30)), os.environ.get("DATA")
runs = sorted((c for c in GRIDS["sort"]("paper")), key=lambda c: (c.seed, abs(c.n - 5)))
for config in runs:
    if time.time() - start > 60 * minutes: break
    run_grid([config], root / "runs", record=root / "nbs/results", folder=data, accelerator="gpu", devices=1, precision="bf16-mixed", compile="reduce-overhead")
print(f"all: {time.time() - start:.0f} s")
sys.exit(tests.returncode)
