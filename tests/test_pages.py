"""Every page of results runs what it shows: with RUN = "smoke" each makes its own records, far from those of the book, and shows figures from them."""
import json
import os
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from execnb.nbio import read_nb
from execnb.shell import CaptureShell
from nbdev.process import extract_directives

pytest.importorskip("sklearn", reason="the experiments extra is not installed")

from softsortlib.lab.images import DataError  # noqa: E402
from softsortlib.lab.pages import Page, apart  # noqa: E402
from softsortlib.lab.records import left_out, read_records  # noqa: E402
from softsortlib.lab.sorting import SortConfig  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import book  # noqa: E402

PAGES = [path for part in ("experiments", "benchmarks") for path in sorted((ROOT / "nbs" / part).glob("*.ipynb"))]
ALSO = [ROOT / "nbs" / page for page in ("tutorials/arrange_colours.ipynb", "tutorials/conformal_training.ipynb", "distributed/05_scaling.ipynb")]
TRAINED = [path for path in PAGES if "page.run(" in path.read_text(encoding="utf-8")]
CELL = 'RUN = None   # None shows the recorded runs; "smoke" a minute, "quick" minutes, "paper" the full protocol'
SECONDS = 45            # of processor time that a page may take here; with all steps of its sixty runs sort_mnist takes a minute
WITHOUT = {"benchmarks/speed": 4}       # tables that need other libraries, or a GPU


def book_of_records():
    "Each file of the book's records, and when it was written."
    return {path: path.stat().st_mtime_ns for path in (ROOT / "nbs/results").rglob("*")}


def shown(cell):
    "What a cell shows, as text."
    texts = [o["text"] if "text" in o else o.get("data", {}).get("text/markdown", "") for o in cell.get("outputs", [])]
    return "\n".join("".join(text) for text in texts)


def tables(text):
    "The tables in a text: each a list of rows, which are lists of cells."
    found = re.findall(r"(?:^\|.*\n?)+", text, re.M)
    return [[[c.strip() for c in line.strip().strip("|").split("|")] for line in table.strip().splitlines()] for table in found]


def has_figure(table, old):
    "Whether a table shows a figure that the book has not, or lacks nothing; of words alone a row is enough."
    rows = [row for other in old for row in other]
    known, numbers = {c for row in rows for c in row}, [c for row in table[2:] for c in row[1:] if re.search(r"\d", c)]
    new = [c for row in table[2:] if row not in rows for c in row[1:] if c in numbers and c not in known]
    whole = not any("not run" in c for row in table for c in row)
    if not any(re.search(r"\d", c) for other in old for row in other[2:] for c in row[1:]): return bool(new) or len(table) > 2
    return bool(new) or bool(numbers) and whole


def processor_seconds():
    "What this process and those that it waited for have used."
    return sum(os.times()[:4])


@pytest.fixture
def alone(tmp_path, monkeypatch):
    "A folder to run in, and a process that is afterwards as it was."
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    threads, main = torch.get_num_threads(), sys.modules["__main__"]
    yield tmp_path
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)
    plt.close("all")
    sys.modules["__main__"] = main


