"""What keeps a notebook project alive: exports in step, clean notebooks of bounded size, the order of imports."""
import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NBS, LIB = ROOT / "nbs", ROOT / "softsortlib"
sys.path.insert(0, str(ROOT / "tools"))
from contents import number_of  # noqa: E402
from repo import is_exported, module_of, modules, notebooks, sources, statements  # noqa: E402

MAX_CELLS, MAX_EXPORT_LINES, MAX_WIDTH, MAX_BYTES = 60, 30, 120, 200_000

# The floors of the house: a module imports from its own part and from parts on lower floors.
FLOORS = [{"engine"}, {"core"}, {"rowwise", "networks", "transport", "ranks"}, {"selection", "sampling", "ragged", "distributed"}, {"functional"}, {"losses"}, {"lab"}]
FLOOR = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}


def exports(path): return [src for src in sources(path) if re.match(r"#\|\s*exporti?\b", src)]


CHAPTERS = {module_of(p): p for p in notebooks() if module_of(p)}
ROOMS = {m: p for m, p in CHAPTERS.items() if not m.endswith("__init__")}


def dotted(path):
    "The module's name below the package: core.permutation, __init__."
    return ".".join(path.relative_to(LIB).with_suffix("").parts)


ids = [p.relative_to(NBS).as_posix() for p in notebooks()]


def test_every_module_has_its_notebook_and_every_chapter_its_module():
    modules = {dotted(p) for p in LIB.rglob("*.py") if p.stat().st_size} - {"_modidx"}     # the engine and the lab have an empty door
    assert modules == set(CHAPTERS)


def test_a_chapter_stands_in_the_folder_of_its_part():
    for module, path in CHAPTERS.items():
        part, _, name = module.rpartition(".")
        assert path.parent == (NBS / part if part else NBS), f"{path} exports {module}"
        number = r"\d\d_" if part else ""
        if name != "__init__": assert re.fullmatch(rf"{number}{name}\.ipynb", path.name), f"{path} exports {module}"


def test_chapter_numbers_are_unique_in_the_book():
    numbers = [number_of(p) for p in CHAPTERS.values() if number_of(p)]
    assert sorted(set(numbers)) == sorted(numbers)


def test_exported_modules_are_up_to_date(tmp_path):
    "Exporting again gives the modules that are committed: nobody edited one by hand, nobody forgot to export."
    shutil.copytree(ROOT, tmp_path / "copy", ignore=shutil.ignore_patterns(".git", ".venv*", "_docs", "_proc", ".cache", "demo", "__pycache__", "results"), symlinks=True)
    shutil.copytree(tmp_path / "copy" / "softsortlib", tmp_path / "committed")
    env = dict(os.environ, PYTHONWARNINGS="ignore")
    subprocess.run([sys.executable, "-c", "from nbdev.doclinks import nbdev_export; nbdev_export()"], cwd=tmp_path / "copy", env=env, check=True, capture_output=True)
    committed, exported = ({p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*.py")}
                           for folder in (tmp_path / "committed", tmp_path / "copy" / "softsortlib"))
    stale = sorted(name for name in committed.keys() | exported.keys() if committed.get(name) != exported.get(name))
    assert not stale, f"run `make notebooks` or nbdev_export: {stale} differ from their notebooks"


@pytest.mark.parametrize("path", notebooks(), ids=ids)
def test_notebook_is_clean(path):
    "Cleaning changes nothing: no execution counts, no stray metadata; the outputs that stay are small."
    from execnb.nbio import dict2nb
    from nbdev.clean import clean_nb
    raw = json.loads(path.read_text(encoding="utf-8"))
    nb = dict2nb(json.loads(path.read_text(encoding="utf-8")))
    clean_nb(nb)
    assert [c.get("metadata") for c in nb.cells] == [c.get("metadata") for c in raw["cells"]], "run nbdev_clean"
    assert not [c for c in raw["cells"] if c.get("execution_count")], "run nbdev_clean"
    assert path.stat().st_size <= MAX_BYTES, "the outputs are too large: make the pictures smaller"
    assert not [o for c in raw["cells"] for o in c.get("outputs", []) if o["output_type"] == "error"]


@pytest.mark.parametrize("path", CHAPTERS.values(), ids=list(CHAPTERS))
def test_chapter_is_readable(path):
    "A chapter is bounded: cells, lines in a cell that exports and their width, one public name a cell, no star imports; prose outweighs code."
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert len(cells) <= MAX_CELLS, "cut the chapter in two"
    for src in exports(path):
        body = [line for line in src.splitlines() if line.strip() and not line.startswith("#|")]
        tree = ast.parse(src)
        public = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")
                  and not any("patch_to" in ast.dump(d) for d in n.decorator_list)}
        assert len(body) <= MAX_EXPORT_LINES, f"{len(body)} lines in the cell that begins {body[0]!r}"
        assert not [line for line in src.splitlines() if len(line) > MAX_WIDTH]
        assert len(public) <= 1 or re.match(r"#\|\s*exporti", src), f"{public} share a cell"
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"]


