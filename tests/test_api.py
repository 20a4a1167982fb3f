"""The API pages: every public name is documented, with shapes, and has an example; each example runs when it is pasted alone."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import api_page  # noqa: E402

EXAMPLES = [(d, code) for page in sorted((ROOT / "nbs" / "api").glob("*.ipynb")) for d, code, _ in api_page.code_cells(page) if "api" in d]


def test_every_public_name_is_documented_and_has_an_example():
    found = list(api_page.gaps())
    assert not found, "\n".join(found)


ALONE = """
import ast, json, sys
failed = []
for name, code in json.load(sys.stdin):
    try: exec(compile(ast.parse(code), name, "exec"), {"__name__": "example"})
    except Exception as error: failed.append(f"the example of {name} does not run alone: {type(error).__name__}: {error}")
sys.exit("\\n".join(failed) or 0)
"""


def run_alone(examples, **env):
    "Each in a namespace of its own, as a reader pastes it."
    return subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", ALONE], input=json.dumps(examples), cwd=ROOT / "tests", env={**os.environ, **env}, capture_output=True, text=True)


def test_examples_run_alone():
    done = run_alone([(d["api"], code) for d, code in EXAMPLES if not d.keys() & {"cuda", "slow"}])
    assert done.returncode == 0, done.stderr[-3000:]


def test_examples_for_a_gpu_run_through_the_interpreter():
    pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton")
    done = run_alone([(d["api"], code.replace('"cuda"', '"cpu"', 1)) for d, code in EXAMPLES if "cuda" in d], TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr[-3000:]


def test_examples_from_chapters_run_alone_too():
    "Those of the laboratory, which train and start processes, say on their page that they do not."
    found = [(f"{module.__name__}.{name}", api_page.example(module, notebook, name)) for module, notebook, _, _ in api_page.modules()
             if api_page.page_of(notebook) not in (None, "lab", "experiments") for name, _ in api_page.public(module)]
    written = {code for _, code in EXAMPLES}
    jobs = [(name, example[0]) for name, example in found if example and example[2] and example[0] not in written]
    assert jobs
    done = run_alone(jobs, MPLBACKEND="Agg")
    assert done.returncode == 0, done.stderr[-3000:]


HOWTO = ROOT / "nbs" / "howto.ipynb"


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


def test_an_example_that_needs_its_neighbour_is_found():
    assert "does not run alone" in run_alone([("good", "x = 1"), ("bad", "x + 1")]).stderr


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
    assert list(api_page.flaws(complete, "complete")) == []
    [flaw] = api_page.flaws(sym, sym.__name__)
    assert complaint in flaw


def test_a_name_without_an_example_is_found(monkeypatch):
    import softsortlib.lab.records as records
    assert api_page.example(records, "lab/73_records.ipynb", "environment")[2]
    monkeypatch.setattr(api_page, "examples", lambda: {})
    monkeypatch.setattr(api_page, "chapter_cells", lambda notebook: [])
    assert any("environment has no example" in gap for gap in api_page.gaps())
