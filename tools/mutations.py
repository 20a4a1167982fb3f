"""Small, sensible mistakes in a definition, one at a time: what tools/mutate.py tries.

    python tools/mutations.py softsortlib/losses/pairs.py     all that it would try there

A mistake changes one line: a sign, an operator, a constant, an index or an axis off by one, a lost mask, a dropped term, a minimum for a maximum.
Decorators, annotations, messages and what only type checkers read stay as they are, and sizes from which another way is faster.
"""
import ast, hashlib, re, sys
from pathlib import Path

SIGNS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
         ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
         ast.And: ("and", "or"), ast.Or: ("or", "and")}
PAIRS = [pair.split() for pair in ("min max", "amin amax", "minimum maximum", "argmin argmax", "floor ceil", "sin cos", "cummin cummax")]
OTHER = {**dict(PAIRS), **{b: a for a, b in PAIRS}}
DROPPED = {"detach", "masked_fill", "clamp", "abs", "flip", "nan_to_num"}                    # methods that are forgotten
QUIET = {"switch", "warn", "info", "isinstance", "hasattr", "getattr"}                      # functions whose arguments are no mathematics
NAMES = re.compile(r"_?fake|__repr__|_?docs?_")                                             # functions that are left alone: for a tracer, for the eye


def children(node):
    "The parts of a node in which a mistake could be."
    if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant): return      # -1 is changed as a whole
    for name, value in ast.iter_fields(node):
        if name in ("decorator_list", "annotation", "returns", "type_params"): continue
        for child in value if isinstance(value, list) else [value]:
            called = getattr(child, "func", None)
            if not isinstance(child, ast.AST) or isinstance(child, (ast.Raise, ast.JoinedStr, ast.Assert)): continue
            if getattr(called, "attr", getattr(called, "id", "")) in QUIET: continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test): continue
            yield child


def is_size(node):
    "Whether a comparison asks for a size from which another way is faster, or an assignment sets one: CAPITALS, or a large whole number."
    return any(isinstance(n, ast.Name) and n.id.isupper() or isinstance(n, ast.Constant) and isinstance(n.value, int) and n.value > 15 for n in ast.walk(node))


class Line:
    "The source of nodes of a line."
    def __init__(self, text): self.bytes = text.encode()                # an offset of ast counts bytes

    def of(self, node):
        "The text of a node, in brackets where it needs them."
        said = self.bytes[node.col_offset:node.end_col_offset].decode()
        return said if isinstance(node, (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript)) else f"({said})"

    def swapped(self, node, begin, end, old, new):
        "The text of a node with another sign between two places of the line."
        there = self.bytes[begin:end].replace(old.encode(), new.encode(), 1)
        return (self.bytes[node.col_offset:begin] + there + self.bytes[end:node.end_col_offset]).decode()

    def with_other(self, node, text):
        "The line with another text for a node."
        text = f"({text})" if text.isdigit() and self.bytes[node.end_col_offset:].startswith(b".") else text       # 1.log() is no Python
        return (self.bytes[:node.col_offset] + text.encode() + self.bytes[node.end_col_offset:]).decode()


