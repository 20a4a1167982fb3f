"""tools/repo.py: what all tools ask of the repository."""
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import repo  # noqa: E402


def test_settings_are_read_whole():
    "One value is made of others."
    assert repo.settings()["lib_name"] == "softsortlib" and repo.settings()["git_url"].startswith("https://github.com/softsortlib/")


@pytest.fixture
def page(tmp_path):
    "A notebook, and what is none: a copy that Jupyter keeps."
    cells = [("markdown", "# Title\n> About it\n\n- aliases: [/a.html, /b.html]"), ("code", "#| default_exp core.x"), ("code", "#| export\n#| fold why\nx = 1")]
    path = tmp_path / "core" / "01_x.ipynb"
    (path.parent / ".ipynb_checkpoints").mkdir(parents=True)
    for at in (path, path.parent / ".ipynb_checkpoints" / "copy.ipynb"):
        at.write_text(json.dumps({"cells": [{"cell_type": kind, "source": text.splitlines(True)} for kind, text in cells]}))
    return path


def test_a_notebook_says_what_it_is(page):
    assert repo.notebooks(page.parent.parent) == [page] and repo.module_of(page) == "core.x"
    assert repo.opening(page) == ("Title", "About it", ["/a.html", "/b.html"])
    last = repo.sources(page)[-1]
    assert repo.directives(last) == {"export": "", "fold": "why"} and repo.code_of(last) == "x = 1" and repo.is_exported(last)
    assert repo.cells_of("") == [] and not repo.is_exported(repo.sources(page)[0])


@pytest.mark.parametrize("code, bound, taken", [
    ("import a.b as c\nfrom d import e", {"c", "e"}, set()),
    ("x = y + [z for z in w]", {"x"}, {"y", "w"}),
    ("def f(a, b=c):\n    global g\n    return a + h", {"f"}, {"c", "h"}),
    ("for i in r:\n    total = total + i", {"i", "total"}, {"r"}),
    ("%magic", set(), set()),
])
def test_names_of_a_piece_of_code(code, bound, taken):
    assert repo.names(code) == (bound, taken)
    assert repo.bindings(code)[1] >= taken and ("total" in code) == ("total" in repo.bindings(code)[1])
