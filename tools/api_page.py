"""The API pages, made from the code: every public name with its call, its parameters, an example that runs, and the chapter that derives it.

    from api_page import api_index, api_page   # nbs/api.ipynb and the notebooks of nbs/api show these
    python tools/api_page.py                   # lists what is not documented; exits non-zero if anything

The examples are the cells of nbs/api that begin with `#| api: name`; `make test` runs them in their notebook, and each of them alone.
A name that has none there shows the cell of its chapter that uses it first.
"""
import ast, builtins, functools, importlib, inspect, json, re, sys, textwrap, typing
from pathlib import Path

from nbdev.config import get_config

import showdoc_table as show

def chapters(nbs):
    "module -> (the notebook that exports it, its title, its description), in reading order"
    out = {}
    for path in sorted(p for p in nbs.rglob("*.ipynb") if not any(q[0] in "._" for q in p.relative_to(nbs).parts)):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = ["".join(c["source"]) for c in cells]
        module = next((m[1] for c, t in zip(cells, text) if c["cell_type"] == "code" and (m := re.search(r"^#\|\s*default_exp\s+(\S+)", t, re.M))), None)
        if not module: continue
        first = next((t for c, t in zip(cells, text) if c["cell_type"] == "markdown"), "")
        title, about = re.search(r"^# (.+)$", first, re.M), re.search(r"^> (.+)$", first, re.M)
        out.setdefault(module, (path.relative_to(nbs).as_posix(), title[1] if title else module, about[1] if about else ""))
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
    return [(importlib.import_module(f"{cfg.lib_name}.{m}"), *about) for m, about in chapters(cfg.nbs_path).items()
            if not m.endswith("__init__") and (cfg.lib_path / (m.replace(".", "/") + ".py")).exists()]

def page_of(notebook):
    "The notebook of nbs/api on which the names of a chapter stand, or None: users need not know the engine, nor a part's door"
    part, _, chapter = notebook.rpartition("/")
    if part == "engine" or chapter == "index.ipynb": return None
    if not part: return Path(chapter).stem.split("_")[-1]           # a module of the package itself
    return "experiments" if part == "lab" and 64 <= int(chapter.split("_")[0]) <= 71 else part

def directives(source): return dict(re.findall(r"^#\|\s*(\w+):?[ \t]*(.*)$", source, re.M))
def code_of(source): return re.sub(r"^#\|.*\n", "", source, flags=re.M).strip()

def code_cells(path):
    "[(directives, code, what it printed)]"
    out = []
    for c in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if c["cell_type"] != "code": continue
        said = ["".join(o.get("text") or o.get("data", {}).get("text/plain", "")) for o in c["outputs"] if o["output_type"] in ("stream", "execute_result")]
        source = "".join(c["source"])
        out.append((directives(source), code_of(source), "\n".join(s.strip("\n") for s in said if s.strip())))
    return out

NEEDS = {"cuda": "on a CUDA device", "slow": "takes minutes"}      # what a page says of an example that not everybody runs in passing

@functools.cache
def examples():
    "The examples of nbs/api: name (or module.name where two modules have it) -> (code, what it printed, what it needs)"
    return {d["api"].strip(): (code, said, next((why for k, why in NEEDS.items() if k in d), "")) for path in sorted((get_config().nbs_path / "api").glob("*.ipynb"))
            for d, code, said in code_cells(path) if "api" in d}

@functools.cache
def chapter_cells(notebook): return code_cells(get_config().nbs_path / notebook)

def names_in(node, kind):
    "The names that a statement reads, or binds for those below it"
    if kind is ast.Load: return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, kind)}
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)): return {node.name}
    inner = {id(n) for c in ast.walk(node) if isinstance(c, ast.comprehension) for n in ast.walk(c.target)}
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, kind) and id(n) not in inner}
    return found | {(a.asname or a.name).split(".")[0] for n in ast.walk(node) if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names}

def own_names(node):
    "The names that belong to a statement alone: its loop variables, the arguments of its functions, what these bind"
    found = {n.id for c in ast.walk(node) if isinstance(c, (ast.comprehension, ast.For)) for n in ast.walk(c.target) if isinstance(n, ast.Name)}
    for f in ast.walk(node):
        if isinstance(f, ast.ClassDef): found.add(f.name)
        if not isinstance(f, (ast.FunctionDef, ast.Lambda)): continue
        found |= {a.arg for a in ast.walk(f.args) if isinstance(a, ast.arg)}
        if isinstance(f, ast.FunctionDef): found |= {n.id for n in ast.walk(f) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} | {f.name}
    return found | {n.name for n in ast.walk(node) if isinstance(n, ast.ExceptHandler) and n.name}

