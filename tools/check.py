"""What a change needs, in minutes: export, the notebooks and tests that it touches, style and links. The rest is left to CI, and said.

    python tools/check.py                        what differs from the main branch, commits and working tree
    python tools/check.py --against HEAD~1       from another commit
    python tools/check.py --minutes 10 --jobs 4  more time (5) and processes (2)

A change of words runs its notebook. A change of a definition runs the chapters, pages and tests of all that calls it, the nearest first, while there
is time. As a plugin of pytest (`-p check`) it picks the tests that name what changed, where a file tests every operator, and begins none after the end.
"""
import ast, functools, importlib.util, json, os, re, subprocess, sys, tempfile, time
import xml.etree.ElementTree as ET
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import repo
from repo import ROOT

WIDTH = 76                                   # what a shown line of code may have, so that a phone need not scroll
STYLE = ["tests/test_repository.py", "tests/test_references.py", "tests/test_stated.py", *(f"tests/test_site.py::{name}" for name in (
         "test_the_sidebar_lists_every_page_once", "test_a_part_counts_its_chapters_in_the_order_of_reading", "test_cells_of_a_chapter_that_import_do_nothing_else",
         "test_the_first_cell_of_a_page_is_its_title_and_description_alone", "test_readme_is_made_from_the_home_page"))]

# ------------------------------------------------------------------ what changed

def git(*words, check=True):
    "What a git command prints; an empty text where it fails and may"
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode and check: sys.exit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return "" if done.returncode else done.stdout

def base():
    "The commit at which this branch left the main one; HEAD on the main branch itself"
    refs = (git("merge-base", "HEAD", ref, check=False).strip() for ref in ("@{upstream}", "origin/main", "main"))
    return next(filter(None, refs), "HEAD")

def changed(against):
    "Files that differ from a commit, and new ones that git does not ignore"
    return sorted({*git("diff", "--name-only", against).split("\n"), *git("ls-files", "--others", "--exclude-standard").split("\n")} - {""})

def code_changed(path, against):
    "Whether a notebook's code changed, and not its words or outputs alone"
    before = repo.cells_of(git("show", f"{against}:{path}", check=False))
    return [source for kind, source in before if kind == "code"] != repo.sources(ROOT / path)

# ------------------------------------------------------------------ what depends on it

def targets(node):
    "The names that a top-level statement defines; a method that is patched in belongs to its class"
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [a.id for d in node.decorator_list if isinstance(d, ast.Call) and "patch_to" in ast.unparse(d.func) for a in d.args if isinstance(a, ast.Name)] or [node.name]
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]

def definitions(text):
    "{name: its source}, {name: the words that it uses}, and where imported names come from: {name: (level, module, name there)}"
    own, uses, imported = {}, {}, {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom): imported.update({a.asname or a.name: (node.level, node.module or "", a.name) for a in node.names})
        elif not isinstance(node, ast.Import):
            said = {getattr(n, "id", None) or getattr(n, "attr", None) or getattr(n, "value", None) for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)) or isinstance(n, ast.Constant) and isinstance(n.value, str)}
            for name in {*targets(node)} - {"__all__", "_all_"}:
                own[name] = own.get(name, "") + ast.unparse(node) + "\n"
                uses[name] = uses.get(name, set()) | said - {name, "_"}
    return own, uses, imported

