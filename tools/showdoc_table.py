"""How a public name is shown on the site: signature, docstring, and a table of its parameters; in a chapter, its code.

The Markdown means the same to Quarto and to smalldocs.
"""
import html, inspect, typing

from fastcore.docments import docments
from nbdev.config import get_config
from nbdev.doclinks import NbdevLookup

WIDTH = 76          # a signature longer than this takes one line a parameter
EMPTY = inspect.Parameter.empty

def type_name(anno):
    "An annotation as its author wrote it: `Tensor`, `float | None`"
    if anno is EMPTY or anno is None: return ""
    if isinstance(anno, str): return anno
    if typing.get_origin(anno) is typing.Annotated: return type_name(anno.__origin__)     # what stands beside the type is its help
    if isinstance(anno, type) and anno.__module__ == "torch" and anno.__name__ != "Tensor": return f"torch.{anno.__name__}"
    if isinstance(anno, type) and not hasattr(anno, "__args__"): return anno.__name__
    return str(anno).replace("typing.", "").replace("collections.abc.", "").replace("torch.Tensor", "Tensor")

def default_text(value):
    "A default as one would type it"
    if callable(value) and hasattr(value, "__name__"): return value.__name__
    return repr(value)

def parameters(sym):
    "The parameters that a caller gives (of a class: those of its `__init__`), or None where Python cannot tell"
    try: sig = inspect.signature(sym)
    except (ValueError, TypeError): return None
    return [p for i, p in enumerate(sig.parameters.values()) if not (i == 0 and p.name in ("self", "cls"))]

def one_parameter(p):
    star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    anno, default = type_name(p.annotation), "" if p.default is EMPTY else default_text(p.default)
    return f"{star}{p.name}" + (f": {anno}" if anno else "") + (f"{' = ' if anno else '='}{default}" if default else "")

def signature(sym, name):
    "The call, on one line where it fits"
    if isinstance(sym, property): return name
    params = parameters(sym)
    if params is None: return f"{name}(...)"
    parts, starred = [], False
    for p in params:
        if p.kind is p.KEYWORD_ONLY and not starred: parts.append("*"); starred = True
        starred = starred or p.kind is p.VAR_POSITIONAL
        parts.append(one_parameter(p))
        if p.kind is p.POSITIONAL_ONLY and not any(q.kind is p.POSITIONAL_ONLY for q in params[params.index(p) + 1:]): parts.append("/")
    back = "" if inspect.isclass(sym) else type_name(inspect.signature(sym).return_annotation)
    back = f" -> {back}" if back else ""
    line = f"{name}({', '.join(parts)}){back}"
    return line if len(line) <= WIDTH else f"{name}(\n" + "".join(f"    {p},\n" for p in parts) + f"){back}"

def cell(text):
    "Text for a table cell: one line, no bars"
    return " ".join(str(text).split()).replace("|", "&#124;")

def code_cell(text):
    "Code for a table cell; an HTML tag, since the two renderers escape a bar inside backticks differently"
    return f"<code>{html.escape(' '.join(str(text).split())).replace('|', '&#124;')}</code>" if text else ""

def documented(sym, owner=None):
    "name -> the comment beside the parameter, or the help of a command's option; `return` for what comes back. What a class leaves unsaid, its bases may say"
    bases = sym.__mro__[1:-1] if inspect.isclass(sym) else [vars(b)[sym.__name__] for b in owner.__mro__[1:] if inspect.isfunction(vars(b).get(sym.__name__))] if owner else []
    return {k: v for base in reversed(bases) if is_ours(base) for k, v in own_documented(base).items()} | own_documented(sym)

def is_ours(sym): return sym.__module__.split(".")[0] == get_config().lib_path.name

def own_documented(sym):
    "The same without the bases"
    helps = {p.name: p.annotation.__metadata__[0] for p in parameters(sym) or [] if typing.get_origin(p.annotation) is typing.Annotated}
    if inspect.isclass(sym) and inspect.isfunction(of := getattr(sym, "function", None)):     # a module that holds the options of a function
        helps |= {k: v for k, v in own_documented(of).items() if k in [p.name for p in parameters(sym)]}
    try: found = docments(sym if inspect.isclass(sym) else inspect.unwrap(sym), full=True)
    except Exception: return helps
    return helps | {k: v["docment"] for k, v in found.items() if isinstance(v["docment"], str)}

def table(sym, owner=None):
    "The parameters as a table: name, type, default, meaning. Empty where nothing is written beside any of them"
    params, notes = parameters(sym) if not isinstance(sym, property) else [], documented(sym, owner) if not isinstance(sym, property) else {}
    if not params and "return" not in notes or not notes: return ""
    rows = [(code_cell(p.name), code_cell(type_name(p.annotation)), "" if p.default is EMPTY else code_cell(default_text(p.default)), cell(notes.get(p.name, "")))
            for p in params or []]
    if "return" in notes or (params and not inspect.isclass(sym) and inspect.signature(sym).return_annotation not in (EMPTY, None)):
        back = "" if inspect.isclass(sym) else type_name(inspect.signature(sym).return_annotation)
        if back or notes.get("return"): rows.append(("*returns*", code_cell(back), "", cell(notes.get("return", ""))))
    head = ("parameter", "type", "default", "meaning")
    keep = [i for i in range(4) if i == 0 or any(r[i] for r in rows)]
    line = lambda r: "| " + " | ".join(r[i] for i in keep) + " |"
    return "\n".join([line(head), "|" + "---|" * len(keep), *map(line, rows)])

def own_doc(sym):
    "The docstring of the name itself, not one that it inherits"
    doc = sym.__dict__.get("__doc__") if inspect.isclass(sym) else getattr(sym, "__doc__", None)
    return inspect.cleandoc(doc) if doc else ""

def heading(name):
    "A heading's text; underscores of dunder names would read as bold"
    return name.replace("_", r"\_") if "__" in name else name

def source_link(name):
    "A link to the code, at the right of the heading that follows"
    url = NbdevLookup().code(name)
    return f'[source]({url}){{target="_blank" style="float:right; font-size:smaller"}}' if url else ""

def render(sym, name, level=3, link="", owner=None):
    "Markdown for one public name"
    parts = [link, f"{'#' * level} {heading(name)}" if level else "", f"```python\n{signature(sym, name)}\n```", own_doc(sym), table(sym, owner)]
    return "\n\n".join(p for p in parts if p)

def chapter_heading(name, level=3):
    "What stands above the code of a public name in a chapter: a heading to link to. The code has the docstring and the comments"
    return f"{source_link(name)}\n\n{'#' * level} {heading(name)}".lstrip()
