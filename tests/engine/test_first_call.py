"The first call: what it imports, what it keeps on the disk, and what it does where the disk is broken."
import os, resource, subprocess, sys
from pathlib import Path

import pytest

import softsortlib

CALL = """
import sys, logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
import torch
from softsortlib import LaplaceRank
from softsortlib.engine import compile
compile._wait.patience = 0.01
s = torch.linspace(0, 1, 200).repeat(2, 1).requires_grad_()
LaplaceRank(0.1)(s).square().sum().backward()
assert s.grad.isfinite().all()
heavy = [name for name in ("torch._dynamo", "triton", "matplotlib") if name in sys.modules]
assert not heavy, heavy
from softsortlib.ranks.laplace import _rank_rows
print("compiled", sum(_rank_rows.dispatcher.stats.cache_misses.values()))
"""


def call(cache, code=CALL, **env):
    env = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(Path(softsortlib.__file__).parents[1]), **env}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


def test_the_second_process_compiles_nothing_and_broken_files_are_made_anew(tmp_path):
    first = call(tmp_path)
    assert first.returncode == 0 and "compiled 1" in first.stdout, first.stderr
    assert "softsortlib warm" in first.stderr
    second = call(tmp_path)
    assert "compiled 0" in second.stdout and "softsortlib warm" not in second.stderr
    for k, file in enumerate(sorted([*tmp_path.rglob("*_rank_rows*.nbi"), *tmp_path.rglob("*_rank_back_rows*.nbc")])):
        file.write_bytes(file.read_bytes()[:[0, 40][k % 2]])  # as a killed process leaves it
    third = call(tmp_path)
    assert third.returncode == 0 and "compiled 1" in third.stdout, third.stderr
    assert "compiled 0" in call(tmp_path).stdout  # and kept again


def test_a_full_disk_does_not_stop_a_kernel(tmp_path):
    no_room = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (512, {resource.getrlimit(resource.RLIMIT_FSIZE)[1]}))\n"
    ignore = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    run = call(tmp_path, ignore + no_room + CALL, PYTHONDONTWRITEBYTECODE="1")      # it would cut the compiled modules of this package short, too
    assert run.returncode == 0 and "compiled 1" in run.stdout, run.stderr
    assert "cannot be kept" in run.stderr


KERNEL = """
from softsortlib.engine.compile import jit
from .step import step

@jit
def run(x):
    return step(x)
"""


CHANGED = """
import os, sys
import softsortlib.engine.compile
sys.dont_write_bytecode = True      # a file that changes within a second is not read from what was kept of it
[pkg] = [path for path in sys.path if os.path.isdir(os.path.join(path, "pkg"))]
for more in (1, 2):
    with open(os.path.join(pkg, "pkg", "step.py"), "w") as f: f.write(f"from softsortlib.engine.compile import jit\\n@jit\\ndef step(x):\\n    return x + {more}.0\\n")
    for again in range(2):
        sys.stdout.flush()
        child = os.fork()           # has imported neither file
        if child: os.waitpid(child, 0)
        else:
            from pkg.run import run
            print(run(1.0), sum(run.dispatcher.stats.cache_misses.values()))
            sys.stdout.flush()
            os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each call is a fork of its own, which this system does not have")
def test_a_kernel_notices_a_change_in_a_function_of_another_file(tmp_path):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "run.py").write_text(KERNEL)
    changed = call(tmp_path / "cache", CHANGED, PYTHONPATH=os.pathsep.join([str(tmp_path), str(Path(softsortlib.__file__).parents[1])]))
    assert changed.stdout.split() == ["2.0", "1", "2.0", "0", "3.0", "1", "3.0", "0"], changed.stderr


UNCOMPILED = """
import torch
from softsortlib import LaplaceRank
from softsortlib.ranks.laplace import _rank_rows
s = torch.linspace(0, 1, 9, dtype=torch.float64).repeat(2, 1).requires_grad_()
LaplaceRank(0.1)(s).square().sum().backward()
print(_rank_rows.dispatcher is _rank_rows.f, s.grad.numpy().round(10).tolist())
"""


def test_kernels_run_as_plain_python_where_numba_is_switched_off():
    plain, compiled = (call("", UNCOMPILED, NUMBA_DISABLE_JIT=off) for off in "10")        # what is compiled already serves here
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.startswith("True") and compiled.stdout.startswith("False")
    assert plain.stdout.split(maxsplit=1)[1] == compiled.stdout.split(maxsplit=1)[1]


WARMED = """
import torch, softsortlib
from numba.core import event

class Compiled(event.Listener):
    names = []
    def on_start(self, e): self.names.append(e.data["dispatcher"].py_func.__name__)
    def on_end(self, e): pass

softsortlib.warm("laplace")
event.register("numba:compile", Compiled())
for n in (5, 300, 3000):
    s = torch.linspace(0, 1, n).square().requires_grad_()
    softsortlib.soft_rank(s, method="laplace").square().sum().backward()
assert not Compiled.names, Compiled.names
softsortlib.soft_rank(s.double(), method="laplace")
assert Compiled.names                       # not warmed, so that the test sees what it looks for
"""


def test_after_warm_a_call_that_sets_nothing_compiles_nothing(tmp_path):
    run = call(tmp_path, WARMED)
    assert run.returncode == 0, run.stderr