@pytest.mark.parametrize("path", PAGES + ALSO, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_page_runs_what_it_shows(path, alone, pictures_once, monkeypatch, slowness):
    name, before, start = f"{path.parent.name}/{path.stem}", book_of_records(), processor_seconds()
    (alone / path.parent.name).mkdir()
    monkeypatch.chdir(alone / path.parent.name)          # no book of records beside it: every figure is its own
    monkeypatch.setitem(SortConfig.PRESETS, "smoke", {**SortConfig.PRESETS["smoke"], "steps": 6, "epoch": 3})    # sixty runs, and two epochs as before
    nb, old = read_nb(path), json.loads(path.read_text(encoding="utf-8"))["cells"]
    nb.cells, old = zip(*[both for both in zip(nb.cells, old) if "nbdev_export()" not in both[0].source])
    for cell in nb.cells: cell.source = re.sub(r"^RUN = None", 'RUN = "smoke"', cell.source)
    CaptureShell(path).run_all(nb, exc_stop=True, preproc=lambda cell: cell.cell_type != "code")
    missing = []
    for cell, was in zip(nb.cells, old):
        if cell.cell_type != "code": continue
        book, own = tables(shown(was)), tables(shown(cell))
        missing += [shown(cell)] * max(0, bool(book) - len(own)) + [table for table in own if not has_figure(table, book)]
    assert len(missing) <= WITHOUT.get(name, 0), missing
    records = [p for p in Path("results/smoke", path.stem).rglob("*.json") if "runs" not in p.parts]
    assert records and book_of_records() == before
    assert processor_seconds() - start < SECONDS * slowness


@pytest.mark.parametrize("path", TRAINED, ids=lambda path: path.stem)
def test_a_page_whose_runs_are_not_there_says_so(path, alone, monkeypatch):
    """Data may be missing, or a run be stopped before the first result: the page draws what there is and finds nothing reproduced."""
    monkeypatch.setattr(Page, "run", lambda *args, **flags: None)
    monkeypatch.setattr(Page, "record", lambda *args: {"rows": []})
    nb = read_nb(path)
    for cell in nb.cells: cell.source = re.sub(r"^RUN = None", 'RUN = "smoke"', cell.source)
    CaptureShell(path).run_all(nb, exc_stop=True, preproc=lambda cell: cell.cell_type != "code")
    said = "\n".join(map(shown, nb.cells))
    assert re.search("[Nn]ot run|[Nn]othing was run|[Tt]oo few runs", said)
    claims = r"\*\*(?:Partly r|R)eproduced|\*\*Contradicted|\b0 of 0\b|\b0 (?:pairs|comparisons)|\bnan\b"
    assert not re.search(claims, said), re.search(".*(?:" + claims + ").*", said)[0]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_second_code_cell_makes_a_page_run_and_is_seen(path):
    cells = [c for c in read_nb(path).cells if c.cell_type == "code"]
    assert cells[1].source == CELL
    nb = read_nb(path)
    nb.path_ = path
    for cell in nb.cells: cell.directives_ = extract_directives(cell, remove=False) if cell.cell_type == "code" else {}
    step = book.show_code(nb)
    step.begin()
    for cell in nb.cells: step.cell(cell)
    assert CELL in [c.source for c in nb.cells]


def test_a_wrong_word_is_named():
    for word in ("papr", "", 1, []):
        with pytest.raises(ValueError, match="'smoke', 'quick' or 'paper', or None"): Page("topk", word)


def test_a_page_goes_on_where_it_was_stopped(alone):
    "A run that is done is not done again, and pieces are kept as they come."
    page, configs, done = Page("trial", "smoke"), [SortConfig.from_preset("smoke", n=3, seed=seed) for seed in range(2)], []
    page.run(configs[:1])
    page.run(configs)
    assert len(list(Path("results/smoke/trial/runs").glob("*/result.json"))) == 2 == len(read_records(page.folder / "sort"))
    def measure(n):
        if n == 3 and len(done) == 2: raise KeyboardInterrupt
        done.append(n)
        return [dict(n=n)]
    with pytest.raises(KeyboardInterrupt): page.record("figures", [(1,), (2,), (3,)], measure)
    assert page.record("figures", [(1,), (2,), (3,)], lambda n: done.append(n) or [dict(n=n)])["rows"] == [dict(n=n) for n in (1, 2, 3)]
    assert done == [1, 2, 3]


def test_a_file_that_is_no_record_is_named(alone, capsys):
    page = Page("trial", "smoke")
    page.folder.mkdir(parents=True)
    (page.folder / "figures.json").write_text('{"rows"')
    assert page.record("figures", [(1,)], lambda n: [dict(n=n)])["rows"] == [dict(n=1)]
    assert "left out: figures.json (empty or cut off)" in capsys.readouterr().out
    left_out.clear()


def test_data_that_are_missing_are_named_and_the_rest_runs(alone, capsys, monkeypatch):
    def nowhere(self, folder=None): raise DataError("MNIST is not here")
    monkeypatch.setattr(SortConfig, "parts", nowhere)
    monkeypatch.setattr("softsortlib.lab.pages._workers", lambda: 1)
    Page("trial", "quick").run([SortConfig.from_preset("quick")])
    said = capsys.readouterr().out
    assert "the runs on mnist. MNIST is not here. To fetch it: softsortlib run sort" in said
    def measure(n):
        if n > 1: raise DataError("MNIST is not here")
        return [dict(n=n)]
    assert Page("trial", "quick").record("figures", [(1,), (2,)], measure)["rows"] == [dict(n=1)]


def test_what_fails_apart_is_raised():
    assert apart(os.path.basename, "a/b") == "b"
    with pytest.raises(RuntimeError, match="TypeError"): apart(os.path.basename, 1)


@pytest.mark.parametrize("source, name", [('def gain(y):\n    "2^y - 1: what a grade is worth."', "gain: 2^y - 1"), ('class Rows:\n    """The rows of `P`. And more."""', "Rows: the rows of P"), ("def bare(): ...", "bare"), ("x = 1", "")])
def test_a_fold_is_named_by_what_it_holds(source, name): assert book.says(source) == name
