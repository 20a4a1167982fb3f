"""What keeps a notebook project alive: exports in step, clean notebooks of bounded size, the order of imports, a wheel that works alone."""
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NBS, LIB = ROOT / "nbs", ROOT / "softsortlib"

# a compiled kernel is one function whose loops cannot be taken apart as freely as the rest
MAX_CELLS, MAX_EXPORT_LINES, MAX_KERNEL_LINES, MAX_BYTES = 90, 30, 45, 200_000


def notebooks():
    return sorted(p for p in NBS.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)


def code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]


def exports(path):
    return [src for src in code_cells(path) if re.match(r"#\|\s*exporti?\b", src)]


def module_of(path):
    for src in code_cells(path):
        if found := re.match(r"#\|\s*default_exp\s+(\S+)", src): return found[1]


CHAPTERS = {module_of(p): p for p in notebooks() if module_of(p)}
ids = [p.relative_to(NBS).as_posix() for p in notebooks()]


def test_every_module_has_its_notebook_and_every_chapter_its_module():
    modules = {p.stem for p in LIB.glob("*.py")} - {"_modidx"}
    assert modules == set(CHAPTERS)


def test_exported_modules_are_up_to_date(tmp_path):
    "Exporting again gives the modules that are committed: nobody edited one by hand, nobody forgot to export."
    shutil.copytree(ROOT, tmp_path / "copy", ignore=shutil.ignore_patterns(".git", ".venv*", "_docs", "_proc", ".cache", "demo", "__pycache__", "results"), symlinks=True)
    shutil.copytree(tmp_path / "copy" / "softsortlib", tmp_path / "committed")
    env = dict(os.environ, PYTHONWARNINGS="ignore")
    subprocess.run([sys.executable, "-c", "from nbdev.doclinks import nbdev_export; nbdev_export()"], cwd=tmp_path / "copy", env=env, check=True, capture_output=True)
    stale = [p.name for p in sorted((tmp_path / "committed").glob("*.py")) if p.read_text() != (tmp_path / "copy" / "softsortlib" / p.name).read_text()]
    assert not stale, f"run `make notebooks` or nbdev_export: {stale} differ from their notebooks"


@pytest.mark.parametrize("path", notebooks(), ids=ids)
def test_notebook_is_clean(path):
    "Cleaning changes nothing: no execution counts, no stray metadata; the outputs that stay are small."
    from execnb.nbio import dict2nb
    from nbdev.clean import clean_nb
    raw = json.loads(path.read_text(encoding="utf-8"))
    nb = dict2nb(json.loads(path.read_text(encoding="utf-8")))
    clean_nb(nb)
    assert [c.get("metadata") for c in nb.cells] == [c.get("metadata") for c in raw["cells"]], "run nbdev_clean"
    assert not [c for c in raw["cells"] if c.get("execution_count")], "run nbdev_clean"
    assert path.stat().st_size <= MAX_BYTES, "the outputs are too large: make the pictures smaller"
    assert not [o for c in raw["cells"] for o in c.get("outputs", []) if o["output_type"] == "error"]


@pytest.mark.parametrize("path", CHAPTERS.values(), ids=CHAPTERS)
def test_chapter_is_readable(path):
    "A chapter is bounded: cells, lines in a cell that exports, one public name a cell, no star imports; prose outweighs code."
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert len(cells) <= MAX_CELLS, "cut the chapter in two"
    for src in exports(path):
        body = [line for line in src.splitlines() if line.strip() and not line.startswith("#|")]
        tree = ast.parse(src)
        public = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")
                  and not any("patch_to" in ast.dump(d) for d in n.decorator_list)}
        kernel = len(tree.body) == 1 and isinstance(tree.body[0], ast.FunctionDef) and tree.body[0].decorator_list and not public
        assert len(body) <= (MAX_KERNEL_LINES if kernel else MAX_EXPORT_LINES), f"{len(body)} lines in the cell that begins {body[0]!r}"
        assert len(public) <= 1 or re.match(r"#\|\s*exporti", src), f"{public} share a cell"
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"]


@pytest.mark.parametrize("path", CHAPTERS.values(), ids=CHAPTERS)
def test_imports_stand_alone(path):
    "Rendering the site runs every cell that imports, so in exported cells imports share a cell with nothing else."
    for src in exports(path):
        kinds = {isinstance(n, (ast.Import, ast.ImportFrom, ast.Try)) for n in ast.parse(src).body}  # a try guards an optional import
        assert kinds != {True, False}, src


def number(path): return path.name.split("_")[0]


@pytest.mark.parametrize("module", CHAPTERS)
def test_no_module_imports_a_later_one(module):
    tree = ast.parse((LIB / f"{module}.py").read_text())
    for node in ast.walk(tree):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            if isinstance(node, ast.ImportFrom) and node.level: name = "softsortlib." + name
            if name.startswith("softsortlib.") and (other := name.split(".")[1]) in CHAPTERS:
                assert number(CHAPTERS[other]) < number(CHAPTERS[module]), f"{module} imports {other}"


@pytest.mark.parametrize("path", [p for p in notebooks() if p.parent.name in ("experiments", "benchmarks", "tutorials")], ids=lambda p: p.name)
def test_leaves_import_the_package_only(path):
    assert not [src for src in code_cells(path) if re.search(r"#\|\s*(export|default_exp)", src)]


@pytest.mark.parametrize("module", CHAPTERS)
def test_every_module_imports_in_a_fresh_process_and_prints_nothing(module):
    "A name defined in a cell that is not exported passes in the notebook and fails here."
    name = "softsortlib" if module == "__init__" else f"softsortlib.{module}"
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", f"import {name}"], cwd="/", capture_output=True, text=True)
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


def test_the_committed_text_names_no_local_path():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not tracked: pytest.skip("not a git checkout")
    local = re.compile(r"/root/\w|/home/[a-z]+/|/Users/[a-z]+/")
    found = [name for name in tracked if Path(name).suffix in (".py", ".ipynb", ".md", ".yml", ".json", ".ini", ".lock", ".css", ".js", "")
             and (ROOT / name).is_file() and local.search((ROOT / name).read_text(encoding="utf-8"))]
    assert not found


@pytest.fixture(scope="module")
def wheel_python(tmp_path_factory):
    "A Python of a fresh environment that holds the wheel and the runtime dependencies, nothing else."
    folder = tmp_path_factory.mktemp("wheel")
    clean = folder / "source"
    shutil.copytree(ROOT, clean, ignore=shutil.ignore_patterns(".git", ".venv*", "_docs", "_proc", ".cache", "demo", "nbs", "tests", "__pycache__", "*.egg-info", "build"))
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, clean], check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "-c", ROOT / "requirements.lock", wheel], check=True)
    return python


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