def mistakes(node, line):
    "What a node could be by mistake."
    of, between = line.of, lambda a, b, op: line.swapped(node, a.end_col_offset, b.col_offset, *SIGNS[type(op)])
    match node:
        case ast.BinOp(a, op, b) if type(op) in SIGNS:
            yield from (between(a, b, op), of(a))
            if isinstance(op, (ast.Add, ast.Mult, ast.BitAnd)): yield of(b)
        case ast.BoolOp(op, [a, b]): yield between(a, b, op)
        case ast.Compare(a, [op], [b]) if type(op) in SIGNS and not is_size(node): yield between(a, b, op)
        case ast.AugAssign(a, (ast.Add() | ast.Sub() | ast.Mult()) as op, b): yield between(a, b, op)
        case ast.UnaryOp(ast.USub(), ast.Constant(value)): yield from ("-2", "0") if value == 1 else [of(node.operand)]
        case ast.UnaryOp(ast.USub() | ast.Not(), a): yield of(a)
        case ast.Constant(bool(value)): yield str(not value)
        case ast.Constant(int(value)) if value < 10: yield from {str(value + 1), str(max(value - 1, 0))} - {str(value)}
        case ast.Constant(float(value)) if 1e-2 < value < 1e4: yield from (repr(value / 2), repr(value * 1.5))
        case ast.IfExp(_, a, b): yield from (of(a), of(b))
        case ast.Slice(a, b):
            if a: yield f"{of(a)} + 1:{of(b) if b else ''}"
            if b: yield f"{of(a) if a else ''}:{of(b)} - 1"
        case ast.Subscript(a, ast.Name(i), ast.Load()) if i.islower(): yield f"{of(a)}[{i} - 1]"
        case ast.Call(ast.Name("range"), [*first, last], []): yield f"range({', '.join([*map(of, first), of(last) + ' - 1'])})"
        case ast.Call(ast.Attribute(_, "where"), [_, a, b]): yield from (of(a), of(b))
        case ast.Call(ast.Attribute(a, name)) if name in DROPPED: yield of(a)
        case ast.Call(ast.Name(name), [_, _, *_]) if name in OTHER: yield line.swapped(node, node.col_offset, node.end_col_offset, name, OTHER[name])
        case ast.Attribute(a, name) if name in OTHER: yield f"{of(a)}.{OTHER[name]}"


class Mutation:
    "Another text for one line of a module, inside the definition `top`, in the innermost function, `where`, that begins at a line `start`."
    def __init__(self, module, line, place, before, after):
        (self.where, self.top, self.start, self.kernel), self.module, self.number, self.text = place, module, line, after
        self.before, self.after, self.path = before.strip(), after.strip(), module.replace(".", "/") + ".py"
        self.key = f"{module.removeprefix('softsortlib.')}.{self.where}: {self.before} -> {self.after}"


def begin(f): return min([f.lineno, *(d.lineno for d in f.decorator_list)])                  # as a code object says


def mutations(module, source):
    "All mistakes that could be in a module."
    lines, found = source.splitlines(), {}
    def walk(node, where="", top="", start=0, kernel=False):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            if NAMES.match(node.name): return
            kernel = any(re.match("jit|overload", ast.unparse(d)) for d in node.decorator_list)
            where, start = f"{where}.{node.name}".lstrip("."), begin(node)
        elif isinstance(node, ast.Assign) and not where:
            where = ast.unparse(node.targets[0])
            if is_size(node.value) or where in ("__all__", "_all_"): return
        top = top or where
        if where and getattr(node, "lineno", 0) == getattr(node, "end_lineno", 1):
            line = Line(before := lines[node.lineno - 1])
            for text in mistakes(node, line):
                m = Mutation(module, node.lineno, (where, top, start, kernel), before, line.with_other(node, text))
                if m.before != m.after: found.setdefault(m.key, m)
        for child in children(node): walk(child, where, top, start, kernel)
    walk(ast.parse(source))
    return list(found.values())


def modules(root, part):
    "The modules that the tests of a part are about: its own, without kernels for a GPU; what processes do together, wherever it stands, is tested in `distributed`."
    own = [*(root / "softsortlib" / part).glob("*.py"), *((root / "softsortlib").glob("*/parts.py") if part == "distributed" else ())]
    return [p for p in sorted(own) if not p.stem.endswith("_triton") and (p.stem != "parts" or part == "distributed")]


def choose(root, part, count, seed):
    "So many mistakes of a part, of as many functions as there are; those of a function do not depend on the others."
    chance, of = lambda m: hashlib.sha256(f"{seed} {m.key}".encode()).hexdigest(), {}
    for path in modules(root, part):
        for m in mutations(f"softsortlib.{path.parent.name}.{path.stem}", path.read_text(encoding="utf-8")): of.setdefault((m.module, m.where), []).append(m)
    ranked = [(k, chance(m), m) for some in of.values() for k, m in enumerate(sorted(some, key=chance))]
    return [m for *_, m in sorted(ranked, key=lambda r: r[:2])[:count]]


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        for m in mutations(".".join(path.with_suffix("").parts), path.read_text(encoding="utf-8")): print(f"{path}:{m.number}\n    {m.before}\n    {m.after}")
