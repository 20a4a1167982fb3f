"""`make check`: what it finds to differ, who uses that, which tests it picks, and that it ends in time."""
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import check  # noqa: E402


def notebook(*cells):
    return json.dumps({"cells": [{"cell_type": kind, "source": text, "outputs": []} for kind, text in cells]})


@pytest.fixture
def book(tmp_path, monkeypatch):
    "A repository of three modules and two notebooks, with a commit"
    files = {"softsortlib/__init__.py": "from .core import base\n", "softsortlib/core/__init__.py": "from .parts import base\n",
             "softsortlib/core/parts.py": "def _inner(x): return x\n\ndef base(x):\n    'not other'\n    return _inner(x)\n\ndef other(x): return x\n\nclass Sort(Base, name='by_name'):\n    pass\n\n@patch_to(Sort)\ndef run(self): return other(1)\n",
             "softsortlib/top.py": "from softsortlib.core import base\nfrom .core.parts import other as another\n\ndef user(x): return base(x)\n\ndef asks(method='by_name'): return method\n\ndef stranger(base): return another(0)\n",
             "nbs/00_parts.ipynb": notebook(("markdown", "a [link](01_top.ipynb), `[no](link)`, [web](https://example.org/)"), ("code", "#| default_exp core.parts"), ("code", "x = 1" + 80 * " ")),
             "nbs/01_top.ipynb": notebook(("code", "#| default_exp top"), ("code", "base(1)"))}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first"]): subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(check, "ROOT", tmp_path)
    return tmp_path


def rewrite(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_what_differs_is_found(book):
    assert check.changed(check.base()) == []
    rewrite(book / "nbs/00_parts.ipynb", "a [link]", "one [link]")
    rewrite(book / "nbs/01_top.ipynb", "base(1)", "base(2)")
    (book / "new.md").write_text("new")
    assert check.changed(check.base()) == ["nbs/00_parts.ipynb", "nbs/01_top.ipynb", "new.md"]
    assert [check.code_changed(n, "HEAD") for n in ("nbs/00_parts.ipynb", "nbs/01_top.ipynb")] == [False, True]


@pytest.mark.parametrize("name, users", [
    ("_inner", {"_inner": 0, "base": 1, "user": 2}), ("other", {"other": 0, "stranger": 1, "Sort": 1, "asks": 2}), ("Sort", {"Sort": 0, "asks": 1}), ("user", {"user": 0})])
def test_users_are_found_through_doors_other_names_and_names_of_operators(book, name, users):
    module = "softsortlib.top" if name == "user" else "softsortlib.core.parts"
    found = check.Package(book).affected([(module, name)])
    assert {d: n for (_, d), n in found.items()} == users


def test_a_definition_that_changed_is_named_and_its_notebooks_and_users_are_run(book):
    rewrite(book / "softsortlib/core/parts.py", "def _inner(x): return x", "def _inner(x): return 2 * x")
    package = check.Package(book)
    assert check.changed_definitions(package, "HEAD") == [("softsortlib.core.parts", "_inner")]
    assert check.notebooks_for(package, package.affected(check.changed_definitions(package, "HEAD")), []) == ["nbs/00_parts.ipynb", "nbs/01_top.ipynb"]
    assert check.notebooks_for(package, {}, ["nbs/01_top.ipynb"]) == ["nbs/01_top.ipynb"]


def test_links_that_lead_nowhere_and_wide_lines_are_named(book):
    assert list(check.broken_links("nbs/00_parts.ipynb")) == []
    rewrite(book / "nbs/00_parts.ipynb", "01_top.ipynb", "02_top.ipynb")
    assert list(check.broken_links("nbs/00_parts.ipynb")) == ["nbs/00_parts.ipynb: no 02_top.ipynb"]
    assert list(check.wide_lines("nbs/00_parts.ipynb")) == ["nbs/00_parts.ipynb: x = 1"] and list(check.wide_lines("nbs/01_top.ipynb")) == []


@pytest.mark.parametrize("env, outcome", [({}, "3 passed"), ({"CHECK_WORDS": '["SoftSort"]'}, " 1 passed"), ({"CHECK_DEADLINE": str(time.time() - 1)}, "3 skipped"),
                                          ({"CHECK_NOTEBOOKS": '["nbs/a.ipynb"]'}, " 2 passed")])
def test_a_file_of_all_operators_is_run_for_those_that_changed_and_none_after_the_end(tmp_path, env, outcome):
    (tmp_path / "test_all.py").write_text("import pytest\nOPERATORS = []\n@pytest.mark.parametrize('name', ['SoftSort', 'NeuralSort', 'b.ipynb'])\ndef test_it(name): pass\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tools"), "CHECK_CHANGED": "[]", **env}
    script = "import sys, pathlib, check, pytest; check.ROOT = pathlib.Path.cwd(); sys.exit(pytest.main(['-p', 'check', '-p', 'no:cacheprovider', '.']))"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert outcome in done.stdout, done.stdout + done.stderr


def test_nothing_to_check_is_said(book):
    done = subprocess.run([sys.executable, ROOT / "tools" / "check.py", "--against", "HEAD~0"], cwd=ROOT, capture_output=True, text=True, env={**os.environ, "GIT_DIR": str(book / ".git"), "GIT_WORK_TREE": str(book)})
    assert done.returncode == 1 and "nothing differs from HEAD" in done.stderr


def test_the_tests_of_style_are_there():
    for name in check.STYLE:
        file, _, test = name.partition("::")
        assert (ROOT / file).exists() and (not test or test in vars(importlib.import_module(Path(file).stem))), name
