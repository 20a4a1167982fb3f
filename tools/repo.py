"""What the tools ask of the repository: its settings, its notebooks and their cells, its modules, the names in a piece of code.

It needs the standard library alone, as some of the tools do."""
import argparse
import ast
import functools
import json
import re
import symtable
import sys
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NBS = ROOT / "nbs"


def arguments(text):
    "A parser of a tool's arguments, whose help is the docstring of its file."
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


@functools.cache
def settings(root=ROOT):
    "What settings.ini says."
    parser = ConfigParser(delimiters=["="])
    parser.read(root / "settings.ini", encoding="utf-8")
    return parser["DEFAULT"]


def rewrite(path, change, *more):
    "Let a function change the text of a file."
    path.write_text(change(path.read_text(encoding="utf-8"), *more), encoding="utf-8")


def replace(path, old, new):
    "Change a file of another program's; the old text must be there, so that a new version of that program cannot pass by unnoticed."
    def change(text):
        if old not in text: sys.exit(f"{path.name} has no {old!r} any more: look at what this version of its program does instead")
        return text.replace(old, new)
    rewrite(path, change)


# ------------------------------------------------------------------ notebooks

def notebooks(nbs=NBS):
    "Every notebook, in reading order."
    return sorted(p for p in nbs.rglob("*.ipynb") if not any(q[0] in "._" for q in p.relative_to(nbs).parts))


def read(path):
    "The cells of a notebook as they are stored."
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def cells_of(text):
    "[(kind, source)] of the text of a notebook; none of an empty one."
    return [(c["cell_type"], "".join(c["source"])) for c in json.loads(text)["cells"]] if text else []


def cells(path):
    "[(kind, source)] of a notebook."
    return cells_of(path.read_text(encoding="utf-8"))


def sources(path, kind="code"):
    "The sources of a notebook's cells of one kind."
    return [source for k, source in cells(path) if k == kind]


def directives(source):
    "{name: what stands behind it} of the lines `#| name: ...` of a cell."
    return dict(re.findall(r"^#\|\s*(\w+):?[ \t]*(.*)$", source, re.M))


def code_of(source):
    "A cell without its directives."
    return re.sub(r"^#\|.*\n", "", source, flags=re.M).strip()


def is_exported(source): return re.match(r"#\|\s*exporti?\b", source) is not None


def module_of(path):
    "The module that a notebook exports, core.permutation, or an empty text."
    found = re.search(r"^#\|\s*default_exp\s+(\S+)", "\n".join(sources(path)), re.M)
    return found[1] if found else ""


def opening(path):
    "(title, description, old addresses) of a notebook, as its first cell of words has them."
    text = next(iter(sources(path, "markdown")), "")
    def line(pattern): return next(iter(re.findall(pattern, text, re.M)), "")
    old = line(r"^- aliases: \[(.+)\]$")
    return line(r"^# (.+)$") or path.stem, line(r"^> (.+)$"), [a.strip() for a in old.split(",") if a]


# ------------------------------------------------------------------ Python

def modules(root=ROOT):
    "{softsortlib.core.permutation: its file} of the package."
    files = [p for p in sorted((root / "softsortlib").rglob("*.py")) if p.name != "_modidx.py"]
    return {".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): p for p in files}


def bindings(source):
    "(names that a piece of code binds, global names that it reads)."
    try: table = symtable.symtable(source, "cell", "exec")
    except SyntaxError: return set(), set()   # a magic
    def read(scope):
        own = {s.get_name() for s in scope.get_symbols() if s.is_referenced() and (scope is table or s.is_global())}
        return own.union(*map(read, scope.get_children()))
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}, read(table)


def names(source):
    "(names that a piece of code binds, names that it takes from elsewhere)."
    bound, read = bindings(source)
    return bound, read - bound


def statements(source):
    "The top-level statements of a piece of code; none of a magic."
    try: return ast.parse(source).body
    except SyntaxError: return []
