"""The API pages: every public name is documented, with shapes, and has an example; each example runs when it is pasted alone."""
import ast
import functools
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
import typing
from pathlib import Path

import pytest
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import api_page  # noqa: E402
import showdoc_table as show  # noqa: E402


SHAPE = re.compile(r"\(.*\)|shape|scalar|broadcast")


def is_tensor(anno): return bool(re.match(r"(Long|Float|Bool)?Tensor\b|tuple\[.*Tensor|.*\bTensor \| None", show.type_name(anno).replace("torch.", "")))


def own_nodes(node):
    "The nodes of a function without those of the functions inside it"
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.Lambda, ast.ClassDef)): yield from own_nodes(child)


def code_nodes(sym):
    "The same of a function object; none where there is no source"
    try: return list(own_nodes(ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(sym)))).body[0]))
    except (OSError, TypeError, SyntaxError): return []


def gives_back(sym):
    "Whether a function returns something, as far as its code tells"
    return any(isinstance(n, (ast.Yield, ast.YieldFrom)) or isinstance(n, ast.Return) and n.value is not None for n in code_nodes(sym))


def raises(sym):
    "The errors that the code of a function raises itself"
    return {n.exc.func.id for n in code_nodes(sym) if isinstance(n, ast.Raise) and isinstance(n.exc, ast.Call) and isinstance(n.exc.func, ast.Name)}


def flaws(sym, name, owner=None):
    "What a reader of one entry would miss: a docstring, a word beside a parameter, the shape of a tensor that goes in or comes out, the errors"
    if not show.own_doc(sym): yield f"{name} has no docstring"
    if isinstance(sym, property) or inspect.isclass(sym) and issubclass(sym, (Exception, tuple)): return
    notes, params, doc = show.documented(sym, owner), show.parameters(sym) or [], show.own_doc(sym)
    for p in params:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD): continue
        # the docstring of a method may say what it takes: a name in backticks, or the shape of its tensor
        if owner and (f"`{p.name}`" in doc or is_tensor(p.annotation) and SHAPE.search(doc)): continue
        if p.name not in notes: yield f"{name}({p.name}) has no comment beside it"
        elif is_tensor(p.annotation) and not SHAPE.search(notes[p.name]): yield f"{name}({p.name}) is a tensor without a shape"
    if inspect.isclass(sym): return
    command = any(typing.get_origin(p.annotation) is typing.Annotated for p in params)          # its docstring is the help that a user reads
    if (errors := raises(sym)) and not command and not re.search(r"[Rr]aise|Error", doc): yield f"{name} does not say that it raises {', '.join(sorted(errors))}"
    back = inspect.signature(sym).return_annotation
    if back is show.EMPTY:
        if gives_back(sym) and not command: yield f"{name} does not say what type it returns"
    elif is_tensor(back) and not SHAPE.search(notes.get("return", "")): yield f"{name} returns a tensor without a shape"


def gaps():
    "What a reader would miss, one line each"
    used = set()
    for module, notebook, _, _ in api_page.modules():
        for name, obj in api_page.public(module):
            for n, o in [(name, obj)] + ([(f"{name}.{n}", o) for n, o in api_page.members(obj)] if inspect.isclass(obj) else []):
                yield from (f"{notebook}: {flaw}" for flaw in flaws(o, n, obj if inspect.isclass(obj) and o is not obj else None))
            found, page = api_page.example(module, notebook, name), api_page.page_of(notebook)
            used |= {name, f"{module.__name__.split('.')[-1]}.{name}"}
            if page and not found: yield f"{notebook}: {name} has no example: write a cell that begins `#| api: {name}` in nbs/api/{page}.ipynb"
            elif found and name not in found[0] + found[1]: yield f"nbs/api/{page}.ipynb: the example of {name} does not name it"
    yield from (f"nbs/api: there is no public name {name!r} for an example" for name in api_page.examples().keys() - used)


def test_every_public_name_is_documented_and_has_an_example():
    found = list(gaps())
    assert not found, "\n".join(found)


# One interpreter imports what examples import; each example runs in a fork of it, in a namespace and a folder of its own, as a reader pastes it.
ALONE = """
import gc, importlib, json, os, sys, tempfile, traceback, warnings
jobs = json.load(sys.stdin)
import torch, matplotlib.pyplot, softsortlib
from softsortlib.lab.images import optional
for module in ("pytorch_lightning", "sklearn.datasets", "torch._dynamo", "torch.export") if len(jobs) > 9 else ():    # what many children would import again
    try: optional(module)
    except ImportError: pass
for module in sorted({name.rpartition(".")[0] for name, _ in jobs if name.startswith("softsortlib.")}): importlib.import_module(module)
for kind in (UserWarning, FutureWarning, RuntimeWarning): warnings.simplefilter("error", kind)
torch.set_num_threads(1)
softsortlib.soft_sort(torch.arange(3.0))        # what the first kernel of a process loads of numba, once for all children; on one thread, so that none is lost in a fork
gc.collect(); gc.freeze()
failed, running = [], {}
def reap():
    pid, status = os.wait()
    name, said = running.pop(pid)
    if status: failed.append(f"the example of {name} does not run alone: {open(said).read().strip()[-300:]}")
def begin(name, code, folder):
    said = os.path.join(folder, "said")
    if pid := os.fork(): running[pid] = (name, said); return
    status = 1
    try:
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.makedirs(os.path.join(folder, "here")); os.chdir(os.path.join(folder, "here"))
        exec(compile(code, name, "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException: traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)
with tempfile.TemporaryDirectory() as top:
    os.environ["TMPDIR"] = top
    tempfile.tempdir = top
    for name, code in jobs:
        while len(running) > 1: reap()
        begin(name, code, tempfile.mkdtemp(dir=top))
    while running: reap()
sys.exit("\\n".join(failed) or 0)
"""
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="examples run in forks, which this system does not have")


