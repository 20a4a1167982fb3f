"""The house in numbers: how the package is cut into parts, and how its chapters read.

    python tools/house.py                a table
    python tools/house.py --lines        also where: long lines, lines that share statements, cells, unused definitions
    python tools/house.py ranks --lines  one part (or one notebook)
    python tools/house.py --root DIR     another checkout, one from before the parts too
"""
import argparse
import ast
import json
import re
import statistics
from collections import Counter
from pathlib import Path

WIDTH = 120


def modules(root, part=None):
    "The package's modules: [(part, path)]; a flat package is one part."
    lib = root / "softsortlib"
    found = [(p.relative_to(lib).parts[0] if p.parent != lib else "", p) for p in sorted(lib.rglob("*.py"))]
    return [(where, p) for where, p in found if p.name != "_modidx.py" and (part is None or where == part)]


def chapters(root, part=None):
    "The notebooks that export a module: [(path, code and markdown cells)]"
    out = []
    for path in sorted((root / "nbs").rglob("*.ipynb")):
        if any(q[0] in "._" for q in path.relative_to(root).parts): continue
        cells = [(c["cell_type"], "".join(c["source"])) for c in json.loads(path.read_text(encoding="utf-8"))["cells"]]
        if not any(kind == "code" and re.search(r"^#\|\s*default_exp", text, re.M) for kind, text in cells): continue
        if part is None or path.parent.name == part or path.name == part or path.relative_to(root).as_posix() == part: out.append((path, cells))
    return out


def exports(text): return re.match(r"#\|\s*exporti?\b", text)


def body(text): return [line for line in text.splitlines() if line.strip() and not line.startswith("#|")]


def defined(text):
    "Names that an exported cell defines: functions, classes, and methods that it patches in."
    try: tree = ast.parse(text)
    except SyntaxError: return []
    return [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]


def is_list_of_names(text): return re.search(r"^_all_ = ", text, re.M) is not None


def only_imports(text):
    return all(isinstance(n, (ast.Import, ast.ImportFrom, ast.Try)) for n in ast.parse(text).body)


def is_stub(node):
    "Whether a statement is the `...` of a declaration: `def f(x) -> y: ...`."
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


def shared_lines(tree):
    "Lines on which more than one statement begins."
    starts = Counter(n.lineno for n in ast.walk(tree) if isinstance(n, ast.stmt) and not is_stub(n))
    return sorted(line for line, count in starts.items() if count > 1)


def undocumented(tree):
    "Private functions of more than three lines that say nothing about themselves."
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("_") and not n.name.startswith("__")]
    found = [n for n in found if n.name != "_" and n.end_lineno - n.lineno > 3]
    return [n for n in found if not ast.get_docstring(n)], found


def private_across(root):
    "Private names that a module imports from another part: [(module, part, name)]; in a flat package, from another module."
    lib, out = root / "softsortlib", []
    for part, path in modules(root):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom): continue
            target = (node.module or "").removeprefix("softsortlib.").split(".")[0]
            inside = node.level == 1 and part or not node.level and not (node.module or "").startswith("softsortlib")
            if inside or target == part and part: continue
            out += [(path.relative_to(lib).as_posix(), target, a.name) for a in node.names if a.name.startswith("_")]
    return out


def in_kernels(node):
    "Whether a function runs inside kernels of a GPU alone: no cell of a chapter can call it."
    return any(getattr(d, "id", "") == "triton_jit" for d in getattr(node, "decorator_list", ()))


def used_after(cells):
    "Cells that define something for the module: [(first line, whether one of the next two code cells, not exported, uses it)]"
    out, code = [], [text for kind, text in cells if kind == "code"]
    for i, text in enumerate(code):
        if not exports(text) or not (names := [n.name for n in defined(text) if not in_kernels(n)]): continue
        use = next((t for t in code[i + 1:] if not exports(t) or not defined(t)), "")
        words = r"\b(" + "|".join(map(re.escape, names)) + r")\b"
        dunder = any(n.startswith("__") for n in names)
        shown = not exports(use) and "nbdev_export" not in use and (dunder or re.search(words, use))
        out.append((body(text)[0], bool(shown)))
    return out


def measure(root, part=None):
    "All figures, and where they come from."
    where, figures = {}, {}
    paths = modules(root, part if part and not part.endswith(".ipynb") else None)
    trees = {p: ast.parse(p.read_text(encoding="utf-8")) for _, p in paths}
    figures["modules a part"] = ", ".join(f"{name or 'face'} {count}" for name, count in Counter(n for n, _ in paths).items())
    where["private names imported across parts"] = private_across(root)
    cells = chapters(root, part)
    code = [(path, text) for path, some in cells for kind, text in some if kind == "code"]
    where[f"lines over {WIDTH} characters"] = [f"{path.name}: {line[:70]}" for path, text in code if exports(text) for line in text.splitlines() if len(line) > WIDTH]
    where["lines that share statements"] = [f"{p.name}:{line}: {p.read_text().splitlines()[line - 1].strip()[:80]}" for p, tree in trees.items() for line in shared_lines(tree)]
    sizes = [(len(body(text)), path.name, body(text)[0]) for path, text in code if exports(text) and body(text) and not only_imports(text) and not is_list_of_names(text)]
    lengths = sorted(n for n, *_ in sizes)
    if lengths: figures["lines of an exported cell, median / 90th percentile / max"] = f"{statistics.median(lengths):.0f} / {lengths[int(0.9 * (len(lengths) - 1))]} / {lengths[-1]}"
    where["exported cells over 30 lines"] = [f"{name}: {n} lines, {first[:60]}" for n, name, first in sizes if n > 30]
    uses = [(path.name, first, shown) for path, some in cells for first, shown in used_after(some)]
    where["definition cells without a use after them"] = [f"{name}: {first[:80]}" for name, first, shown in uses if not shown]
    if uses: figures["definition cells followed by a use"] = f"{sum(s for *_, s in uses) / len(uses):.0%} of {len(uses)}"
    silent = [(p, undocumented(tree)) for p, tree in trees.items()]
    where["private functions of more than three lines that say nothing"] = [f"{p.name}:{n.lineno}: {n.name}" for p, (some, _) in silent for n in some]
    figures["private functions of more than three lines"] = sum(len(found) for _, (_, found) in silent)
    where["chapters of more than 60 cells"] = [f"{path.name}: {len(some)}" for path, some in cells if len(some) > 60]
    return figures, where


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("part", nargs="?", help="a part, or the file name of a notebook")
    ap.add_argument("--lines", action="store_true", help="say where")
    ap.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    args = ap.parse_args()
    figures, where = measure(args.root.resolve(), args.part)
    for name, value in figures.items(): print(f"{name}: {value}")
    for name, found in where.items():
        print(f"{name}: {len(found)}")
        if args.lines:
            for line in found: print("   ", *(line if isinstance(line, tuple) else (line,)))


if __name__ == "__main__": main()
