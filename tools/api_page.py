"""The API page, made from the code: every public name by module, with a link to the chapter that derives it.

    from api_page import api_markdown          # nbs/api.ipynb shows this
    python tools/api_page.py                   # lists what is not documented; exits non-zero if anything
"""
import importlib, inspect, json, pkgutil, re, sys
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

def gaps():
    "What a reader would miss: a name without a docstring, a parameter without a word beside it, a tensor without a shape"
    for module, notebook, _, _ in modules():
        for name, obj in public(module):
            if not show.own_doc(obj): yield f"{notebook}: {name} has no docstring"
            if inspect.isclass(obj) and issubclass(obj, (Exception, tuple)): continue
            notes = show.documented(obj)
            for p in show.parameters(obj) or []:
                if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD): continue
                if p.name not in notes: yield f"{notebook}: {name}({p.name}) has no comment beside it"
                elif show.type_name(p.annotation) == "Tensor" and not re.search(r"\(.*\)|shape", notes[p.name]):
                    yield f"{notebook}: {name}({p.name}) is a tensor without a shape"

if __name__ == "__main__":
    found = list(gaps())
    print("\n".join(found) or "every public name is documented")
    sys.exit(bool(found))
