"""A training run and the machine's faults: killed and interrupted at random moments, a full disk, a read-only home, two processes on one folder.

A process that has imported everything forks the runs, so that a try costs no import; what comes out is compared with the run that
nothing disturbed.
"""
import gzip
import importlib.util
import json
import os
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

for extra in ("pytorch_lightning", "sklearn"):
    if not importlib.util.find_spec(extra): pytest.skip("the experiments extra is not installed", allow_module_level=True)
if not hasattr(os, "fork"): pytest.skip("this system has no fork", allow_module_level=True)

from softsortlib.lab.sorting import SortConfig
from softsortlib.lab.sources import DataError, read_idx
from softsortlib.lab.training import train

TINY = SortConfig(n=3, digits=1, steps=60, epoch=4, tau=8.0, batch=4, val_sets=20, test_sets=40, schedule="cosine", seed=5)

NURSERY = """
import json, os, random, resource, signal, sys, time, traceback, warnings
from pathlib import Path
from softsortlib.lab.sorting import SortConfig
from softsortlib.lab.training import train
warnings.simplefilter("ignore")
config, out, fault = SortConfig(**json.loads(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]
rng = random.Random(int(sys.argv[4]))

def child(limit=None):
    "Train in a process of its own."
    pid = os.fork()
    if pid: return pid
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if limit:
            sys.dont_write_bytecode = True      # modules cut short would stay
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        train(config, out, threads=1)
        code = 0
    except KeyboardInterrupt: code = 130
    except BaseException as error:
        print(type(error).__name__, str(error).splitlines()[:1], flush=True)
        code = 1
    os._exit(code)

def ended(pid): return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

found = []
if fault == "signals":
    while not (out / "result.json").exists() and len(found) < 10:
        pid = child()
        last = len(found) == 9
        time.sleep(rng.uniform(0.05, 0.6) if not last else 0)
        if not last: os.kill(pid, rng.choice([signal.SIGKILL, signal.SIGINT]))
        found.append(ended(pid))
if fault == "full disk":
    found = [ended(child(limit)) for limit in (10, rng.randrange(200, 3000), rng.randrange(3000, 20000))] + [ended(child())]
if fault == "two":
    both = [child(), child()]
    found = [ended(pid) for pid in both]
    if not (out / "result.json").exists(): found.append(ended(child()))
print(json.dumps(found))
"""


def nurse(fault, out, seed=0):
    "The exit codes of the runs under a fault, and what they printed."
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", NURSERY, json.dumps(asdict(TINY)), str(out), fault, str(seed)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    *said, codes = done.stdout.splitlines()
    return json.loads(codes), said


def numbers(result):
    timeless = [{k: v for k, v in point.items() if "seconds" not in k} for point in result["curve"]]
    return timeless, result["test"], result["before"], result["best_step"], result["config"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return numbers(train(TINY, tmp_path_factory.mktemp("alone") / "run", threads=1))


def result(out): return numbers(json.loads((out / "result.json").read_text()))


def test_signals_at_random_moments_cost_nothing_but_time(alone, tmp_path):
    codes, said = nurse("signals", tmp_path / "run", seed=7)
    assert set(codes) <= {0, -9, 130} and (-9 in codes or 130 in codes) and codes[-1] == 0, (codes, said)
    assert result(tmp_path / "run") == alone


def test_a_full_disk_ends_a_run_and_the_next_one_goes_on(alone, tmp_path):
    codes, said = nurse("full disk", tmp_path / "run", seed=3)
    assert codes == [1, 1, 1, 0], (codes, said)
    assert result(tmp_path / "run") == alone


def test_two_processes_on_one_folder_end_in_the_run_of_one(alone, tmp_path):
    codes, said = nurse("two", tmp_path / "run")
    assert codes[-1] == 0 or 0 in codes, (codes, said)
    assert result(tmp_path / "run") == alone


READ_ONLY = """
import torch, softsortlib
from softsortlib.lab.data import load_images
s = torch.linspace(-1, 1, 100, dtype=torch.float64).sin().requires_grad_()
for method in ("softsort", "neuralsort", "bitonic", "lapsum"): softsortlib.soft_sort(s, method=method).sum().backward()
assert s.grad.isfinite().all() and len(load_images("digits")["test"]) == 400
"""


def test_a_home_that_cannot_be_written_is_done_without(tmp_path):
    env = {**os.environ, "HOME": "/proc/none", "XDG_CACHE_HOME": "/proc/none", "MPLCONFIGDIR": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", READ_ONLY], env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("name", ["idx", "idx.gz"])
def test_a_file_that_is_cut_or_altered_anywhere_is_named(name, tmp_path):
    "Every length, and a byte changed at random places: the array, or a message that names the file."
    rng = random.Random(0)
    raw = b"\0\0\x08\x02\0\0\0\x04\0\0\0\x08" + bytes(range(32))
    whole = gzip.compress(raw) if name.endswith(".gz") else raw
    harmed = [whole[:k] for k in range(len(whole))] + [whole[:k] + bytes([rng.randrange(256)]) + whole[k + 1:] for k in rng.choices(range(len(whole)), k=100)]
    path, refused = tmp_path / name, 0
    for bad in harmed:
        path.write_bytes(bad)
        try: read_idx(path)
        except DataError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused >= len(whole)
