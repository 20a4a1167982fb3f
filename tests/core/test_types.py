"""Types: what is patched into a class is declared there, and mypy accepts what the README, the tutorials and the API pages show.

A method that a later cell adds by `@patch_to(X)` is not seen by a type checker, so X declares its signature under `if TYPE_CHECKING:`.
The rule: every name that is patched in is declared in the body of X, or of a base of X, or is defined by a base from another package.
A private name (one underscore) that only its own definition mentions needs no declaration.
"""
import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import softsortlib

ROOT = Path(__file__).resolve().parent.parent.parent
LIB, NBS = ROOT / "softsortlib", ROOT / "nbs"
MODULES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(LIB.rglob("*.py")) if path.name != "_modidx.py"}


def patched_class(function):
    "The name of the class that a function is patched into, or None."
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "patch_to":
            return decorator.args[0].id


def patched(modules):
    "class -> {name that is patched in: the functions of that name}"
    found = defaultdict(lambda: defaultdict(list))
    for tree in modules.values():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and (name := patched_class(node)): found[name][node.name].append(node)
    return found


def is_type_checking(node): return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


def declared(body):
    "The names that the body of a class defines or annotates, under TYPE_CHECKING too."
    names = set()
    for node in body:
        if is_type_checking(node): names |= declared(node.body)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)): names.add(node.name)
        elif isinstance(node, ast.AnnAssign): names.add(node.target.id)
        elif isinstance(node, ast.Assign): names |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return names


def mentions(name, modules, own):
    "Whether any code but the functions `own` has the attribute `.name`."
    inside = {id(n) for function in own for n in ast.walk(function)}
    return any(isinstance(n, ast.Attribute) and n.attr == name and id(n) not in inside for tree in modules.values() for n in ast.walk(tree))


def undeclared(cls, modules):
    "The names patched into `cls`, a class of these modules, that a type checker does not see."
    bodies = {node.name: node for tree in modules.values() for node in tree.body if isinstance(node, ast.ClassDef)}
    known, open_ = set(), [cls]
    while open_:
        node = bodies[open_.pop()]
        known |= declared(node.body)
        open_ += [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in bodies]
    missing = {name: own for name, own in patched(modules)[cls].items() if name not in known}
    return {name for name, own in missing.items() if name.startswith("__") or not name.startswith("_") or mentions(name, modules, own)}


def foreign_names(cls):
    "What a class has from bases of other packages, as torch.nn.Module."
    path = next(path for path, tree in MODULES.items() for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls)
    module = pytest.importorskip(".".join(path.relative_to(ROOT).with_suffix("").parts), reason="the experiments extra is not installed", exc_type=ImportError)
    return {name for base in getattr(module, cls).__mro__ if not base.__module__.startswith("softsortlib") and base is not object for name in vars(base)}


@pytest.mark.parametrize("cls", sorted(patched(MODULES)))
def test_what_is_patched_in_is_declared_in_the_class(cls):
    missing = undeclared(cls, MODULES) - foreign_names(cls)
    assert not missing, f"declare in the body of {cls}, under `if TYPE_CHECKING:`, {', '.join(sorted(missing))}"


def test_a_method_without_a_declaration_is_found():
    code = """
class Base:
    if TYPE_CHECKING:
        def seen(self) -> int: ...

class Grown(Base): pass

@patch_to(Grown)
def seen(self): return 1
@patch_to(Grown)
def forgotten(self): return self._helper()
@patch_to(Grown)
def _helper(self): return 2
@patch_to(Grown)
def _hook(self): return self._hook
@patch_to(Grown, as_prop=True)
def __len__(self): return 3
"""
    assert undeclared("Grown", {"grown.py": ast.parse(code)}) == {"forgotten", "_helper", "__len__"}


# What mypy reads: one folder, one run for all tests below

ASIDE = [
    "dask", "distributed", "IPython", "jupyter_server", "llvmlite", "matplotlib", "numba", "onnx", "onnx_ir", "onnxscript", "prompt_toolkit", "sympy",
    *(f"torch.{part}" for part in ("_dynamo", "_export", "_functorch", "_inductor", "ao", "export", "fx", "onnx")),
]
CONFIG = """
[mypy]
ignore_missing_imports = True
allow_redefinition = True
# who has called backward() knows that x.grad is a tensor, and P.mask one who gave a mask
strict_optional = False
[mypy-softsortlib.*]
follow_imports = silent
# more than half of what would be read: nothing that a page writes has a type from there
[mypy-%s]
follow_imports = skip
"""