class Package:
    "The definitions of all modules, and who refers to whom"
    def __init__(self, root=ROOT):
        self.paths = {module: path.relative_to(root).as_posix() for module, path in repo.modules(root).items()}
        self.modules = {module: definitions((root / path).read_text(encoding="utf-8")) for module, path in self.paths.items()}
        self.called = {}                     # operators by name
        for module, (own, *_) in self.modules.items():
            for name, text in own.items():
                for called in re.findall(rf"class {name}\(.*\bname='(\w+)'", text): self.called.setdefault(called, set()).add((module, name))

    def home(self, module, name):
        "Where a name that a module knows is defined"
        own, _, imported = self.modules.get(module, ({}, {}, {}))
        if name in own or name not in imported: return (module, name) if name in own else None
        level, source, there = imported[name]
        package = module if self.paths[module].endswith("__init__.py") else module.rpartition(".")[0]
        return self.home(importlib.util.resolve_name("." * level + source, package) if level else source, there)

    @functools.cache
    def users(self):
        "{definition: those that name it}"
        found = {}
        for module, (_, uses, _) in self.modules.items():
            for name, words in uses.items():
                for word in words:
                    home = self.home(module, word)
                    for source in [home] if home else self.called.get(word, ()): found.setdefault(source, set()).add((module, name))
        return found

    def affected(self, first):
        "{definition: its distance from those of `first`}, as far as anything refers to them"
        users, far, ring = self.users(), dict.fromkeys(first, 0), list(first)
        while ring:
            ring = [d for c in ring for d in users.get(c, ()) if d not in far and not far.update({d: far[c] + 1})]
        return far

def changed_definitions(package, against):
    "Definitions of the modules that are not those of a commit"
    found = []
    for module, (own, *_) in package.modules.items():
        path = package.paths[module]
        if not git("diff", "--name-only", against, "--", path) and git("ls-files", path): continue
        old = definitions(git("show", f"{against}:{path}", check=False))[0]
        found += [(module, name) for name, text in own.items() if old.get(name) != text]
    return found

def words_of(package, some):
    "What a test or a page calls these definitions: their public names, and those of operators"
    names = {name for _, name in some if not name.startswith("_")}
    return names | {called for called, where in package.called.items() if where & set(some)}

def naming(path, words): return len(words & set(re.findall(r"\w+", (ROOT / path).read_text(encoding="utf-8"))))

# ------------------------------------------------------------------ what is run

def notebooks_for(package, far, changes):
    "Notebooks in the order in which they are run: those that changed, chapters by distance, pages that name what changed"
    near = {}
    for (module, _), d in far.items(): near[module] = min(d, near.get(module, d))
    words, order = words_of(package, [c for c, d in far.items() if d == 0]), {}
    for p in repo.notebooks(ROOT / "nbs"):
        name, module = p.relative_to(ROOT).as_posix(), repo.module_of(p)
        if name in changes: order[name] = -1
        elif module: order[name] = near.get(f"softsortlib.{module}".removesuffix(".__init__"))
        elif naming(name, words): order[name] = 3 if p.parent.name in ("experiments", "benchmarks") else 1.5
    order = {name: distance for name, distance in order.items() if distance is not None}
    return sorted(order, key=lambda n: (order[n], n))

def tests_for(package, far, changes):
    "Test files in the order in which they are run: those that changed, those of the part that name it, the rest of the part, others that name it"
    words, first = words_of(package, [c for c, d in far.items() if d <= 1]), {c[0] for c, d in far.items() if d == 0}
    parts, order = {m.split(".")[1] for m in first if m.count(".") > 1}, {}
    tools = {Path(c).stem for c in changes if c.startswith("tools/") and (ROOT / c).exists()}
    for p in sorted((ROOT / "tests").rglob("test_*.py")):
        name, text = p.relative_to(ROOT).as_posix(), p.read_text(encoding="utf-8")
        if name in STYLE or "--tests" in text: continue
        said = naming(name, words)
        if name in changes: order[name] = (0,)
        elif p.parent.name in parts: order[name] = (1, -said) if said else (3,)
        elif said or re.search(r"^from tables import", text, re.M) and words: order[name] = (2, -said)
        elif any(re.search(rf"^from {tool} import|^import (\w+, )*{tool}\b|tools[\"'/ ]+{tool}\.py", text, re.M) for tool in tools): order[name] = (1, 0)
    return sorted(order, key=order.get), sorted(words)

def left_out(item, words):
    "Whether a test of a file for every operator is of another one"
    return {"OPERATORS", "RANKS", "FUNCTIONS", "LOSSES", "SUBJECTS"} & vars(item.module).keys() and not any(re.search(rf"(?<![a-z]){w}(?![a-z])|Test{w}\b", item.nodeid) for w in words)

