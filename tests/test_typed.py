"""Figures in result pages come from records: a number typed by hand beside a unit is found, unless it is a setting or another's figure and listed here."""
import json
import re
from pathlib import Path

import pytest

NBS = Path(__file__).resolve().parent.parent / "nbs"
PAGES = [*sorted((NBS / "experiments").glob("*.ipynb")), *sorted((NBS / "benchmarks").glob("*.ipynb")), NBS / "choosing.ipynb", NBS / "index.ipynb"]
UNIT = r"(?:ns|[mµu]s|milliseconds?|(?:processor )?seconds?|s|minutes?|min|hours?|h|[MGk]i?B|bytes|per cent|percent|%|×|times|-?fold|launches)"
TYPED = re.compile(r"(?<![\w.^{\\-])((?:\d[\d,. ]*)?\d) ?" + UNIT + r"(?![\w^])")
ASIDE = re.compile(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|^\|.*\|$", re.S | re.M)        # code, mathematics, and tables of published figures

# what a protocol sets, what a paper reports, what follows from arithmetic: page -> the words around the number
GIVEN = {
    "knn": ["share an error of 5 %"],
    "newton": ["24 % of the sets right with the plain loss, 49 % with the Hessian form"],
    "speed": ["is about 6 times as fast as NeuralSort", "limit was a machine with 13 GB", "The same search with 13 GiB"],
    "ten_thousand": ["entries, 400 MB", "under a limit of 2 GiB"],
    "topk": ["with 95 % confidence"],
    "networks": ["reports 549 MB for the bitonic and 4.9 GB"],
    "ragged": ["takes more than 256 MiB"],
    "sinkhorn": ["would take 40 GB in single and 80 GB in double precision"],
    "choosing": ["16 MB at"],
}


def typed(text, given=()):
    "The numbers beside units in the prose of a cell."
    prose = " ".join(ASIDE.sub(" ", text).split())
    for phrase in given:
        prose = prose.replace(phrase, " ")
    return [prose[max(0, m.start() - 40):m.end() + 20] for m in TYPED.finditer(prose)]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_no_figure_is_typed_by_hand(page):
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    found = [words for c in cells if c["cell_type"] == "markdown" for words in typed("".join(c["source"]), GIVEN.get(page.stem, ()))]
    assert not found, f"compute these from their record, or list what they are in GIVEN: {found}"


@pytest.mark.parametrize("page", GIVEN)
def test_what_is_listed_is_there(page):
    path = next(p for p in PAGES if p.stem == page)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    prose = " ".join(" ".join(ASIDE.sub(" ", "".join(c["source"])).split()) for c in cells if c["cell_type"] == "markdown")
    assert not [phrase for phrase in GIVEN[page] if phrase not in prose]


@pytest.mark.parametrize("text, count", [("It takes 3 ms.", 1), ("It takes `3 ms` and $3$ s.", 0), ("1.8 times as long, 0.8 GiB", 2), ("5 epochs of 687 steps", 0), ("| 3 ms | 4 ms |", 0), ("86 to 89 %", 1),
                                         ("56 x 14 pixels", 0)])
def test_the_search_finds_figures_and_leaves_the_rest(text, count):
    assert len(typed(text)) == count
