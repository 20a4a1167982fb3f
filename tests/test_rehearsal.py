"""The way to a GPU without one: every kernel compiles for two of them, and `make gpu` rehearses on a machine that has nothing but torch."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.caching import _CacheLocator

triton = pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")
ROOT = Path(__file__).parent.parent

COMPILED = """
import sys
from compiled import check, kernels, specialisations
found = list(specialisations(every=sys.argv[1] == "every"))
print(*kernels())
for capability in map(int, sys.argv[2:]):
    for what in found: print(check(*what, capability))
"""


def compiled(*args):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILED, *args], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    to_launch, *lines = run.stdout.splitlines()
    return set(to_launch.split()), lines


def test_kernels_compile_for_a_gpu_that_is_not_there():
    """One specialisation of each kernel for compute capability 9.0, with the shared memory that a program may have and no register spilled.

    With SOFTSORTLIB_ALL_KERNELS=1 all that the dispatcher can choose, and 8.0 too."""
    every = os.environ.get("SOFTSORTLIB_ALL_KERNELS") == "1"
    to_launch, lines = compiled("every", "80", "90") if every else compiled("few", "90")
    assert to_launch and {line.split()[0] for line in lines} == to_launch


BARE = """
import importlib.machinery as m
find = m.PathFinder.find_spec
ABSENT = ("nbdev", "fastcore", "execnb", "IPython", "matplotlib", "lightning", "torchvision", "sklearn", "pandas")
m.PathFinder.find_spec = classmethod(lambda cls, name, path=None, target=None: None if name.split(".")[0] in ABSENT else find(name, path, target))
"""


def lend_kernels(folder):
    "What numba has compiled here already, where NUMBA_CACHE_DIR=folder looks for it: the machine is bare of packages, and tests/engine is about a cache that is empty."
    for kind in ("nbi", "nbc"):         # a list of versions before the versions that it speaks of
        for kept in ROOT.glob(f"softsortlib/*/__pycache__/*.{kind}"):
            to = folder / _CacheLocator.get_suitable_cache_subpath(str(kept.parents[1] / "any.py"))
            to.mkdir(parents=True, exist_ok=True)
            shutil.copy(kept, to)


def test_make_gpu_rehearses_on_a_bare_machine(tmp_path, slowness):
    "With torch, numba, hypothesis and pytest and nothing else, without a GPU: every stage runs or says why not, writes where it may, and keeps the deadline."
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/sitecustomize.py").write_text(BARE)
    lend_kernels(tmp_path / "out/numba")
    before = {p for p in ROOT.iterdir()} | {p for p in (ROOT / "nbs/results").iterdir()}
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path / "bare"), str(ROOT)))}
    run = subprocess.run([sys.executable, ROOT / "tools/gpu.py", "--minutes", str(2.5 * slowness), "--rounds", "1", "--out", tmp_path / "out"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240 * slowness)
    assert "this is a rehearsal" in run.stdout and run.returncode == 0, run.stdout + run.stderr
    found = {stage: json.loads((tmp_path / "out" / f"{stage}.json").read_text()) for stage in ("device", "tests", "memory", "bench", "speed", "summary")}
    assert found["device"]["rehearsal"] and found["tests"]["exit"] == 0 and "[100%]" in found["tests"]["said"], found["tests"]["said"]
    assert found["memory"]["skipped"] and found["speed"]["skipped"]
    assert found["bench"]["finished"] and not [row for row in found["bench"]["rows"] if "failed" in row], found["bench"]
    assert before == {p for p in ROOT.iterdir()} | {p for p in (ROOT / "nbs/results").iterdir()}
