"""The page of the field's benchmark says what is recorded: all of a record, a part of it, and nothing."""
import ast
import json
from pathlib import Path

from softsortlib.lab.bench import run_benchmark
from softsortlib.lab.cases import SORT_FLOOR, cases

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "nbs/benchmarks/field.ipynb"
CASES = ("losses", "sparse_rows", "router", "sampling")


def shown(folder, monkeypatch):
    "What the page shows where its record lies in folder/results, cell after cell."
    page = folder / "benchmarks"
    page.mkdir(exist_ok=True), (folder / "results").mkdir(exist_ok=True)
    monkeypatch.chdir(page)
    space, texts = {}, []
    for cell in json.loads(PAGE.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code": continue
        code = ast.parse("".join(cell["source"]))
        if not isinstance(code.body[-1], ast.Expr):
            exec(compile(code, PAGE.name, "exec"), space)
            continue
        last = ast.Expression(code.body.pop().value)
        exec(compile(code, PAGE.name, "exec"), space)
        texts.append(eval(compile(last, PAGE.name, "eval"), space).data)
    return texts


def made_up(names):
    "A record of these cases, in which each contender takes as long as its label."
    rows = [dict(case=name, n=n, batch=batch, contender=label, run=0, median=len(label) / 1e3, ratio=len(label) / len(SORT_FLOOR))
            for name in names for n, batch in cases()[name].pieces
            for label, largest in ((SORT_FLOOR, n), *((label, c.largest) for label, c in cases()[name].contenders.items())) if n <= largest]
    environment = dict(processor="abacus", cores=2, torch="2", numba="0", python="3")
    return dict(device="cpu", runs=[dict(commit="a", date="2026-01-01", environment=environment, absent={})], rows=rows)


def test_without_a_record_the_page_says_so(tmp_path, monkeypatch):
    said, answer, *tables = shown(tmp_path, monkeypatch)
    assert "Nothing is recorded yet" in said and "No loss is timed yet" in answer and len(tables) == len(CASES) + 1
    assert set(tables) == {"*Not recorded yet.*"}


def test_a_record_is_shown_whole(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/field_cpu.json").write_text(json.dumps(made_up(CASES)))
    said, answer, losses, sparse, routers, beside, sampling = shown(tmp_path, monkeypatch)
    assert "abacus" in said and "2026-01-01" in said
    router = [len(label) for label in cases()["router"].contenders if label.startswith("TopKRouter")]
    assert "A router takes {:.2g} to {:.2g} times".format(*(w / len("topk and softmax") for w in (min(router), max(router)))) in answer
    for name, text in zip(CASES, (losses, sparse, routers, sampling)):
        head, _, *lines = (line.strip("| ").split(" | ") for line in text.splitlines())
        pieces = cases()[name].pieces
        assert len(head) == 1 + len(pieces) and {line[0] for line in lines} == {SORT_FLOOR, *cases()[name].contenders}
        for label, *row in lines:
            largest = 10**9 if label == SORT_FLOOR else cases()[name].contenders[label].largest
            assert [c == "-" for c in row] == [n > largest for n, _ in pieces]
            assert all(c.startswith(f"{len(label)} (") for c in row if c != "-")
    assert f"sparse {18 / 16:.2g} times as long" in beside


def test_a_part_of_a_record_and_one_that_was_measured(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    run_benchmark(tmp_path / "results/field_cpu.json", ("sparse_rows/1000/1",), rounds=1, memory=False)
    said, answer, losses, sparse, router, beside, sampling = shown(tmp_path, monkeypatch)
    assert "Recorded on" in said and "No loss is timed yet" in answer and {losses, router, beside, sampling} == {"*Not recorded yet.*"}
    assert "1 x 1,000" in sparse and "10,000" not in sparse and "SoftSort, sparsemax" in sparse


def test_the_command_on_the_page_asks_for_what_it_shows():
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"-c {name}" in text and f'table(\\"{name}\\")' in text for name in CASES) and "-o nbs/results/field_cpu.json" in text
    assert set(CASES) <= set(cases())
