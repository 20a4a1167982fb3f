"""What calls of this library look like, and which of them a change would break: the record tests/interface.json.

    python tools/interface.py            what has changed since the record
    python tools/interface.py --record   keep the present calls; what breaks needs a new minor version, and a line
                                         of its changelog that begins "- Changed" and names it

A call breaks where a name, a method or a parameter is gone, a parameter asks for a value that it had itself,
has moved before or behind another, takes its value by name alone, or has another default.
"""
import importlib
import inspect
import json
import re
import sys

import repo
from repo import ROOT

RECORD, CHANGELOG = ROOT / "tests/interface.json", ROOT / "CHANGELOG.md"
PRIVATE = ("engine", "lab")


def minor():
    "The version up to its second number, within which no call breaks."
    return ".".join(repo.settings()["version"].split(".")[:2])


def parameters(f):
    "[[name, kind, its default as text or None]] of what a call may give, or None where Python cannot tell."
    try: found = inspect.signature(f).parameters.values()
    except (TypeError, ValueError): return None
    def default(p): return None if p.default is p.empty else re.sub(r" at 0x\w+", "", getattr(p.default, "__name__", repr(p.default)))
    return [[p.name, p.kind.name.lower(), default(p)] for p in found if p.name != "self"]


def calls(name, obj):
    "(dotted name, parameters) of a function, or of a class and of its public methods; a property has none to give."
    yield name, parameters(obj)
    if not inspect.isclass(obj): return
    for owner in reversed(obj.__mro__):
        if not owner.__module__.startswith("softsortlib"): continue
        for attribute, member in vars(owner).items():
            if not attribute.startswith("_"): yield f"{name}.{attribute}", parameters(getattr(obj, attribute)) if callable(getattr(obj, attribute, None)) else None


def interface():
    "{dotted name: parameters} of all that a user can import: from the package, and from its parts."
    parts = sorted(p.parent.name for p in (ROOT / "softsortlib").glob("*/__init__.py"))
    found = {}
    for module in ["softsortlib", *(f"softsortlib.{part}" for part in parts if part not in PRIVATE)]:
        door = importlib.import_module(module)
        for name in door.__all__: found |= dict(calls(f"{module}.{name}", getattr(door, name)))
    return found


def lost(name, old, new):
    "What of one call is broken, as sentences."
    if old is None: return
    if new is None:
        yield f"{name} is no longer called"
        return
    now = {p[0]: p for p in new}
    for parameter, kind, default in old:
        if parameter not in now:
            yield f"{name} has no `{parameter}`"
            continue
        _, kind_now, default_now = now[parameter]
        if kind_now != kind and not (kind == "keyword_only" and kind_now == "positional_or_keyword"): yield f"`{parameter}` of {name} was {kind} and is {kind_now}"
        if default is not None and default_now is None: yield f"{name} asks for `{parameter}`, whose default was {default}"
        elif default is not None and default_now != default: yield f"`{parameter}` of {name} is {default_now} by default, and was {default}"
    before, after = ([p[0] for p in side if p[1].startswith("positional")] for side in (old, new))
    if after[:len(before)] != before and set(before) <= set(after): yield f"{name} takes {', '.join(after)} in this order, and took {', '.join(before)}"
    for parameter, kind, default in new:
        if default is None and parameter not in {p[0] for p in old} and not kind.startswith("var"): yield f"{name} asks for `{parameter}`, which is new"


def breaks(old, new):
    "The calls that `old` allows and `new` does not, as sentences."
    for name, given in old.items():
        if name not in new: yield f"{name} is gone"
        else: yield from lost(name, given, new[name])


def unsaid(sentences, changelog):
    "The broken calls that no line of the newest section of the changelog names, in lines that begin `- Changed`."
    newest = re.split(r"^## ", changelog, flags=re.M)[1]
    said = set(re.findall(r"\w+", " ".join(re.findall(r"^- Changed.*(?:\n  .*)*", newest, re.M))))
    def called(sentence): return {word.split(".")[-1] for word in re.findall(r"softsortlib[\w.]*", sentence)}
    return [sentence for sentence in sentences if not called(sentence) & said]


def main():
    parser = repo.arguments(__doc__)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    old = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else dict(version=None, calls={})
    new = interface()
    broken = list(breaks(old["calls"], new))
    print("\n".join(broken) or f"no call of version {old['version']} is broken")
    print(f"{len(new.keys() - old['calls'].keys())} names are new")
    if not args.record: return
    changelog = CHANGELOG.read_text(encoding="utf-8")
    released = f"## {minor()}." in changelog and "unreleased" not in re.split(r"^## ", changelog, flags=re.M)[1].splitlines()[0]
    if broken and old["version"] == minor() and released: sys.exit(f"version {minor()} is released: a broken call needs a new minor version (settings.ini)")
    if old["version"] != minor() and (left := unsaid(broken, changelog)): sys.exit("CHANGELOG.md says nothing of these, in a line that begins \"- Changed\":\n" + "\n".join(left))
    RECORD.write_text("{" + f'"version": "{minor()}", "calls": ' + "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(new.items())) + "\n}}\n", encoding="utf-8")


if __name__ == "__main__": main()
