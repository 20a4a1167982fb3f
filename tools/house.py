"""The house in numbers: how the package is cut into parts, and how its chapters read.

    python tools/house.py                a table
    python tools/house.py --lines        also where: long lines, lines that share statements, cells, unused definitions
    python tools/house.py ranks --lines  one part (or one notebook)
    python tools/house.py --root DIR     another checkout, one from before the parts too
"""
import ast
import re
import statistics
from collections import Counter
from pathlib import Path

import repo

WIDTH = 120


def part_of(path):
    "core, of softsortlib/core/permutation.py; nothing for the package's own modules."
    return "" if path.parent.name == "softsortlib" else path.parent.name


def chapters(root, part=None):
    "The notebooks that export a module: [(path, code and markdown cells)]"
    found = [p for p in repo.notebooks(root / "nbs") if repo.module_of(p)]
    return [(p, repo.cells(p)) for p in found if part is None or part in (p.parent.name, p.name, p.relative_to(root).as_posix())]


def body(text): return [line for line in text.splitlines() if line.strip() and not line.startswith("#|")]


def defined(text):
    "What a cell defines: functions and classes."
    return [n for n in repo.statements(text) if isinstance(n, (ast.FunctionDef, ast.ClassDef))]


def is_definition(text):
    "Whether an exported cell defines something: there is more in it than imports and a list of names."
    imports = all(isinstance(n, (ast.Import, ast.ImportFrom, ast.Try)) for n in ast.parse(text).body)
    return body(text) and not imports and not re.search(r"^_all_ = ", text, re.M)


def is_stub(node):
    "Whether a statement is the `...` of a declaration: `def f(x) -> y: ...`."
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


def shared_lines(tree):
    "Lines on which more than one statement begins."
    starts = Counter(n.lineno for n in ast.walk(tree) if isinstance(n, ast.stmt) and not is_stub(n))
    return sorted(line for line, count in starts.items() if count > 1)


def long_and_private(tree):
    "The private functions of more than three lines."
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("_") and not n.name.startswith("__")]
    return [n for n in found if n.name != "_" and n.end_lineno - n.lineno > 3]


def private_across(path, tree):
    "Private names that a module imports from another part: [(module, part, name)]; in a flat package, from another module."
    part = part_of(path)
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom): continue
        target = (node.module or "").removeprefix("softsortlib.").split(".")[0]
        inside = node.level == 1 and part or not node.level and not (node.module or "").startswith("softsortlib")
        if inside or target == part and part: continue
        yield from ((f"{part}/{path.name}", target, a.name) for a in node.names if a.name.startswith("_"))


def in_kernels(node):
    "Whether a function runs inside kernels of a GPU alone: no cell of a chapter can call it."
    return any(getattr(d, "id", "") == "triton_jit" for d in getattr(node, "decorator_list", ()))


def used_after(cells):
    "Cells that define something for the module: [(first line, whether one of the next two code cells, not exported, uses it)]"
    out, code = [], [text for kind, text in cells if kind == "code"]
    for i, text in enumerate(code):
        if not repo.is_exported(text) or not (names := [n.name for n in defined(text) if not in_kernels(n)]): continue
        use = next((t for t in code[i + 1:] if not repo.is_exported(t) or not defined(t)), "")
        words = r"\b(" + "|".join(map(re.escape, names)) + r")\b"
        dunder = any(name.startswith("__") for name in names)
        shown = not repo.is_exported(use) and "nbdev_export" not in use and (dunder or re.search(words, use))
        out.append((body(text)[0], bool(shown)))
    return out


def measure(root, part=None):
    "All figures, and where they come from."
    where, figures = {}, {}
    paths = [p for p in repo.modules(root).values() if not part or part == part_of(p) or part.endswith(".ipynb")]
    trees = {p: ast.parse(p.read_text(encoding="utf-8")) for p in paths}
    cells = chapters(root, part)
    exported = [(path.name, text) for path, some in cells for kind, text in some if kind == "code" and repo.is_exported(text)]
    sizes = [(len(body(text)), name, body(text)[0]) for name, text in exported if is_definition(text)]
    lengths = sorted(n for n, *_ in sizes)
    uses = [(path.name, *use) for path, some in cells for use in used_after(some)]
    private = [(p, n) for p, tree in trees.items() for n in long_and_private(tree)]

    figures["modules a part"] = ", ".join(f"{name or 'face'} {count}" for name, count in Counter(map(part_of, trees)).items())
    if lengths:
        tenth = lengths[int(0.9 * (len(lengths) - 1))]
        figures["lines of an exported cell, median / 90th percentile / max"] = f"{statistics.median(lengths):.0f} / {tenth} / {lengths[-1]}"
    if uses: figures["definition cells followed by a use"] = f"{sum(shown for *_, shown in uses) / len(uses):.0%} of {len(uses)}"
    figures["private functions of more than three lines"] = len(private)

    where["private names imported across parts"] = [found for p, tree in trees.items() for found in private_across(p, tree)]
    where[f"lines over {WIDTH} characters"] = [f"{name}: {line[:70]}" for name, text in exported for line in text.splitlines() if len(line) > WIDTH]
    shared = [(p, line) for p, tree in trees.items() for line in shared_lines(tree)]
    where["lines that share statements"] = [f"{p.name}:{line}: {p.read_text().splitlines()[line - 1].strip()[:80]}" for p, line in shared]
    where["exported cells over 30 lines"] = [f"{name}: {n} lines, {first[:60]}" for n, name, first in sizes if n > 30]
    where["definition cells without a use after them"] = [f"{name}: {first[:80]}" for name, first, shown in uses if not shown]
    silent = [(p, n) for p, n in private if not ast.get_docstring(n)]
    where["private functions of more than three lines that say nothing"] = [f"{p.name}:{n.lineno}: {n.name}" for p, n in silent]
    where["chapters of more than 60 cells"] = [f"{path.name}: {len(some)}" for path, some in cells if len(some) > 60]
    return figures, where


def main():
    ap = repo.arguments(__doc__)
    ap.add_argument("part", nargs="?", help="a part, or the file name of a notebook")
    ap.add_argument("--lines", action="store_true", help="say where")
    ap.add_argument("--root", type=Path, default=repo.ROOT)
    args = ap.parse_args()
    figures, where = measure(args.root.resolve(), args.part)
    for name, value in figures.items(): print(f"{name}: {value}")
    for name, found in where.items():
        print(f"{name}: {len(found)}")
        if args.lines:
            for line in found: print("   ", *(line if isinstance(line, tuple) else (line,)))


if __name__ == "__main__": main()
