"""How nbdev prepares the notebooks for the site: what a reader sees of a chapter's code, its headings, its links.

settings.ini names these processors (`procs`) and those of nbdev's own that they stand for (`skip_procs`), so `make docs` and
`nbdev_docs` stage the same book. Nothing of a notebook is run but the cells that ask for it, with `exec_doc`.
"""
import ast, functools, os, re, sys
from pathlib import Path

from execnb.nbio import mk_cell
from execnb.shell import CaptureShell
from nbdev.config import get_config
from nbdev.doclinks import NbdevLookup
from nbdev.process import Processor
from nbdev.showdoc import showdoc_nm

sys.path.append(str(Path(__file__).resolve().parent))
import contents, repo
from api_page import page_of
from showdoc_table import chapter_heading

def kinds(cell):
    "The kinds of statement in a cell: import, names (a list of exported names), other"
    kind = lambda n: "import" if isinstance(n, (ast.Import, ast.ImportFrom)) else "names" if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) in ("_all_", "__all__") else "other"
    return {kind(n) for n in repo.statements(cell.source)} or {"other"}      # a magic

def fold(source, why):
    "A cell behind a fold, unless the chapter itself says whether it is"
    return source if re.search(r"^#\|\s*code-fold\s*:", source, re.M) else f'#| code-fold: true\n#| code-summary: "{why}"\n{source}'

def is_internal(path):
    "Whether a chapter explains a mechanism: those of Volume II, and what is read in the repository"
    return bool(contents.chapter_of(path)) and path.parent.name in contents.REST and contents.volume_of(f"{path.parent.name}/{path.name}") != "Volume I"

def says(source):
    "What a definition is for, in the first sentence of its docstring, with its name"
    found = next((n for n in repo.statements(source) if isinstance(n, (ast.FunctionDef, ast.ClassDef))), None)
    doc = found and ast.get_docstring(found) or ""
    what = re.sub(r'[`"\\$]', "", re.split(r"[.:;](?:\s|$)|\n\n", " ".join(doc.split("\n\n")[0].split()))[0])
    return f"{found.name}: {what[:1].lower()}{what[1:]}" if what else found.name if found else ""

def folded(source, internal, private):
    "Why an exported definition is folded, or None: engine code, a check of arguments, what only the package itself calls"
    lines, defined = source.count("\n") + 1, re.findall(r"^(?:def|class) (\w+)", source, re.M)
    if internal and lines > 12: return says(source) or f"{lines} lines"
    if defined and re.match(r"_?(check|validate|require)", defined[0]): return f"check of arguments: {defined[0]}, {lines} lines"
    if lines > 6 and (private or defined and all(n.startswith("_") for n in defined)): return says(source) or f"{lines} lines"
    return f"methods: {lines} lines" if not defined and lines > 16 else None

MESSAGE = "message: what an error says"

def folded_use(source):
    "Why a cell that defines nothing is folded, or None: the code of a picture, a long test"
    lines = [line for line in source.splitlines() if line.strip() and not line.startswith("#|")]
    if re.search(r"\bplt\.(show|subplots)\b", source) and len(lines) > 3 or "| fig-cap:" in source: return "code of the picture"
    if source.startswith("def message("): return MESSAGE
    tests = sum(bool(re.match(r"\s*(assert\b|test_\w+\(|torch\.testing)", line)) for line in lines)
    named = re.search(r"Prop [A-Z]\d+\.\d+", source)
    return f"test{f' of {named[0]}' if named else ''}, {len(lines)} lines" if tests and len(lines) > 7 else None

def is_folded(source): return re.search(r"^#\|\s*code-fold\s*:\s*true", source, re.M) is not None

def is_use(source):
    "Whether a folded cell only shows what a definition does, and draws nothing"
    return bool(is_folded(source) and re.search(r'^#\|\s*code-summary: "(?:use of|its use)', source, re.M)) and "| fig-" not in source

def join_uses(cells):
    "The cells, with the use of a folded definition in the same fold, below it: rows of folds say less than one"
    out, definition = [], None
    for cell in cells:
        if cell.cell_type == "code" and definition is not None and is_use(cell.source):
            definition.source += "\n\n" + repo.code_of(cell.source)
            definition.outputs = [*definition.get("outputs", []), *cell.get("outputs", [])]
            continue
        out.append(cell)
        if not getattr(cell, "has_sd", 0): definition = cell if getattr(cell, "defines_", False) and is_folded(cell.source) else None
    return out

