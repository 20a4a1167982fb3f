"""The drawings of nbs/images are what tools/draw.py makes of the library, and each stands where a chapter says."""
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))
import draw  # noqa: E402

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def parts(svg):
    "The text around the numbers, and the numbers"
    return NUMBER.split(svg), [float(x) for x in NUMBER.findall(svg)]


@pytest.mark.parametrize("name", draw.DRAWINGS)
def test_a_drawing_is_what_the_library_computes(name):
    recorded, (words, numbers) = parts((draw.FOLDER / f"{name}.svg").read_text(encoding="utf-8")), parts(draw.draw(name))
    assert words == recorded[0]
    assert numbers == pytest.approx(recorded[1], abs=0.05), f"python tools/draw.py {name}"


def test_every_drawing_is_shown_and_every_one_that_is_shown_is_there():
    shown = {name for page in (ROOT / "nbs").rglob("*.ipynb") for name in re.findall(r"images/([\w-]+)\.svg\)", page.read_text(encoding="utf-8"))}
    assert shown == set(draw.DRAWINGS) == {p.stem for p in draw.FOLDER.glob("*.svg")}


@pytest.mark.parametrize("name", draw.DRAWINGS)
def test_a_drawing_takes_its_colours_from_the_page_and_is_small(name):
    svg = (draw.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert len(svg) < 80_000
    used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg))
    assert not used & set(draw.COLOURS) and not used - {"#ffffff"}, used
    assert len(re.findall(r"var\(--draw-", svg)) > 5
