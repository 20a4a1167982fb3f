"""The API page, made from the code: every public name by module, with a link to the chapter that derives it.

    from api_page import api_markdown          # nbs/api.ipynb shows this
    python tools/api_page.py                   # lists what is not documented; exits non-zero if anything
"""
import ast, importlib, inspect, json, re, sys, textwrap
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
    "The names a module defines for users, in the order it defines them: [(name, object)]"
    names = [n for n in getattr(module, "__all__", []) if not n.startswith("_")]
    found = [(n, getattr(module, n)) for n in names if hasattr(module, n)]
    found = [(n, o) for n, o in found if inspect.isclass(o) or callable(o)]
    own = [(n, o) for n, o in found if getattr(inspect.unwrap(o) if not inspect.isclass(o) else o, "__module__", "") == module.__name__]
    def line(pair):
        try: return inspect.getsourcelines(inspect.unwrap(pair[1]))[1]
        except (OSError, TypeError): return 10**9
    return sorted(own, key=line)

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
            if m != "__init__" and (cfg.lib_path / (m.replace(".", "/") + ".py")).exists()]

def api_markdown():
    "The whole page below its title: a table of every name, then each of them"
    face = getattr(importlib.import_module(get_config().lib_name), "__all__", [])
    index, body = {True: [], False: []}, []
    for module, notebook, title, about in modules():
        names = public(module)
        if not names: continue
        short = module.__name__.split(".", 1)[1]
        body.append(f"## {short}\n\nDerived in [{title}](<{notebook}>)." + (f" {about}" if about else ""))
        for name, obj in names:
            anchor = show_anchor(name)
            first = show.own_doc(obj).split("\n\n")[0]
            index[name in face].append(f"| [<code>{name}</code>](#{anchor}) | {show.cell(first)} | [{short}](#{show_anchor(short)}) |")
            body.append(show.render(obj, name, 3, show.source_link(f"{module.__name__}.{name}")))
            if inspect.isclass(obj): body += [show.render(o, f"{name}.{n}", 4) for n, o in members(obj)]
    head = ["| name | what it is | module |", "|---|---|---|"]
    lib = get_config().lib_name
    tables = [f"## From `{lib}`\n\nThese come from the package itself, `from {lib} import ...`; they are what it promises to keep.", "\n".join(head + index[True])] if index[True] else []
    tables += ["## From its modules\n\nFor those who build on a single chapter.", "\n".join(head + index[False])] if index[False] else []
    return "\n\n".join(tables + body)

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

def flaws(sym, name):
    "What a reader of one entry would miss: a docstring, a word beside a parameter, the shape of a tensor that goes in or comes out"
    if not show.own_doc(sym): yield f"{name} has no docstring"
    if isinstance(sym, property) or inspect.isclass(sym) and issubclass(sym, (Exception, tuple)): return
    notes, params = show.documented(sym), show.parameters(sym) or []
    for p in params:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD): continue
        if p.name not in notes: yield f"{name}({p.name}) has no comment beside it"
        elif is_tensor(p.annotation) and not SHAPE.search(notes[p.name]): yield f"{name}({p.name}) is a tensor without a shape"
    if inspect.isclass(sym): return
    back = inspect.signature(sym).return_annotation
    if back is show.EMPTY:
        if not silent(sym): yield f"{name} does not say what type it returns"
    elif is_tensor(back) and not SHAPE.search(notes.get("return", "")): yield f"{name} returns a tensor without a shape"

def gaps():
    "What a reader would miss, one line each"
    for module, notebook, _, _ in modules():
        for name, obj in public(module):
            for n, o in [(name, obj)] + ([(f"{name}.{n}", o) for n, o in members(obj)] if inspect.isclass(obj) else []):
                yield from (f"{notebook}: {flaw}" for flaw in flaws(o, n))

if __name__ == "__main__":
    found = list(gaps())
    print("\n".join(found) or "every public name is documented")
    sys.exit(bool(found))