def run_alone(examples, **env):
    "Each in a namespace of its own, as a reader pastes it."
    env = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", **env}
    return subprocess.run([sys.executable, "-c", ALONE], input=json.dumps(examples), cwd=ROOT / "tests", env=env, capture_output=True, text=True)


@functools.cache
def every_example():
    "Of all API pages: [(the full name, code, what it needs)]"
    pages = [(module, notebook) for module, notebook, _, _ in api_page.modules() if api_page.page_of(notebook)]
    named = [(f"{module.__name__}.{name}", api_page.example(module, notebook, name)) for module, notebook in pages for name, _ in api_page.public(module)]
    return [(name, found[0], found[2]) for name, found in named if found]


@forks
def test_every_example_runs_alone():
    jobs = [(name, code) for name, code, needs in every_example() if not needs]
    assert len(jobs) > 250
    done = run_alone(jobs)
    assert done.returncode == 0, done.stderr[-3000:]


def test_what_an_example_needs_is_said():
    needs = {name.rpartition(".")[2]: needs for name, _, needs in every_example() if needs}
    assert needs["triton_layers"] == "on a CUDA device" and needs["memory_end"] == "takes minutes"
    assert all("cuda" not in code or needs for _, code, needs in every_example() if ' = "cuda"' in code)
    assert "*Example*, takes minutes" in api_page.example_markdown(("x", "", "takes minutes"))


@forks
def test_examples_for_a_gpu_run_through_the_interpreter():
    pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")
    done = run_alone([(name, code.replace('"cuda"', '"cpu"', 1)) for name, code, needs in every_example() if "CUDA" in needs], TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr[-3000:]


HOWTO = ROOT / "nbs" / "howto.ipynb"


@forks
def test_how_to_answers_run_alone():
    blocks = [code for _, code, _ in api_page.code_cells(HOWTO)]
    assert len(blocks) >= 20
    done = run_alone([(code.splitlines()[-1], code) for code in blocks])
    assert done.returncode == 0, done.stderr[-3000:]


def test_names_stand_in_the_order_of_use():
    import softsortlib
    for module, notebook, _, _ in api_page.modules():
        if not api_page.page_of(notebook): continue
        face = [name in softsortlib.__all__ for name, _ in api_page.public(module)]
        assert face == sorted(face, reverse=True), module.__name__
    import softsortlib.rowwise.softsort as softsort
    assert api_page.public(softsort)[0][0] == "SoftSort"


@forks
def test_an_example_that_needs_its_neighbour_is_found():
    said = run_alone([("good", "x = 1"), ("bad", "x + 1"), ("leaves", "open('x', 'w')"), ("finds", "open('x')")]).stderr
    assert "the example of bad does not run alone" in said and "the example of finds" in said and "of good" not in said and "of leaves" not in said


def complete(
    s: Tensor,  # scores, (..., n)
    k: int = 1,  # how many
) -> Tensor:  # the same, (..., n)
    "Nothing is missing here."
    return s


def no_docstring(
    s: Tensor,  # scores, (..., n)
) -> Tensor:  # the same, (..., n)
    return s


def no_comment(s: Tensor) -> Tensor:  # (..., n)
    "A parameter without a word beside it."
    return s


def no_shape(
    s: "Tensor | None" = None,  # scores
) -> Tensor:  # (..., n)
    "A tensor without a shape."
    return s


def no_shape_back(
    s: Tensor,  # scores, (..., n)
) -> tuple[Tensor, Tensor]:  # two of them
    "It returns tensors of unknown shape."
    return s, s


def no_type_back(
    s: Tensor,  # scores, (..., n)
):
    "It returns something."
    return s


def no_error(
    s: Tensor,  # scores, (..., n)
) -> Tensor:  # the same, (..., n)
    "It refuses some tensors and does not say so."
    if s.ndim > 2: raise ValueError("s has too many dimensions")
    return s


class Method:
    "A class with a method."
    def f(self,
        s: Tensor,  # scores
    ) -> None:
        "A method whose tensor has no shape."


@pytest.mark.parametrize("sym, complaint", [(no_docstring, "has no docstring"), (no_comment, "(s) has no comment"), (no_shape, "(s) is a tensor without a shape"),
                                            (no_shape_back, "returns a tensor without a shape"), (no_type_back, "does not say what type"), (no_error, "does not say that it raises ValueError"), (Method.f, "(s) is a tensor without a shape")])
def test_a_flaw_is_found(sym, complaint):
    assert list(flaws(complete, "complete")) == []
    [flaw] = flaws(sym, sym.__name__)
    assert complaint in flaw


def test_a_name_without_an_example_is_found(monkeypatch):
    import softsortlib.lab.records as records
    assert api_page.example(records, "lab/06_records.ipynb", "environment")
    monkeypatch.setattr(api_page, "examples", lambda: {})
    monkeypatch.setattr(api_page, "chapter_cells", lambda notebook: [])
    assert any("environment has no example" in gap for gap in gaps())