def merged(sources):
    "Cells of imports as one, each statement once"
    seen = {}
    for source in sources:
        for n in ast.parse(source).body: seen.setdefault(ast.unparse(n), ast.get_source_segment(source, n))
    return "\n".join(seen.values())

class Reader:
    "What a reader has seen who opens no fold; the names that the package defines here for its users, and those for itself that only a fold shows"
    def __init__(self): self.seen, self.internal, self.public, self.level = set(), set(), set(), 0
    def heading(self, source):
        "A section that is folded whole ends at the next heading of its level"
        for marks, title in re.findall(r"^(#+) (.*)$", source, re.M):
            if len(marks) <= self.level: self.level = 0
            if ".folded" in title and not self.level: self.level = len(marks)
    def take(self, bound, source, directives):
        hidden, ours = self.hides(source), bool({"export", "exporti"} & set(directives))
        if not hidden: self.seen |= bound
        if ours and not (hidden and "exporti" in directives): self.public |= bound
        elif hidden and (ours or MESSAGE in source): self.internal |= bound
        elif not hidden: self.public -= bound
    def hides(self, source): return bool(self.level) or is_folded(source)

class show_code(Processor):
    """Exported definitions stay on the page, and what the package re-exports; lists of names are hidden.
    A cell that begins `#| fold WHY` is folded under these words, `#| fold` alone under what its docstring says, and one with `#| show` is not folded.
    A chapter's imports are one fold: its own, the package's, and what the chapter defines and the page uses, so that no definition need be pasted. What uses
    an internal name of another fold is folded too. So is the code of pages that show recorded results, but for the cell that makes them run"""
    def begin(self):
        self.module = next((" ".join(c.directives_["default_exp"]) for c in self.nb.cells if c.cell_type == "code" and "default_exp" in c.directives_), "")
        self.raise_picture()
        path = Path(self.nb.path_)
        self.results, self.internal = path.parent.name in ("experiments", "benchmarks"), is_internal(path)
        self.engine = self.internal or contents.chapter_of(path) in contents.MACHINERY
        self.reader, self.imports, self.imported, self.needed = Reader(), None, [], set()
    def raise_picture(self):
        "The opening picture goes above what it imports"
        cells, above = self.nb.cells, next((i for i, c in enumerate(self.nb.cells[:6]) if "| fig-cap:" in (c.source or "")), 0)
        if above and cells[above - 1].cell_type == "code": cells[above - 1:above + 1] = [cells[above], cells[above - 1]]
    def cell(self, cell):
        d = cell.directives_ if cell.cell_type == "code" else {}
        if cell.cell_type == "markdown": self.reader.heading(cell.source or "")
        if not cell.source or "hide" in d or cell.cell_type != "code": return
        plain, kinds_of = repo.code_of(cell.source), set(d)
        bound, read = repo.names(plain)
        if "fold" in d: cell.source = fold(cell.source, " ".join(d.pop("fold")) or says(plain))
        if d.pop("show", None) is not None: cell.source = f"#| code-fold: false\n{cell.source}"
        exported, ours = bool({"export", "exporti"} & d.keys()), re.fullmatch(r"(from softsortlib[\w.]* import (\([^)]*\)|.*)\s*)+", cell.source)
        if self.module and kinds(cell) == {"import"} and not (exported and ours):
            if exported or self.imports is None: self.imported.append(plain)
            if exported: return
            d.pop("default_exp", None)
            cell.source, self.imports = fold(cell.source, "imports"), self.imports or cell
        elif exported and ("other" in kinds(cell) or ours):
            for k in ("export", "exporti"): d.pop(k, None)
            cell.defines_ = True
            if why := folded(cell.source, self.engine, "exporti" in kinds_of): cell.source = fold(cell.source, why)
        elif self.results and not {"echo", "echo:"} & d.keys() and not cell.source.startswith("RUN = "): cell.source = fold(cell.source, "code")
        elif self.module and not exported and (why := folded_use(cell.source)): cell.source = fold(cell.source, why)
        elif not self.internal and not self.reader.level and (of := read & self.reader.internal - self.reader.seen): cell.source = fold(cell.source, f"use of {', '.join(sorted(of))}")
        if not exported and not self.reader.hides(cell.source): self.needed |= read & self.reader.public
        self.reader.take(bound, cell.source, kinds_of)
    def end(self):
        "Uses join their definitions; the fold of imports, whole"
        self.nb.cells[:] = join_uses(self.nb.cells)
        if self.imports is None: return
        own = [f"from softsortlib.{self.module} import {', '.join(sorted(self.needed))}"] if self.needed else []
        self.imports.source = fold(merged([*self.imported, *own]), "imports")