def asked(nodes):
    "The names that statements read and nobody among them has bound before"
    bound, found = set(vars(builtins)), set()
    for node in nodes:
        also = names_in(node, ast.Store) if isinstance(node, (ast.With, ast.Try)) else set()
        found |= names_in(node, ast.Load) - own_names(node) - also - bound
        bound |= names_in(node, ast.Store)
    return found

def statements(code):
    "[(node, its text with its decorators)]"
    try: return [(n, "\n".join(code.splitlines()[min([n.lineno] + [d.lineno for d in getattr(n, "decorator_list", [])]) - 1:n.end_lineno])) for n in ast.parse(code).body]
    except SyntaxError: return []                               # a magic

def changes(node):
    "The names that a statement changes without binding them: data.setup(), sys.path.insert(0, folder), Config.parts = ..., chart[3] = x"
    if isinstance(node, ast.Assign): at = node.targets[0]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call): at = node.value.func
    else: return set()
    if isinstance(at, ast.Name): return set()
    while isinstance(at, (ast.Attribute, ast.Subscript)): at = at.value
    return {at.id} if isinstance(at, ast.Name) and at.id not in ("torch", "plt") else set()

@functools.cache
def import_lines(module):
    "name -> how a module imports it"
    out = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, (ast.Import, ast.ImportFrom)) or getattr(node, "level", 0): continue
        for a in node.names: out[(a.asname or a.name).split(".")[0]] = ast.unparse(ast.Import([a]) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, [a], 0))
    return out

def joined(lines):
    "Import lines in order, those from one module in one line"
    plain, parts = sorted({line for line in lines if not line.startswith("from ")}), {}
    for line in lines:
        if line.startswith("from "): parts.setdefault(line.split(" import ")[0], set()).update(line.split(" import ")[1].split(", "))
    return plain + [f"{source} import {', '.join(sorted(names))}" for source, names in sorted(parts.items(), key=lambda p: ("softsortlib" in p[0], p[0]))]

def alone(module, notebook, code):
    "The code of a chapter with what it needs from the cells above it, and from the module, so that it runs when it is pasted"
    needed, before, kept, imports = asked([n for n, _ in statements(code)]), [], [], []
    for d, other, _ in chapter_cells(notebook):
        if code in other: break
        if not d.keys() & {"export", "exporti", "exports"} and "show_doc" not in other: before += statements(other)
    for node, text in reversed(before):
        binds = names_in(node, ast.Store)
        if not (binds | changes(node)) & needed or isinstance(node, ast.Assert): continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imports += used_part(node, needed)
            continue
        if not isinstance(node, (ast.If, ast.Try, ast.With)): needed -= binds - names_in(node, ast.Load)
        needed |= asked([node])
        kept.append((node, text))
    bound = set().union(*(names_in(node, ast.Store) for node, _ in kept)) | {line.split()[-1].split(".")[0] for line in imports} if kept or imports else set()
    for n in needed - bound:
        if n not in vars(module): continue
        value, lines = getattr(module, n), import_lines(module)
        imports.append(f"from {module.__name__} import {n}" if n not in lines or getattr(value, "__module__", "") == module.__name__ else lines[n])
    return "\n".join([*joined(dict.fromkeys(imports)), *(text for _, text in reversed(kept)), code])

def used_part(node, needed):
    "The lines of an import for the names that somebody asks for"
    names = [a for a in node.names if (a.asname or a.name).split(".")[0] in needed]
    return [ast.unparse(ast.Import([a]) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, [a], node.level)) for a in names]

def in_chapter(notebook, name):
    "The first cell of the chapter below the definition that uses the name, one that readers see if there is one; of a long cell the statements about it"
    word, found, defined = re.compile(rf"\b{name}\b"), [], False
    for d, code, said in chapter_cells(notebook):
        if d.keys() & {"export", "exporti", "exports"}: defined = defined or bool(re.search(rf"^(def|class) {name}\b", code, re.M))
        elif defined and word.search(code): found.append(("hide" in d, len(found), code, said))
    if not found: return None
    _, _, code, said = min(found)
    if code.count("\n") >= 12:
        lines, said = code.splitlines(), ""
        code = "\n".join("\n".join(lines[n.lineno - 1:n.end_lineno]) for n in ast.parse(code).body if word.search("\n".join(lines[n.lineno - 1:n.end_lineno])))
    return code, said

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
        names = public(module)
        if not names or page_of(notebook) != part: continue
        body.append(f"## {module.__name__}\n\nDerived in [{title}](<../{notebook}>)." + (f" {about}." if about else ""))
        for name, obj in names:
            body += [show.render(obj, name, 3, show.source_link(f"{module.__name__}.{name}")), example_markdown(example(module, notebook, name))]
            if inspect.isclass(obj): body += [show.render(o, f"{name}.{n}", 4, owner=obj) for n, o in members(obj)]
    return "\n\n".join(b for b in body if b)

