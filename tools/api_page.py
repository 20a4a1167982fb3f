"""The API pages, made from the code: every public name with its call, its parameters, an example that runs, and the chapter that derives it.

    from api_page import api_index, api_page   # nbs/api.ipynb and the notebooks of nbs/api show these

The examples are the cells of nbs/api that begin with `#| api: name`; `make test` runs them in their notebook, and each of them alone,
and tests/test_api.py lists what is not documented.
A name that has none there shows the cell of its chapter that uses it first.
"""
import ast, builtins, functools, importlib, inspect, re
from pathlib import Path

from nbdev.config import get_config

import repo
import showdoc_table as show

@functools.cache
def chapters():
    "module -> (the notebook that exports it, its title, its description), in reading order"
    out = {}
    for path in repo.notebooks():
        if module := repo.module_of(path): out.setdefault(module, (path.relative_to(repo.NBS).as_posix(), *repo.opening(path)[:2]))
    return out

def public(module):
    "The names a module defines for users, in the order of use: those of the package, those of the part, the rest; [(name, object)]"
    names = [n for n in getattr(module, "__all__", []) if not n.startswith("_")]
    found = [(n, getattr(module, n)) for n in names if hasattr(module, n)]
    found = [(n, o) for n, o in found if inspect.isclass(o) or callable(o)]
    own = [(n, o) for n, o in found if getattr(inspect.unwrap(o) if not inspect.isclass(o) else o, "__module__", "") == module.__name__]
    def place(pair):
        try: line = inspect.getsourcelines(inspect.unwrap(pair[1]))[1]
        except (OSError, TypeError): line = 10**9
        return next((i for i, door in enumerate(doors(module)) if pair[0] in door), 2), line
    return sorted(own, key=place)

def doors(module):
    "The names that users import: from the package, and from the part that a module belongs to"
    lib, part = module.__name__.split(".")[:2] if "." in module.__name__ else (module.__name__, "")
    faces = [importlib.import_module(lib)] + ([importlib.import_module(f"{lib}.{part}")] if module.__name__.count(".") > 1 else [])
    return [getattr(face, "__all__", []) for face in faces]

def members(cls):
    "The public methods and properties that a class defines or changes: [(name, function or property)]"
    out = []
    for n, o in vars(cls).items():
        if n.startswith("_"): continue
        if isinstance(o, (staticmethod, classmethod)): o = getattr(cls, n)
        if getattr(o, "__name__", n) != n: continue                 # a function of another name that the class holds
        if inspect.isfunction(o) or inspect.ismethod(o) or isinstance(o, property): out.append((n, o))
    return [(n, o) for n, o in out if show.own_doc(o)]

def modules():
    "The package's modules that a chapter exports, in reading order: [(module, notebook, title, description)]"
    cfg = get_config()
    return [(importlib.import_module(f"{cfg.lib_name}.{m}"), *about) for m, about in chapters().items()
            if not m.endswith("__init__") and (cfg.lib_path / (m.replace(".", "/") + ".py")).exists()]

def page_of(notebook):
    "The notebook of nbs/api on which the names of a chapter stand, or None: users need not know the engine, nor a part's door"
    part, _, chapter = notebook.rpartition("/")
    if part == "engine" or chapter == "index.ipynb": return None
    if not part: return Path(chapter).stem.split("_")[-1]           # a module of the package itself
    return part

def printed(cell):
    "What a cell shows as text"
    said = ["".join(o.get("text") or o.get("data", {}).get("text/plain", "")) for o in cell["outputs"] if o["output_type"] in ("stream", "execute_result")]
    return "\n".join(s.strip("\n") for s in said if s.strip())

def code_cells(path):
    "[(directives, code, what it printed)]"
    return [(repo.directives(text), repo.code_of(text), printed(c)) for c in repo.read(path) if c["cell_type"] == "code" for text in ["".join(c["source"])]]

NEEDS = {"cuda": "on a CUDA device", "slow": "takes minutes"}      # what a page says of an example that not everybody runs in passing

@functools.cache
def examples():
    "The examples of nbs/api: name (or module.name where two modules have it) -> (code, what it printed, what it needs)"
    return {d["api"]: (code, said, next((why for k, why in NEEDS.items() if k in d), "")) for page in repo.notebooks(repo.NBS / "api")
            for d, code, said in code_cells(page) if "api" in d}

@functools.cache
def chapter_cells(notebook): return code_cells(repo.NBS / notebook)

def statements(code):
    "[(node, its text with its decorators)]"
    lines = code.splitlines()
    def first(n): return min([n.lineno, *(d.lineno for d in getattr(n, "decorator_list", []))])
    return [(n, "\n".join(lines[first(n) - 1:n.end_lineno])) for n in repo.statements(code)]

def own_names(node):
    "The names that a statement alone uses: those it loops over, and of errors that it catches"
    found = {n.id for loop in ast.walk(node) if isinstance(loop, ast.For) for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    return found | {n.name for n in ast.walk(node) if isinstance(n, ast.ExceptHandler)}

def asked(some):
    "The names that statements read and nobody among them has bound before; x = x + 1 reads x"
    known, found = set(vars(builtins)), set()
    for node, text in some:
        bound, read = repo.bindings(text)
        found |= read - known - (own_names(node) if isinstance(node, (ast.Assign, ast.For, ast.If)) else bound)
        known |= bound
    return found

def changes(node):
    "The names that a statement changes without binding them: data.setup(), sys.path.insert(0, folder), Config.parts = ..., chart[3] = x"
    if isinstance(node, ast.Assign): at = node.targets[0]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call): at = node.value.func
    else: return set()
    if isinstance(at, ast.Name): return set()
    while isinstance(at, (ast.Attribute, ast.Subscript)): at = at.value
    return {at.id} if isinstance(at, ast.Name) and at.id not in ("torch", "plt") else set()