WRONG = """
import torch
from softsortlib import SigmoidRank, SoftPermutation, SoftSort, get_operator, soft_permutation, soft_topk

s = torch.tensor([2.0, 5.0, 4.0])
P = SoftPermutation.from_logits(torch.eye(3))
P.to_dens()                                    # error
P.mT.scatter                                   # error
P[..., :2, :].hards()                          # error
P[..., 0, :].log_prob(s)                       # error
P @ [1.0, 2.0]                                 # error
SoftSort()(s).hardd()                          # error
SoftSort()("s")                                # error
get_operator("softsort")(s).straightthrough()  # error
SigmoidRank()(s).hard()                        # error
soft_permutation(s).hardd()                    # error
soft_topk(s, 2)[1].indices                     # error
P.m.shape                                      # error
P.to_dense(), P.mT @ s, P[..., :2, :].hard(), P[..., 0, :].sum(), P.straight_through() @ s, P.log_prob(s.argsort()).sum()
SoftSort()(s).hard(), SigmoidRank()(s).sum(), soft_permutation(s).hard(), soft_topk(s, 2)[1].hard(), P.m + 1
"""


def readme():
    "The Python blocks of the README, one after another."
    return "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S))


def tutorials():
    "name -> the code of the tutorial"
    return {path.stem: "\n".join(code_cells(path)) for path in sorted((NBS / "tutorials").glob("*.ipynb"))}


def code_cells(path):
    "The code of a notebook's cells without the lines that are for IPython."
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    cells = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    return [re.sub(r"^\s*[%!].*$", "", text, flags=re.M) for text in cells]


def examples():
    "name -> the code of its example on the API pages"
    out = {}
    for path in sorted((NBS / "api").glob("*.ipynb")):
        for text in code_cells(path):
            if found := re.search(r"^#\|\s*api:\s*(\S+)", text, re.M): out[found[1].replace(".", "_")] = text
    return out


def write_all(folder):
    "Everything that mypy reads, as files."
    face = "\n".join(f"reveal_type(softsortlib.{name})" for name in softsortlib.__all__)
    (folder / "face.py").write_text(f"import softsortlib\n{face}\n")
    (folder / "wrong.py").write_text(WRONG)
    (folder / "readme.py").write_text(readme())
    for name, text in tutorials().items(): (folder / f"tutorial_{name}.py").write_text(text)
    for name, text in examples().items(): (folder / f"example_{name}.py").write_text(text)
    (folder / "mypy.ini").write_text(CONFIG % ",".join(f"{name}.*" for name in ASIDE))


def check_all(folder):
    "Put everything that mypy reads into a folder, and what it says beside it."
    write_all(folder)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "--no-error-summary", "."]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    (folder / "said.txt").write_text(done.stdout)


@pytest.fixture(scope="module")
def said(made_once):
    "file -> [(line, kind, text)]: what mypy says of each."
    pytest.importorskip("mypy", reason="mypy is not installed: pip install mypy")
    folder = made_once("types", check_all)
    found = {path.name: [] for path in folder.glob("*.py")}
    for name, line, kind, text in re.findall(r"^(\S+\.py):(\d+): (\w+): (.*)$", (folder / "said.txt").read_text(), re.M):
        found[name].append((int(line), kind, text))
    return found


def errors(notes): return [f"{line}: {text}" for line, kind, text in notes if kind == "error"]


def tried(code):
    "The lines that stand in a `try`: there a page shows what goes wrong, and how it is said."
    return {n for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Try) for n in range(node.lineno, node.handlers[0].lineno)}


def surprises(notes, code): return errors([note for note in notes if note[0] not in tried(code)])


def test_every_public_name_has_a_type(said):
    "No parameter and no result is Any, but for what stands behind ** and is passed on."
    assert not errors(said["face.py"])
    types = {softsortlib.__all__[line - 2]: re.sub(r"\*\*\w+: Any", "", text) for line, _, text in said["face.py"]}
    assert types.keys() == set(softsortlib.__all__)
    assert not {name: text for name, text in types.items() if re.search(r"\bAny\b", text)}


def test_the_readme_has_no_type_error(said):
    assert "softsortlib" in readme()
    assert not surprises(said["readme.py"], readme())


@pytest.mark.parametrize("name, code", tutorials().items(), ids=tutorials())
def test_a_tutorial_has_no_type_error(said, name, code): assert not surprises(said[f"tutorial_{name}.py"], code)


@pytest.mark.parametrize("name, code", examples().items(), ids=examples())
def test_an_example_of_the_api_pages_has_no_type_error(said, name, code): assert not surprises(said[f"example_{name}.py"], code)


def test_a_misspelt_attribute_is_reported(said):
    "The run sees through the package: otherwise the tests above would pass whatever it says."
    wrong = {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# error")}
    assert {line for line, kind, _ in said["wrong.py"] if kind == "error"} == wrong, errors(said["wrong.py"])