def show_anchor(text):
    "The identifier that Pandoc and smalldocs give a heading with this text"
    text = "".join(c.lower() for c in text if c.isalnum() or c in "_-. ").replace(" ", "-")
    return re.sub(r"^[^a-z]+", "", text) or "section"

SHAPE = re.compile(r"\(.*\)|shape|scalar|broadcast")

def is_tensor(anno): return bool(re.match(r"(Long|Float|Bool)?Tensor\b|tuple\[.*Tensor|.*\bTensor \| None", show.type_name(anno).replace("torch.", "")))

def silent(sym):
    "Whether a function gives nothing back, as far as its code tells"
    try: tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(sym))))
    except (OSError, TypeError, SyntaxError): return True
    return not any(isinstance(n, (ast.Yield, ast.YieldFrom)) or isinstance(n, ast.Return) and n.value is not None for n in own_nodes(tree.body[0]))

def own_nodes(node):
    "The nodes of a function without those of the functions inside it"
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.Lambda, ast.ClassDef)): yield from own_nodes(child)

def raises(sym):
    "The errors that the code of a function raises itself"
    try: tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(sym))))
    except (OSError, TypeError, SyntaxError): return set()
    return {n.exc.func.id for n in own_nodes(tree.body[0]) if isinstance(n, ast.Raise) and isinstance(n.exc, ast.Call) and isinstance(n.exc.func, ast.Name)}

def flaws(sym, name, owner=None):
    "What a reader of one entry would miss: a docstring, a word beside a parameter, the shape of a tensor that goes in or comes out, the errors"
    if not show.own_doc(sym): yield f"{name} has no docstring"
    if isinstance(sym, property) or inspect.isclass(sym) and issubclass(sym, (Exception, tuple)): return
    notes, params, doc = show.documented(sym, owner), show.parameters(sym) or [], show.own_doc(sym)
    for p in params:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD): continue
        # the docstring of a method may say what it takes: a name in backticks, or the shape of its tensor
        if owner and (f"`{p.name}`" in doc or is_tensor(p.annotation) and SHAPE.search(doc)): continue
        if p.name not in notes: yield f"{name}({p.name}) has no comment beside it"
        elif is_tensor(p.annotation) and not SHAPE.search(notes[p.name]): yield f"{name}({p.name}) is a tensor without a shape"
    if inspect.isclass(sym): return
    command = any(typing.get_origin(p.annotation) is typing.Annotated for p in params)          # its docstring is the help that a user reads
    if (errors := raises(sym)) and not command and not re.search(r"[Rr]aise|Error", doc): yield f"{name} does not say that it raises {', '.join(sorted(errors))}"
    back = inspect.signature(sym).return_annotation
    if back is show.EMPTY:
        if not silent(sym) and not command: yield f"{name} does not say what type it returns"
    elif is_tensor(back) and not SHAPE.search(notes.get("return", "")): yield f"{name} returns a tensor without a shape"

def gaps():
    "What a reader would miss, one line each"
    used = set()
    for module, notebook, _, _ in modules():
        for name, obj in public(module):
            for n, o in [(name, obj)] + ([(f"{name}.{n}", o) for n, o in members(obj)] if inspect.isclass(obj) else []):
                yield from (f"{notebook}: {flaw}" for flaw in flaws(o, n, obj if inspect.isclass(obj) and o is not obj else None))
            found, page = example(module, notebook, name), page_of(notebook)
            used |= {name, f"{module.__name__.split('.')[-1]}.{name}"}
            if page and not found: yield f"{notebook}: {name} has no example: write a cell that begins `#| api: {name}` in nbs/api/{page}.ipynb"
            elif found and name not in found[0] + found[1]: yield f"nbs/api/{page}.ipynb: the example of {name} does not name it"
    yield from (f"nbs/api: there is no public name {name!r} for an example" for name in examples().keys() - used)

if __name__ == "__main__":
    found = list(gaps())
    print("\n".join(found) or "every public name is documented")
    sys.exit(bool(found))