def lines_of(node):
    "{name: the line that imports it alone} of an import"
    def line(a): return ast.unparse(ast.Import([a]) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, [a], node.level))
    return {(a.asname or a.name).split(".")[0]: line(a) for a in node.names}

@functools.cache
def import_lines(module):
    "name -> how a module imports it"
    found = [n for n in ast.parse(inspect.getsource(module)).body if isinstance(n, (ast.Import, ast.ImportFrom)) and not getattr(n, "level", 0)]
    return {name: line for node in found for name, line in lines_of(node).items()}

def joined(lines):
    "Import lines in order, those from one module in one line"
    plain, parts = sorted({line for line in lines if not line.startswith("from ")}), {}
    for line in lines:
        if line.startswith("from "): parts.setdefault(line.split(" import ")[0], set()).update(line.split(" import ")[1].split(", "))
    return plain + [f"{source} import {', '.join(sorted(names))}" for source, names in sorted(parts.items(), key=lambda p: ("softsortlib" in p[0], p[0]))]

def alone(module, notebook, code):
    "The code of a chapter with what it needs from the cells above it, and from the module, so that it runs when it is pasted"
    needed, before, kept, imports = asked(statements(code)), [], [], []
    for d, other, _ in chapter_cells(notebook):
        if code in other: break
        if not d.keys() & {"export", "exporti", "exports"} and "show_doc" not in other: before += statements(other)
    for node, text in reversed(before):
        binds, reads = repo.bindings(text)
        if not (binds | changes(node)) & needed or isinstance(node, ast.Assert): continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imports += [line for name, line in lines_of(node).items() if name in needed]
            continue
        if not isinstance(node, (ast.If, ast.Try, ast.With)): needed -= binds - reads
        needed |= asked([(node, text)])
        kept.append((node, text))
    bound = set().union(*(repo.bindings(text)[0] for _, text in kept)) | {line.split()[-1].split(".")[0] for line in imports} if kept or imports else set()
    for n in needed - bound:
        if n not in vars(module): continue
        value, lines = getattr(module, n), import_lines(module)
        imports.append(f"from {module.__name__} import {n}" if n not in lines or getattr(value, "__module__", "") == module.__name__ else lines[n])
    return "\n".join([*joined(dict.fromkeys(imports)), *(text for _, text in reversed(kept)), code])

def in_chapter(notebook, name):
    "The first cell of the chapter below the definition that uses the name, one that readers see if there is one; of a long cell the statements about it"
    word, found, defined = re.compile(rf"\b{name}\b"), [], False
    for d, code, said in chapter_cells(notebook):
        if d.keys() & {"export", "exporti", "exports"}: defined = defined or bool(re.search(rf"^(def|class) {name}\b", code, re.M))
        elif defined and word.search(code): found.append(("hide" in d, len(found), code, said))
    if not found: return None
    _, _, code, said = min(found)
    if code.count("\n") < 12: return code, said
    return "\n".join(text for _, text in statements(code) if word.search(text)), ""

def example(module, notebook, name):
    "(code that runs when it is pasted alone, what it printed, what it needs or \"\"), or None"
    short = module.__name__.split(".")[-1]
    if own := examples().get(f"{short}.{name}") or examples().get(name): return own
    if not (found := in_chapter(notebook, name)): return None
    return alone(module, notebook, found[0]), found[1], ""

def example_markdown(found):
    if not found: return ""
    code, said, needs = found
    text = [f"*Example*{f', {needs}' if needs else ''}", f"```python\n{code}\n```"]
    if said: text.append(f"::: {{.cell-output}}\n\n```\n{said}\n```\n\n:::")
    return "\n\n".join(text)

def api_index():
    "Two tables of every name: what the package itself offers, and the rest by chapter"
    lib = get_config().lib_name
    face, rows = getattr(importlib.import_module(lib), "__all__", []), {True: [], False: []}
    for module, notebook, title, _ in modules():
        for name, obj in public(module):
            if not (page := page_of(notebook)): continue
            rows[name in face].append(f"| [<code>{name}</code>](api/{page}.ipynb#{show_anchor(name)}) | {show.cell(show.own_doc(obj).split(chr(10) * 2)[0])} | [{title}](<{notebook}>) |")
    head = ["| name | what it is | chapter |", "|---|---|---|"]
    return "\n\n".join([f"## From `{lib}`", f"`from {lib} import ...`: what the package promises to keep.", "\n".join(head + rows[True]),
                        "## From its modules", f"`from {lib}.part import ...`: each part of the library has a door of its own.", "\n".join(head + rows[False])])

def api_page(part):
    "The page of a part of the book: its chapters, their names, and for each of these the call, the parameters, an example"
    body = []
    for module, notebook, title, about in modules():
        if page_of(notebook) != part or not (names := public(module)): continue
        body.append(f"## {module.__name__}\n\nDerived in [{title}](<../{notebook}>)." + (f" {about}." if about else ""))
        for name, obj in names:
            body += [show.render(obj, name, 3, show.source_link(f"{module.__name__}.{name}")), example_markdown(example(module, notebook, name))]
            if inspect.isclass(obj): body += [show.render(o, f"{name}.{n}", 4, owner=obj) for n, o in members(obj)]
    return "\n\n".join(b for b in body if b)

def show_anchor(text):
    "The identifier that Pandoc and smalldocs give a heading with this text"
    text = "".join(c.lower() for c in text if c.isalnum() or c in "_-. ").replace(" ", "-")
    return re.sub(r"^[^a-z]+", "", text) or "section"