def another(item, notebooks):
    "Whether a test is of one notebook, and that is none of these; or exports all, which has just been done"
    of = [str(v) for v in item.callspec.params.values()] if hasattr(item, "callspec") else []
    return item.name == "test_exported_modules_are_up_to_date" or any(v.endswith(".ipynb") and not any(n.endswith(v.split("/nbs/")[-1]) for n in notebooks) for v in of)

def pytest_collection_modifyitems(config, items):
    words, changes, notebooks = (json.loads(os.environ.get(f"CHECK_{name}", "null")) for name in ("WORDS", "CHANGED", "NOTEBOOKS"))
    if notebooks is not None: items[:] = [i for i in items if not another(i, notebooks)]
    if words: items[:] = [i for i in items if i.path.relative_to(ROOT).as_posix() in changes or not left_out(i, words)]

def pytest_runtest_setup(item):
    if time.time() > float(os.environ.get("CHECK_DEADLINE", "inf")):
        import pytest
        pytest.skip("out of time")

def pytest(what, jobs, **env):
    "Run tests: (whether they pass, the count of each outcome, the seconds of each file, files of which some are left out)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tools"), str(ROOT), os.environ.get("PYTHONPATH", "")]), **{f"CHECK_{k.upper()}": json.dumps(v) for k, v in env.items()}}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        parallel = ["-n", str(jobs)] if jobs > 1 and importlib.util.find_spec("xdist") else []
        done = subprocess.run([sys.executable, "-m", "pytest", "-p", "check", "-q", "--no-header", "--tb=short", *parallel, f"--junitxml={report}", *what], cwd=ROOT, env=env, capture_output=True, text=True)
        cases = list(ET.parse(report).iter("testcase")) if report.exists() else []
    seconds, late, counts = Counter(), Counter(), Counter()
    for case in cases:
        name = re.sub(r"\.Test\w+$", "", case.get("classname", "")).replace(".", "/") + ".py"
        kind = next((c.tag for c in case if c.tag in ("failure", "error", "skipped")), "passed")
        if any(c.get("message") == "out of time" for c in case.iter("skipped")): kind, late[name] = "late", late[name] + 1
        counts[kind] += 1
        seconds[name] += float(case.get("time", 0))
    good = done.returncode in (0, 5)
    if not good: print(done.stdout[-6000:], done.stderr[-2000:])
    return good, counts, seconds, late

# ------------------------------------------------------------------ links and widths

def broken_links(path):
    "Relative links of a notebook or a page that lead nowhere"
    prose = "\n".join(repo.sources(ROOT / path, "markdown")) if path.endswith(".ipynb") else (ROOT / path).read_text(encoding="utf-8")
    prose, at = re.sub(r"^(```|~~~).*?^\1|`[^`\n]*`|\$[^$]*\$", "", prose, flags=re.S | re.M), (ROOT / path).resolve().parent
    for link in re.findall(r"\]\((?!\w+:|#|<)([^)\s#]+)", prose):
        there = ROOT / "nbs" / link[1:] if link.startswith("/") else at / link
        if not there.exists() and not there.with_suffix(".ipynb").exists() and not list(there.parent.glob(f"*_{there.stem}.ipynb")): yield f"{path}: no {link}"

def wide_lines(path):
    "Lines of shown code of a notebook that are wider than a phone"
    for source in repo.sources(ROOT / path):
        if re.search(r"^#\|\s*(hide|echo: false|code-fold)", source, re.M): continue
        yield from (f"{path}: {line.strip()[:60]}" for line in source.splitlines() if len(line) > WIDTH and not line.startswith("#|"))

# ------------------------------------------------------------------ all of it

def step(what, start, *says): print(f"{what:<10}{time.time() - start:6.1f} s  {', '.join(filter(None, says))}", flush=True)

def several(some, noun, most=4): return f"{len(some)} {noun}: {', '.join(some[:most])}{' ...' if len(some) > most else ''}" if some else ""

