"The package as it is installed: every module by itself, without the extras, and as a wheel alone."
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_repository import CHAPTERS

ROOT = Path(__file__).parent.parent


EACH_ALONE = """
import importlib, os, sys, warnings
with warnings.catch_warnings():      # torch 2.13 warns about a deprecated decorator of its own
    warnings.simplefilter("ignore")
    import matplotlib.pyplot, sklearn.neighbors, torch._dynamo, typer       # what every child would import again
warnings.simplefilter("error", UserWarning)
import softsortlib      # which any import of a module of it begins with, in the same order: what is here now was imported as it is alone
def alone(name):
    if name in sys.modules: return
    sys.stdout.flush()
    child = os.fork()
    if not child:
        importlib.import_module(name)
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{name} does not import alone")
laboratory = [name for name in sys.argv[1:] if name.startswith("softsortlib.lab.")]
for name in sys.argv[1:]:
    if name not in laboratory: alone(name)
from softsortlib.lab.images import optional     # this module too is here as it is alone; it knows how to import what a third of the laboratory imports
optional("pytorch_lightning")
for name in laboratory: alone(name)
"""


def test_every_module_imports_in_a_process_of_its_own_and_prints_nothing():
    "A name defined in a cell that is not exported passes in the notebook and fails here."
    names = [f"softsortlib.{module}".removesuffix(".__init__") for module in CHAPTERS]
    done = subprocess.run([sys.executable, "-c", EACH_ALONE, *names], cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stdout and not done.stderr


def test_the_core_needs_only_the_runtime_dependencies():
    "Everything but data, training and the command line imports without the extras."
    heavy = ("matplotlib", "sklearn", "scipy", "torchvision", "pytorch_lightning", "torchmetrics", "typer", "fastcore", "nbdev")
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {heavy}: raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import softsortlib, softsortlib.lab.cli
"""
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def needed(requirements):
    "The distributions that requirements lead to, extras aside, as they are installed here."
    found, ahead = {}, list(requirements)
    while ahead:
        requirement = Requirement(ahead.pop())
        name = canonicalize_name(requirement.name)
        if name in found or requirement.marker and not requirement.marker.evaluate({"extra": ""}): continue
        found[name] = metadata.distribution(name)
        ahead += found[name].requires or []
    return found


@pytest.fixture(scope="module")
def wheel_python(tmp_path_factory):
    """A Python of a fresh environment that holds the wheel and what its runtime dependencies lead to, nothing else.

    Dependencies are links to what is installed here: to unpack torch once more takes half a minute. `make dist` installs them."""
    folder = tmp_path_factory.mktemp("wheel")
    clean = folder / "source"
    shutil.copytree(ROOT, clean, ignore=shutil.ignore_patterns(".git", ".venv*", "_docs", "_proc", ".cache", "demo", "nbs", "tests", "__pycache__", "*.egg-info", "build"))
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, clean], check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel], check=True)
    [packages] = (folder / "env" / "lib").glob("python*/site-packages")
    [made] = packages.glob("softsortlib-*.dist-info")
    for dependency in needed(metadata.PathDistribution(made).requires).values():
        for top in {file.parts[0] for file in dependency.files} - {"..", "__pycache__"}:
            if not (packages / top).exists(): (packages / top).symlink_to(dependency.locate_file(top))
    subprocess.run([python, "-m", "pip", "check"], check=True, capture_output=True)
    return python


def test_dependencies_are_followed_without_extras():
    assert {"torch", "numpy", "sympy", "mpmath"} <= needed(["torch", "numpy"]).keys()
    assert not {"matplotlib", "typer", "pytorch-lightning"} & needed(["torch", "numpy", "numba", "typer; extra == 'experiments'"]).keys()


def test_wheel_alone_has_none_of_the_extras(wheel_python):
    code = "import importlib.util as u; print([m for m in ('matplotlib', 'sklearn', 'scipy', 'typer', 'nbdev', 'pytest') if u.find_spec(m)], u.find_spec('softsortlib').origin)"
    said = subprocess.run([wheel_python, "-c", code], cwd="/", env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, capture_output=True, text=True).stdout
    assert said.startswith("[]") and str(wheel_python.parent.parent) in said, said


def test_wheel_alone_runs_the_readme(wheel_python):
    "The wheel, installed with its runtime dependencies only, runs every Python example of the README."
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert blocks, "the README has no example"
    done = subprocess.run([wheel_python, "-W", "error::UserWarning", "-c", "\n".join(blocks)], cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_command_without_its_extra_says_what_to_install(wheel_python):
    done = subprocess.run([wheel_python.parent / "softsortlib", "demo"], cwd="/", capture_output=True, text=True)
    assert done.returncode != 0
    assert "softsortlib[experiments]" in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