@pytest.mark.parametrize("path", notebooks(), ids=ids)
def test_no_line_of_code_is_wider_than_its_box(path):
    "At 1440 pixels a page shows 123 columns of code; directives, addresses and hidden cells are not shown."
    lines = [line for src in sources(path) if not re.match(r"#\|\s*hide\b", src) for line in src.splitlines()]
    assert not [line for line in lines if len(line) > 123 and not line.startswith("#|") and "https://" not in line]


@pytest.mark.parametrize("path", CHAPTERS.values(), ids=list(CHAPTERS))
def test_imports_stand_alone(path):
    "Rendering the site runs every cell that imports, so in exported cells imports share a cell with nothing else."
    for src in exports(path):
        kinds = {isinstance(n, (ast.Import, ast.ImportFrom, ast.Try)) for n in ast.parse(src).body}  # a try guards an optional import
        assert kinds != {True, False}, src


def imports_of_the_package(path):
    "[(part, module as written, names)] of what a module imports from the package, wherever in the file."
    here, out = path.relative_to(LIB).parent.parts, []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import): named = [(a.name, []) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ("softsortlib", *here)[:len(here) + 2 - node.level] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            # `from softsortlib import cli` names a module only where there is one
            named = [(f"{module}.{a.name}" if (LIB.parent / module.replace(".", "/") / f"{a.name}.py").exists() else module, [a.name]) for a in node.names]
        else: continue
        out += [(m.split(".")[1] if "." in m else "", m, names) for m, names in named if m.split(".")[0] == "softsortlib"]
    return out


@pytest.mark.parametrize("path", modules().values(), ids=dotted)
def test_a_part_stands_only_on_lower_floors(path):
    part = "" if path.parent == LIB else path.relative_to(LIB).parts[0]
    for other, module, names in imports_of_the_package(path):
        if other == part: continue
        assert part == "lab" or other, f"{dotted(path)} imports the package's own door, which stands above it"
        if other and part: assert FLOOR[other] < FLOOR[part], f"{dotted(path)} of floor {FLOOR[part]} imports {module} of floor {FLOOR[other]}"
        private = [n for n in names if n.startswith("_")]
        assert not private, f"{dotted(path)} imports {', '.join(private)} of {module}: what another part needs has a public name there"


def test_the_layer_test_sees_what_it_should(tmp_path, monkeypatch):
    "Each way to import across floors is found: relative, absolute, inside a function, by the name of a module."
    lib = tmp_path / "softsortlib"
    (lib / "engine").mkdir(parents=True)
    (lib / "core").mkdir()
    (lib / "core" / "checks.py").write_text("")
    bad = lib / "engine" / "bad.py"
    bad.write_text("from ..core.checks import _x\nimport softsortlib.lab.cli\ndef f():\n    from softsortlib.core import checks\nfrom .scan import y\nfrom .. import z\n")
    monkeypatch.setattr(sys.modules[__name__], "LIB", lib)
    assert [(part, names) for part, _, names in imports_of_the_package(bad)] == [("core", ["_x"]), ("lab", []), ("engine", ["y"]), ("", ["z"]), ("core", ["checks"])]


def graph_of_imports():
    "{module: the modules that it imports or names}, wherever in the file: a mechanism names the module of its GPU kernels as text."
    files = {f"softsortlib.{dotted(p)}".removesuffix(".__init__"): p for p in LIB.rglob("*.py") if p.name != "_modidx.py"}
    graph = {}
    for module, path in files.items():
        texts = {node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        named = texts | {text.rpartition(".")[0] for text in texts - set(files)} | {m for _, m, _ in imports_of_the_package(path)}
        graph[module] = named & set(files) - {module, "softsortlib"}
    return graph


def circles(graph):
    "The sets of modules that all lead to one another."
    reach = {}
    for module in graph:
        seen, todo = set(), [module]
        while todo:
            new = graph[todo.pop()] - seen
            seen |= new
            todo += new
        reach[module] = seen
    return {frozenset(n for n in reach[m] if m in reach[n]) for m in graph if m in reach[m]}


def test_no_two_modules_import_each_other():
    graph = graph_of_imports()
    assert graph["softsortlib.transport.gibbs"] >= {"softsortlib.transport.line", "softsortlib.transport.tiles_triton", "softsortlib.core.checks"}
    found = [sorted(circle) for circle in circles(graph)]
    assert not found, "; ".join(" <-> ".join(circle) for circle in found)


@pytest.mark.parametrize("path", sorted(p for p in LIB.rglob("*.py") if p.relative_to(LIB).parts[0] != "lab"), ids=dotted)
def test_a_module_imports_the_package_at_its_top(path):
    "The laboratory may wait with what few need; a GPU's kernels are named, not imported."
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {node for f in ast.walk(tree) if isinstance(f, (ast.FunctionDef, ast.Lambda)) for node in ast.walk(f) if isinstance(node, (ast.Import, ast.ImportFrom))}
    own = [ast.unparse(n) for n in inside if isinstance(n, ast.ImportFrom) and (n.level or n.module.startswith("softsortlib")) or isinstance(n, ast.Import) and n.names[0].name.startswith("softsortlib")]
    assert not own, "; ".join(own)


def test_a_circle_of_imports_is_seen(tmp_path, monkeypatch):
    "At the top, inside a function, for a type checker only, or by the address of a GPU kernel."
    lib = tmp_path / "softsortlib"
    (lib / "engine").mkdir(parents=True)
    texts = dict(a="from .b import x\n", b="def f():\n    from softsortlib.engine import c\n", c="if TYPE_CHECKING:\n    import softsortlib.engine.a\n",
                 d="mechanism(gpu='softsortlib.engine.e.kernel')\n", e="from .d import y\n", f="from .a import x\n")
    for name, text in texts.items(): (lib / "engine" / f"{name}.py").write_text(text)
    monkeypatch.setattr(sys.modules[__name__], "LIB", lib)
    found = circles(graph_of_imports())
    assert {"".join(sorted(m.rpartition(".")[2] for m in circle)) for circle in found} == {"abc", "de"}


def numbered(kind):
    "The book's statements or equations: [(number, chapter)], as they are stated."
    pattern = {"statement": r"\*\*(?:Prop|Lemma|Theorem|Corollary) ([A-Z]?\d+\.\d+)", "equation": r"\\tag\{([^}]*)\}"}[kind]
    return [(number, path) for path in notebooks() for text in sources(path, "markdown") for number in re.findall(pattern, text)]


@pytest.mark.parametrize("kind", ("statement", "equation"))
def test_numbers_are_unique_in_the_book(kind):
    stated = numbered(kind)
    assert len(stated) > 80
    assert sorted({n for n, _ in stated}) == sorted(n for n, _ in stated), "stated twice: " + ", ".join(sorted({n for n, _ in stated if [m for m, _ in stated].count(n) > 1}))
    for number, path in stated:
        assert re.fullmatch(r"[A-Z]\d+\.\d+", number) and number.split(".")[0] == number_of(path), f"{number} is stated in {path.name}"


def cited(text):
    "The numbers that a text cites: ({statements}, {equations})"
    many = r"[A-Z]?\d+\.\d+(?:(?:, | and | or | to |-)[A-Z]?\d+\.\d+)*"
    split = lambda found: {n for some in found for n in re.findall(r"[A-Z]?\d+\.\d+", some)}  # noqa: E731
    return split(re.findall(rf"\b(?:Props?|Lemma|Theorem) ({many})", text)), split(re.findall(rf"\b[Ee]quations? \(?({many})", text))


def bare(prose):
    "Equations that prose names by their number alone, (E1.2) or [E1.2]."
    return set(re.findall(r"[\[(]([A-Z]\d{1,2}\.\d{1,2})[\])]", prose))


def test_what_is_cited_exists():
    statements, equations = ({n for n, _ in numbered(kind)} for kind in ("statement", "equation"))
    files = [*notebooks(), *LIB.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "tools").glob("*.py")]
    missing = []
    for path in files:
        if path == Path(__file__): continue
        text = path.read_text(encoding="utf-8") if path.suffix == ".py" else "\n".join(sources(path, "markdown") + sources(path))
        of_statements, of_equations = cited(text)
        if path.suffix == ".ipynb": of_equations |= {n for some in sources(path, "markdown") for n in bare(some)}
        missing += [f"{path.name} cites {n}" for n in sorted((of_statements - statements) | (of_equations - equations))]
    assert not missing, "\n".join(missing)


def test_a_wrong_citation_is_seen():
    assert bare("by (E1.77) and [R1.3](a.ipynb), not (29.4)") == {"E1.77", "R1.3"}
    assert cited("by Props 10.1 and 10.2, (Prop 44.3), equation (60.2) and Equations 16.2, 16.3") == ({"10.1", "10.2", "44.3"}, {"60.2", "16.2", "16.3"})


@pytest.mark.parametrize("path", [p for p in notebooks() if p.parent.name in ("experiments", "benchmarks", "tutorials")], ids=lambda p: p.name)
def test_leaves_import_the_package_only(path):
    assert not [src for src in sources(path) if re.search(r"#\|\s*(export|default_exp)", src)]


def test_the_committed_text_names_no_local_path():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not tracked: pytest.skip("not a git checkout")
    local = re.compile(r"/root/\w|/home/[a-z]+/|/Users/[a-z]+/")
    found = [name for name in tracked if Path(name).suffix in (".py", ".ipynb", ".md", ".yml", ".json", ".ini", ".lock", ".css", ".js", "")
             and (ROOT / name).is_file() and local.search((ROOT / name).read_text(encoding="utf-8"))]
    assert not found


# How the code reads

def is_stub(node):
    "Whether a statement is the `...` of a declaration: `def f(x) -> y: ...`."
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


def shared_lines(tree):
    "Lines on which more than one statement begins."
    starts = Counter(n.lineno for n in ast.walk(tree) if isinstance(n, ast.stmt) and not is_stub(n))
    return sorted(line for line, count in starts.items() if count > 1)


def silent(tree):
    "Private functions of more than three lines without a docstring."
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("_") and not n.name.startswith("__")]
    return [n.name for n in found if n.name != "_" and n.end_lineno - n.lineno > 3 and not ast.get_docstring(n)]


