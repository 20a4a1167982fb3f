"""What a reader of a tutorial does: install what the page says, paste its first code block into a fresh interpreter, read on."""
import ast
import json
import os
import re
import subprocess
import sys
from configparser import ConfigParser
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = sorted((ROOT / "nbs/tutorials").glob("*.ipynb"))
each = pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)

SETTINGS = ConfigParser(delimiters="=")
SETTINGS.read(ROOT / "settings.ini", encoding="utf-8")
CALLED = {"scikit-learn": "sklearn"}                                      # what a package is called when it is imported


def names(requirements): return {CALLED.get(n, n.replace("-", "_")) for n in (re.match(r"[\w.-]+", r)[0] for r in requirements.split())}


CORE = names(SETTINGS["DEFAULT"]["requirements"]) | {"softsortlib"}
EXTRA = {"": CORE, "experiments": CORE | names(SETTINGS["DEFAULT"]["experiments_requirements"])}
sys.path.insert(0, str(ROOT / "tools"))
import install  # noqa: E402


def cells(path):
    "The cells of a notebook as (kind, text); a directive is no part of the code that a reader sees."
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        lines = "".join(cell["source"]).splitlines()
        if cell["cell_type"] == "code" and any(re.match(r"#\|\s*hide\b", line) for line in lines): continue
        yield cell["cell_type"], "\n".join(line for line in lines if not line.startswith("#|")).strip()


def first_block(path): return next(text for kind, text in cells(path) if kind == "code")


def extras(text): return [m[2] or "" for m in install.LINE.finditer(text.replace('"', install.QUOTE))]


def installs(path):
    "The extras of the install lines before the first code block: those of the block, and those of the whole page."
    prose = []
    for kind, text in cells(path):
        if kind == "code": break
        prose.append(text)
    found = extras("\n".join(prose))
    assert found, f"say what to install before the first code block: `{install.line()}` or `{install.line('experiments')}`"
    return found[0], found[-1]


def imported(code):
    "The top-level modules that a piece of code imports, those of softsortlib's own `optional` too."
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import): yield from (a.name.split(".")[0] for a in node.names)
        elif isinstance(node, ast.ImportFrom): yield node.module.split(".")[0]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "optional": yield node.args[0].value.split(".")[0]


def missing(code, extra): return set(imported(code)) - EXTRA[extra] - set(sys.stdlib_module_names)


@each
def test_the_install_line_names_what_is_imported(path):
    block, page = installs(path)
    assert not missing(first_block(path), block), "the first code block imports more than its install line installs"
    assert not missing("\n".join(text for kind, text in cells(path) if kind == "code"), page), "the page imports more than its install line installs"


def test_a_wrong_install_line_is_found():
    assert missing("import sklearn.datasets", "") == {"sklearn"} and not missing("import sklearn.datasets\nimport json", "experiments")
    assert missing("from softsortlib.lab.data import optional\nm = optional('torchmetrics.retrieval')", "") == {"torchmetrics"}
    assert [extras(f"`{line}`") for line in (install.line(), install.line("experiments"), "pip install torch")] == [[""], ["experiments"], []]


# One interpreter imports torch and the package; each block runs in a fork of it, in a namespace of its own, where what its
# install line does not install cannot be imported.
RUN = """
import json, os, sys, traceback, warnings
from importlib.machinery import PathFinder
for kind in (UserWarning, FutureWarning, RuntimeWarning): warnings.simplefilter("error", kind)
class Installed(PathFinder):
    absent = ()
    @classmethod
    def find_spec(cls, name, path=None, target=None): return None if name.split(".")[0] in cls.absent else super().find_spec(name, path, target)
jobs = json.load(sys.stdin)
Installed.absent = {m for _, absent in jobs.values() for m in absent}
sys.meta_path = [Installed if f is PathFinder else f for f in sys.meta_path]
import torch, softsortlib, softsortlib.losses.orders
failed = []
for name, (block, absent) in jobs.items():
    pid = os.fork()
    if not pid:
        code = 1
        try:
            Installed.absent = absent
            os.dup2(2, 1)
            exec(compile(block, name, "exec"), {"__name__": "__main__"})
            code = 0
        except BaseException: traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    if os.waitpid(pid, 0)[1]: failed.append(name)
print(json.dumps(failed))
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    "Which first blocks failed, and what was printed."
    if not hasattr(os, "fork"): pytest.skip("blocks run in forks, which this system does not have")
    jobs = {path.stem: (first_block(path), sorted(EXTRA["experiments"] - EXTRA[installs(path)[0]])) for path in TUTORIALS}
    jobs["a block that fails"] = ("import matplotlib", ["matplotlib"])
    env = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, "-c", RUN], input=json.dumps(jobs), cwd=tmp_path_factory.mktemp("fresh"), env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@each
def test_the_first_block_runs_on_its_own(path, outcome):
    failed, printed = outcome
    assert path.stem not in failed, printed


def test_a_block_that_needs_more_is_found(outcome):
    assert "a block that fails" in outcome[0] and "No module named 'matplotlib'" in outcome[1]


@each
def test_a_tutorial_has_its_parts(path):
    "A claim that is asserted, a mistake with its message, a picture, and where to go next."
    code = "\n".join(text for kind, text in cells(path) if kind == "code")
    prose = "\n".join(text for kind, text in cells(path) if kind == "markdown")
    assert "assert" in code and "plt.show()" in code
    assert re.search(r"^\s*except ", code, re.M), "show a mistake and the message it makes"
    last = prose[prose.rindex("\n## "):]
    assert last.startswith("\n## Where next") and len(re.findall(r"\]\([\w./]+\.ipynb", last)) >= 2, "end with links to the chapters"


class FirstCode(HTMLParser):
    "The text of the first block of Python on a page."
    def __init__(self, html):
        super().__init__()
        self.inside, self.text = False, None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if self.text is None and tag == "code" and "python" in (dict(attrs).get("class") or ""): self.inside, self.text = True, ""

    def handle_endtag(self, tag): self.inside = self.inside and tag != "code"
    def handle_data(self, data): self.text = self.text + data if self.inside else self.text


@each
def test_the_page_begins_with_the_block_that_was_run(path):
    page = ROOT / "_docs/tutorials" / f"{path.stem}.html"
    if not page.exists() or page.stat().st_mtime < path.stat().st_mtime: pytest.skip("there is no built page of this notebook: run `make docs`")
    assert FirstCode(page.read_text(encoding="utf-8")).text.strip() == first_block(path)