class headings(Processor):
    "`show_doc` of a name becomes its heading, with its class; only a cell that asks for it, with `exec_doc`, is run"
    def cell(self, cell):
        if cell.cell_type != "code" or not cell.source: return
        if shown := re.search(r"^show_doc\(([\w.]+)", cell.source, re.M):
            cell.cell_type, cell.source = "markdown", chapter_heading(shown[1])
            for k in ("outputs", "execution_count"): cell.pop(k, None)
        elif "exec_doc" in cell.directives_:
            shell = CaptureShell()
            shell.cell(cell)
            if shell.exc: raise RuntimeError(f"in the cell {cell.source[:80]!r}") from shell.exc

class headings_first(Processor):
    "What `show_doc` made of a cell, the heading of a public name, goes above the code"
    def begin(self):
        out, cells = [], list(self.nb.cells)
        while cells:
            cell, made = cells.pop(0), []
            if getattr(cell, "defines_", False):
                while cells and getattr(cells[0], "has_sd", 0): made.append(cells.pop(0))
            out += [*made, cell]
        self.nb.cells[:] = out

@functools.cache
def anchors():
    "The anchors of the headings that chapters have for their public names"
    exported = [n for p in repo.notebooks() for source in repo.sources(p) if re.match(r"#\|\s*exports?\b", source) for n in ast.parse(source).body]
    return {showdoc_nm(n).lower() for n in exported if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")}

class PublicLookup(NbdevLookup):
    "Names in backticks become links where there is a heading to link to, and not inside a link already"
    def doc(self, sym):
        url, base = super().doc(sym), get_config().doc_baseurl
        if not url or base not in url or "#" not in url: return url
        page, _, anchor = url.partition("#")
        if anchor not in anchors(): return None
        if (notebook := elsewhere().get("/".join(page.split("/")[-2:]))) is None: return url
        api = page_of(notebook)                  # no page of the site defines the name: its entry in the API, or the notebook itself
        return f"{page.partition(f'{base}/')[0]}{base}/api/{api}.html#{anchor}" if api else contents.repository(notebook)
    def link_line(self, line):
        parts = re.split(r"(\[[^\[\]]*\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*\))", line)
        parts[::2] = [super(PublicLookup, self).link_line(p) for p in parts[::2]]
        return "".join(parts)

@functools.cache
def elsewhere(): return {contents.address(p): p for p in contents.elsewhere()}

def leave_the_site(text, folder):
    "Links to notebooks that are no pages lead into the repository; those to the index of a part, to the contents"
    def link(m):
        to = os.path.normpath(os.path.join(folder, m[1])).replace(os.sep, "/")
        if to not in elsewhere().values(): return m[0]
        if not to.endswith("index.ipynb"): return f"]({contents.repository(to)})"
        page, anchor = contents.home(to)
        return f"]({os.path.relpath(page, folder or '.')}{f'#{anchor}' if anchor else ''})"
    return re.sub(r"\]\(<?((?:\.\./|\./)*[\w/]+\.ipynb)(?:#[\w.-]*)?>?\)", link, text)

class in_repository(Processor):
    "A chapter ends with the notebooks that carry it out and are read in the repository"
    def end(self):
        path = Path(self.nb.path_)
        told = contents.companions(f"{path.parent.name}/{path.name}") if path.parent.name in contents.REST else []
        if not told: return
        lines = [f"- {contents.number_of(p)} [{contents.opening(p)[0]}]({contents.repository(p)}): {contents.opening(p)[1]}." for p in told]
        self.nb.cells.append(mk_cell("## In the repository {#in-the-repository}\n\nNotebooks that belong to this chapter and run like it, but are no pages of this site:\n\n" + "\n".join(lines), "markdown"))

class links(Processor):
    "Names in backticks become links, in prose and in what a cell displays"
    def begin(self):
        self.lookup, parent = PublicLookup(), Path(self.nb.path_).resolve().parent
        self.folder = "" if parent == get_config().nbs_path.resolve() else parent.name
    def cell(self, cell):
        if not cell.source: return
        if cell.cell_type == "markdown": cell.source = leave_the_site(self.lookup.linkify(cell.source), self.folder)
        for shown in (o["data"] for o in cell.get("outputs", []) if "text/markdown" in o.get("data", {})):
            lines = shown["text/markdown"].splitlines(True) if isinstance(shown["text/markdown"], str) else shown["text/markdown"]
            shown["text/markdown"] = [leave_the_site(self.lookup.link_line(line), self.folder) for line in lines]