def main():
    ap = repo.arguments(__doc__)
    ap.add_argument("--against", help="the commit to compare with; where this branch left the main one, if not given")
    ap.add_argument("--minutes", type=float, default=5, help="begin nothing that would end after this long")
    ap.add_argument("--jobs", type=int, default=2)
    args, begin = ap.parse_args(), time.time()
    against, bad = args.against or base(), []
    import fresh
    from nbdev.doclinks import nbdev_export
    at = time.time()
    before = changed(against)
    if not before: sys.exit(f"nothing differs from {against[:10]}")
    nbdev_export()
    changes = changed(against)
    step("export", at, several(sorted(set(changes) - set(before)), "files written") or "as it is")
    there = [c for c in changes if (ROOT / c).exists()]
    notebooks = [c for c in there if c.startswith("nbs/") and c.endswith(".ipynb")]
    words = [n for n in notebooks if not code_changed(n, against)]
    package = Package()
    first = changed_definitions(package, against)
    far = package.affected(first)
    print(f"changed:   {several(changes, 'files')}" + (f"; only words or outputs: {', '.join(words)}" if words else ""))
    if first: print(f"           {several([n for _, n in first], 'definitions')}; {len(far) - len(first)} others use them, in {len({m for m, _ in far})} modules")
    end = begin + 60 * args.minutes - 15

    at = time.time()
    pages = [c for c in there if c.endswith((".md", ".qmd", ".ipynb"))]
    broken, wide = [b for p in pages for b in broken_links(p)], [w for n in notebooks for w in wide_lines(n)]
    step("links", at, several(broken, "lead nowhere", 20) or f"of {len(pages)} pages lead somewhere")
    if wide: print(f"           for information, {len(wide)} shown lines are over {WIDTH} characters, such as {wide[0]}")
    if broken: bad.append("links")

    at, late, style = time.time(), [], ThreadPoolExecutor(1).submit(pytest, STYLE, 1, notebooks=notebooks)
    chosen = notebooks_for(package, far, notebooks)
    for path, ran, stale, seconds in fresh.results([ROOT / c for c in chosen], args.jobs, at + 0.45 * (end - at), [ROOT / n for n in notebooks]):
        name = path.relative_to(ROOT).as_posix()
        if ran is None: late.append(name); continue
        print(f"          {seconds:6.1f} s  {name}{'' if ran else ' DOES NOT RUN'}")
        for why in stale: print(f"                    shows another output {why}: python tools/nb.py {name}")
        compared = path.relative_to(ROOT / "nbs").parent.as_posix().replace(".", "") in fresh.PAGES
        if not ran or stale and compared: bad.append(name)
    step("notebooks", at, f"{len(chosen) - len(late)} run")

    good, counts, *_ = style.result()
    step("style", begin, f"beside them: {counts['passed']} tests of the repository, references and what prose says")
    if not good: bad.append("style")

    at = time.time()
    files, names = tests_for(package, far, changes)
    good, counts, seconds, out_of_time = pytest(files, args.jobs, words=names, changed=changes, deadline=end) if files else (True, Counter(), Counter(), Counter())
    for name, took in seconds.most_common(12): print(f"          {took:6.1f} s  {name}")
    step("tests", at, *(f"{n} {kind}" for kind, n in counts.items() if kind != "late") or ["none"])
    if not good: bad.append("tests")

    print("left to CI: the site (make docs), browser, every other test" + "".join(f"\n  {text}" for text in (
        several(late, "notebooks for want of time", 6), several([f"{n} ({k})" for n, k in out_of_time.items()], "files of tests, in part or whole, for want of time", 6)) if text))
    untested = bool(files) and not counts["passed"]
    good = "nothing fails, but no test had time to run: MINUTES=20 make check" if untested else "good"
    print(f"{time.time() - begin:.0f} s: " + (f"{', '.join(bad)} FAIL" if bad else good))
    return int(bool(bad))

if __name__ == "__main__": sys.exit(main())