@pytest.mark.parametrize("path", modules().values(), ids=dotted)
def test_a_line_has_one_statement_and_a_private_function_says_what_it_does(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert (shared_lines(tree), silent(tree)) == ([], [])


def in_kernels(node):
    "Whether a function runs inside kernels of a GPU alone: no cell of a chapter can call it."
    return any(getattr(d, "id", "") == "triton_jit" for d in getattr(node, "decorator_list", ()))


def defined(source): return [n for n in statements(source) if isinstance(n, (ast.FunctionDef, ast.ClassDef))]


def seen_at_work(sources):
    "Cells that define something for the module: {the names: whether the next cell that is not exported, or defines nothing, uses one}"
    out = {}
    for i, source in enumerate(sources):
        if not is_exported(source) or not (names := [n.name for n in defined(source) if not in_kernels(n)]): continue
        use = next((s for s in sources[i + 1:] if not is_exported(s) or not defined(s)), "")
        words = rf"\b({'|'.join(map(re.escape, names))})\b"
        shown = any(name.startswith("__") for name in names) or re.search(words, use)
        out[" ".join(names)] = bool(shown and not is_exported(use) and "nbdev_export" not in use)
    return out


def test_definitions_are_seen_at_work():
    "Nine of ten cells that define something are followed by a cell that uses it."
    seen = {(path.name, names): shown for path in CHAPTERS.values() for names, shown in seen_at_work(sources(path)).items()}
    assert sum(seen.values()) >= 0.9 * len(seen), [where for where, shown in seen.items() if not shown]


def test_what_reads_badly_is_found():
    tree = ast.parse("if True: x = 1\ndef _long(x):\n    x = 1\n    y = 2\n    z = 3\n    return x\ndef seen(x) -> int: ...\n")
    assert shared_lines(tree) == [1] and silent(tree) == ["_long"]
    cells = ["#| default_exp core.a", "#| export\ndef used(x):\n    return x", "used(1)", "#| export\ndef unused(x):\n    return x", "print(2)"]
    assert seen_at_work(cells) == {"used": True, "unused": False}
