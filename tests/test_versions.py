"""tests/versions.py times two versions of the package in turns: here a stub that was quick, and is slow and slightly off now."""
import json
import re
import subprocess
import sys

import pytest
import versions

PACKAGE = """
import time
from . import functional, losses

class SoftSort:
    def __init__(self, tau, power=1): pass
    def __call__(self, s):
        self.s = s
        return self
    def to_dense(self):
        time.sleep({pause})
        return {factor} * self.s
"""


def write(folder, **how):
    "The stub, as a package of this folder."
    (folder / "softsortlib").mkdir(exist_ok=True)
    (folder / "softsortlib/__init__.py").write_text(PACKAGE.format(**how))
    for name in ("functional", "losses"): (folder / f"softsortlib/{name}.py").touch()


@pytest.fixture
def stub(tmp_path, monkeypatch):
    "A repository whose commit is quick, and whose working tree is slow."
    def git(*words): subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words], cwd=tmp_path, check=True, capture_output=True)
    write(tmp_path, pause=0.002, factor=1.0)
    git("init", "-q")
    git("add", "softsortlib")
    git("commit", "-q", "-m", "quick")
    write(tmp_path, pause=0.02, factor=1.001)
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    monkeypatch.setattr(versions, "AGAIN", 2)
    return tmp_path


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["versions.py", *words])
    versions.main()


def test_a_slower_version_with_other_answers_is_named(stub, monkeypatch, capsys):
    run(monkeypatch, "HEAD", "SoftSort, ", "20x5", "--out", str(stub / "rows.jsonl"))
    said = capsys.readouterr().out
    rows = {row["cell"]: row for row in map(json.loads, (stub / "rows.jsonl").read_text().splitlines())}
    matrix = rows["SoftSort, matrix, 20x5"]
    assert matrix["ratio"] > 3 and matrix["milliseconds"][1] >= 20
    assert all(5e-4 < matrix[d] < 2e-3 for d in versions.MAY_DIFFER)
    assert "cells: 1; median ratio: " in said and "above 1.15: 1;" in said
    assert re.search(r"float64: answers differ by at most 1\.0e-03; by more than 1e-12: 1", said)
    assert "not compared: SoftSort, likelihood, 20x5 (the older version: AttributeError" in said


def test_a_commit_or_a_cell_that_is_not_there(stub, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="no commit 'nowhere'"): run(monkeypatch, "nowhere", "SoftSort")
    with pytest.raises(SystemExit): run(monkeypatch, "HEAD", "nothing of the kind")
    said = capsys.readouterr().err
    assert "no cell holds nothing of the kind" in said and "SoftSort, matrix, 20x5" in said
