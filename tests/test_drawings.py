"""The drawings of the chapters: each is what its cell makes of the library today, takes its colours from the page, and is small."""
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
display = pytest.importorskip("IPython.display", reason="IPython is not installed")

from softsortlib.lab import drawings  # noqa: E402

NBS = Path(__file__).resolve().parent.parent / "nbs"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def cells_of(path):
    "The code cells of a notebook: [(source, the SVGs that it shows)]"
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(cell["source"]), ["".join(o["data"]["image/svg+xml"]) for o in cell["outputs"] if "image/svg+xml" in o.get("data", {})]


CHAPTERS = {f"{path.parent.name}/{path.stem}": list(cells_of(path)) for path in sorted(NBS.glob("*/*.ipynb"))}
DRAWN = {f"{name}-{i}": (cells, i) for name, cells in CHAPTERS.items() for i, (source, _) in enumerate(cells) if source.startswith("#| fig-cap:") and re.search(r"\bdraw(n|_\w+)\(", source)}
SHOWN = {f"{name}-{i}-{k}": svg for name, cells in CHAPTERS.items() for i, (_, svgs) in enumerate(cells) for k, svg in enumerate(svgs)}


def parts(svg):
    "The text around the numbers, and the numbers"
    return NUMBER.split(svg), [float(x) for x in NUMBER.findall(svg)]


@pytest.mark.parametrize("name", DRAWN)
def test_a_drawing_is_what_its_cell_makes_of_the_library(name, monkeypatch):
    "With the imports of the chapter's first code cell and nothing else, so that a reader may run it at once."
    cells, at = DRAWN[name]
    made, namespace = [], {}
    monkeypatch.setattr(display, "display", made.append)
    for source in (cells[0][0], cells[at][0]): exec(compile(source, name, "exec"), namespace)
    (shown,), (drawing,) = cells[at][1], made
    (words, numbers), (recorded, before) = parts(drawing.svg), parts(shown)
    assert words == recorded
    assert numbers == pytest.approx(before, abs=0.05), "run tools/nb.py on the notebook"


def test_parts_open_with_drawings():
    assert len(DRAWN) >= 60
    assert {name.split("/")[0] for name in DRAWN} >= {"core", "rowwise", "networks", "transport", "ranks", "selection", "sampling", "ragged", "distributed", "functional", "losses"}


@pytest.mark.parametrize("name", SHOWN)
def test_a_drawing_takes_its_colours_from_the_page_and_is_small(name):
    svg = SHOWN[name]
    assert len(svg) < 80_000
    used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg))
    assert not used - {"#ffffff", "#808080"} and not re.search(r"#0[0-9a-f]0[0-9a-f]0[0-9a-f]", svg), used
    assert "lab/36_drawings" in name or len(re.findall(r"var\(--draw-", svg)) > 5


def test_a_drawing_is_light_and_the_same_in_every_run(monkeypatch):
    made = []
    monkeypatch.setattr(display, "display", made.append)
    for _ in range(2):
        with drawings.drawn(1, 2, figsize=(4, 1)) as (_, axes): axes[0].plot([0, 1], [0, 1], color=drawings.BLUE)
    assert made[0].svg == made[1].svg and made[0]._repr_svg_().startswith("<svg class=\"drawing\"")
    assert "<metadata" not in made[0].svg and not re.search(r"\d\.\d{3}", made[0].svg)
    assert "--draw-blue:#1f77b4" in made[0].svg and "prefers-color-scheme:dark" in made[0].svg


def test_a_figure_is_closed_where_its_block_fails():
    import matplotlib.pyplot as plt
    before = plt.get_fignums()
    with pytest.raises(RuntimeError, match="half drawn"):
        with drawings.drawn(): raise RuntimeError("half drawn")
    assert plt.get_fignums() == before
