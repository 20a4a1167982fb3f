"""Pages show what their code makes: `make test` runs every notebook by tools/fresh.py, and what that finds is tested here."""
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NBS = ROOT / "nbs"
sys.path.insert(0, str(ROOT / "tools"))
from fresh import PAGES, difference  # noqa: E402


@pytest.mark.parametrize("old, new, same", [
    ("loss 0.6250", "loss 0.6253", True), ("loss 0.625", "loss 0.594", False), ("loss 0.625", "gain 0.625", False), ("a -1,234.5 b", "a −1234.6 b", True),
    ("1.2e-07", "3.4e-07", True), ("1.2e-03", "1.4e-03", False), ("tensor([1., 2.])", "tensor([1., 3.])", False), ("1.9", "2.0", True), ("1.9", "2.1", False), ("nan", "1.0", False), ("nan", "nan", True),
])
def test_texts_are_compared(old, new, same):
    assert (not difference(old, new)) is same


def test_a_cell_says_how_much_may_differ():
    assert difference("took 3 s", "took 5 s") and not difference("took 3 s", "took 5 s", None) and difference("took 3 s", "took 5 min", None)
    assert not difference("loss 0.625", "loss 0.594", 0.1)


SETTINGS = "[DEFAULT]\nlib_name = book\nuser = u\nrepo = r\nbranch = main\ndescription = d\nauthor = a\nversion = 0\nmin_python = 3.10\nlicense = apache2\nnbs_path = nbs\nlib_path = book\ntst_flags = slow\n"
LOSS, SILENT = "print('loss 0.5')", "loss = 0.5"
STALE = {  # page -> what its cell does, what is recorded of it, and the complaint
    "right": (LOSS, "loss 0.5", ""), "off": (LOSS, "loss 0.7", "0.7 is 0.5 now"), "words": (LOSS, "gain 0.5", "'gain #' is 'loss #' now"),
    "silent": (SILENT, "loss 0.5", "is '' now"),
}


def test_a_stale_page_is_found(tmp_path):
    "A project of four tutorials: what is recorded of one is right, of the others off, of other words, and of a cell that shows nothing any more."
    (tmp_path / "settings.ini").write_text(SETTINGS)
    pages = [tmp_path / "nbs" / "tutorials" / f"{name}.ipynb" for name in STALE]
    pages[0].parent.mkdir(parents=True)
    for page, (source, output, _) in zip(pages, STALE.values()):
        shown = [{"output_type": "stream", "name": "stdout", "text": [output]}]
        cell = {"cell_type": "code", "execution_count": None, "id": "a", "metadata": {}, "outputs": shown, "source": [source]}
        page.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    done = subprocess.run([sys.executable, ROOT / "tools" / "fresh.py", *pages], cwd=tmp_path, capture_output=True, text=True)
    said = {name: [line for line in done.stdout.splitlines() if f"{name}.ipynb" in line] for name in STALE}
    assert done.returncode and "4 notebooks" in done.stdout and "3 of them fail" in done.stdout, done.stdout + done.stderr
    for name, (_, _, complaint) in STALE.items():
        assert len(said[name]) == bool(complaint) and all(complaint in line for line in said[name]), done.stdout + done.stderr


def test_make_test_compares_the_pages():
    assert "tools/fresh.py" in (ROOT / "Makefile").read_text(encoding="utf-8") and {"tutorials", "experiments", "benchmarks", ""} <= set(PAGES)


def test_error_messages_are_made_not_typed():
    "A message that a page shows is an output; prose and comments do not repeat one."
    typed = re.compile(r"^\s*(#\s*)?(\w+Error|UserWarning): \w+", re.M)
    assert typed.search("# ValueError: tau must be positive") and not typed.search("raises a `ValueError` where")
    found = []
    for path in [p for folder in PAGES for p in sorted((NBS / folder).glob("*.ipynb"))]:
        found += [(path.name, m[0]) for c in json.loads(path.read_text(encoding="utf-8"))["cells"] for m in typed.finditer("".join(c["source"]))]
    assert not found
