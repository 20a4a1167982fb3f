"""nbdev's own staging, which Quarto renders from: on a fresh copy it is quick, leaves nothing behind, and shows what the prose needs."""
import ast
import builtins
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import repo  # noqa: E402
import check_site  # noqa: E402
import contents  # noqa: E402

STAGE = "from nbdev.serve import proc_nbs; print(proc_nbs(force=True, n_workers=0))"


def tracked():
    "What a clone would hold, as it is here"
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode: pytest.skip("this is no clone")
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def files(folder): return {p.relative_to(folder).as_posix(): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts}


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    "(the staged notebooks, what else appeared or changed, the seconds it took)"
    clone = tmp_path_factory.mktemp("clone")
    for path in tracked():
        to = clone / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, to)
    before, start = files(clone), time.time()
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", STAGE], cwd=clone, env={**os.environ, "PYTHONPATH": str(clone)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    left = {name for name, when in files(clone).items() if not name.startswith("_proc/") and before.get(name) != when}
    notebooks = {p.relative_to(clone / "_proc").as_posix(): json.loads(p.read_text(encoding="utf-8"))["cells"] for p in (clone / "_proc").rglob("*.ipynb")}
    return notebooks, left, time.time() - start


def text_of(cell): return "".join(cell["source"])


def prose(cell):
    "The Markdown of a cell, what it displays too, without code"
    shown = [text_of(cell)] if cell["cell_type"] == "markdown" else ["".join(o.get("data", {}).get("text/markdown", "")) for o in cell.get("outputs", [])]
    return "".join(re.split(r"^```.*?^```", "\n".join(shown), flags=re.S | re.M))


LINK_IN_LINK = re.compile(r"\[[^\[\]]*\[[^\[\]]*\]\([^()\s]*\)[^\[\]]*\]\(")


def test_staging_is_quick_and_leaves_nothing_behind(staged):
    notebooks, left, seconds = staged
    assert len(notebooks) > 100 and left == set() and seconds < 120


def test_no_link_stands_inside_a_link(staged):
    assert LINK_IN_LINK.search("see [[`SoftSort`](a.html)](b.ipynb)") and not LINK_IN_LINK.search("[a](b) and [c](d)")
    found = [(name, m[0]) for name, cells in staged[0].items() for cell in cells for m in LINK_IN_LINK.finditer(prose(cell))]
    assert not found, found[:5]


def test_every_exported_definition_is_on_its_page(staged):
    hidden = []
    for name, cells in staged[0].items():
        seen = "\n".join(text_of(c) for c in cells)
        for cell in json.loads((ROOT / "nbs" / name).read_text(encoding="utf-8"))["cells"]:
            code = text_of(cell)
            if cell["cell_type"] != "code" or not re.match(r"#\|\s*exporti?\b", code) or "#| hide" in code: continue
            hidden += [(name, n.name) for n in ast.parse(code).body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not re.search(rf"^(def|class) {n.name}\b", seen, re.M)]
    assert not hidden, hidden[:5]


def test_a_method_that_is_added_later_keeps_its_class_in_its_heading(staged):
    headings = [line for cells in staged[0].values() for c in cells if c["cell_type"] == "markdown" for line in text_of(c).splitlines() if re.match(r"#{2,4} ", line)]
    assert r"### SoftPermutation.\_\_matmul\_\_" in headings
    assert {h for h in headings if re.match(r"#+ \\?_", h)} <= {r"### \_\_getattr\_\_"}          # a module's own


WELL_KNOWN = {"display", "get_ipython", *dir(builtins)}


def code_of(cell): return re.sub(r"^#\|.*\n?", "", text_of(cell), flags=re.M).strip()


def out_of_sight(cells, exported=()):
    """What a visible cell of a staged notebook takes from nowhere in sight: [(cell, names)]. In sight is what stands above it, and the fold of imports.
    A definition of the package's is a quotation, which need not run."""
    known, level, missing = set(WELL_KNOWN), 0, []
    for cell in cells:
        if cell["cell_type"] == "markdown":
            for marks, title in re.findall(r"^(#+) (.*)$", text_of(cell), re.M):
                if len(marks) <= level: level = 0
                if ".folded" in title: level = level or len(marks)
        if cell["cell_type"] != "code": continue
        code, folded = code_of(cell), level or re.search(r"^#\|\s*(code-fold\s*:\s*true|(include|echo)\s*:\s*false)", text_of(cell), re.M)
        bound, taken = repo.names(code)
        if folded and 'code-summary: "imports"' not in text_of(cell): continue
        if taken - known and not folded and code not in exported: missing.append((code[:60], sorted(taken - known)))
        known |= bound
    return missing


PASTED = [f"nbs/{contents.chapters()[chapter]}" for *_, some in contents.READERS for chapter in some] + [
    *(f"nbs/{name}.ipynb" for name in ("index", "tour", "howto", "choosing")), *(p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "nbs/tutorials").glob("*.ipynb")))]


def test_what_a_reader_sees_can_be_pasted(staged):
    "No visible cell uses a name that only a folded or a hidden cell defines."
    found = []
    for name in PASTED:
        own = json.loads((ROOT / name).read_text(encoding="utf-8"))["cells"]
        exported = {code_of(c) for c in own if c["cell_type"] == "code" and re.match(r"#\|\s*exporti?\b", text_of(c))}
        found += [(name, *where) for where in out_of_sight(staged[0][name.removeprefix("nbs/")], exported)]
    assert not found, "\n".join(map(str, found))


def test_a_name_that_only_a_fold_defines_is_seen():
    def code(text): return dict(cell_type="code", source=text)
    def prose(text): return dict(cell_type="markdown", source=text)
    fold = '#| code-fold: true\n#| code-summary: "{}"\n'
    cells = [code(fold.format("imports") + "import torch"), code(fold.format("test, 9 lines") + "rng = 1"), code("x = torch.ones(3)\ny = [i + x for i in rng]"),
             prose("## In the package {.folded}"), code("z = x"), prose("## After"), code("def f(v): return v + z\nf(y)")]
    assert [names for _, names in out_of_sight(cells)] == [["rng"], ["z"]]
    assert out_of_sight(cells[:4], {"x = torch.ones(3)\ny = [i + x for i in rng]"}) == []


QUARTO = """<!doctype html><html lang="en"><meta name="viewport" content="width=device-width"><link rel="stylesheet" href="styles.css"><body><main class="content">
<p><span class="math display" id="formula"><span style="display: inline-block; width: 900px">a long formula</span></span></p>
<table class="table" id="table"><tbody><tr>{cells}</tr></tbody></table></main>"""


@pytest.mark.skipif(check_site.chromium() is None, reason="there is no Chromium: apt-get install chromium")
def test_what_quarto_writes_scrolls_in_its_own_box(tmp_path):
    "Quarto sets a displayed formula as a span in a paragraph and gives tables no box around them."
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    shutil.copy(ROOT / "nbs" / "styles.css", tmp_path)
    (tmp_path / "index.html").write_text(QUARTO.format(cells="<td>uninterruptible_words_in_a_cell</td>" * 6))
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=check_site.chromium(), args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 400, "height": 800})
        tab.goto((tmp_path / "index.html").as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400
        for box in ("formula", "table"): assert tab.evaluate("id => { const e = document.getElementById(id); return e.scrollWidth > e.clientWidth + 50 && e.getBoundingClientRect().right <= 400; }", box), box
        browser.close()
