"""Do the tests notice a wrong definition? Small mistakes (tools/mutations.py), one at a time, each against the tests of its part.

    python tools/mutate.py --parts selection --count 3     three mistakes in one part: a few minutes
    python tools/mutate.py --jobs 2                        two hundred over all parts: within an hour on two idle cores
    python tools/mutate.py --again                         those that no test noticed once more, after tests were added

The tests of a part run once as they are, to see which functions each calls and how long it takes. A mistake meets the tests that call what it
changes, the quickest first, until one fails, and then the examples of its chapter. The checkout is not written to: a copy lies in a temporary
folder, and a process gets the wrong text when it imports the module. Every verdict is a line of the file --out, and what stands there is not
run again: stop with Ctrl-C, go on with the same command. A mistake that no test notices needs a test, or a sentence in
tests/equivalent_mutations.json that says why it changes nothing.
"""
import argparse, ast, hashlib, importlib, json, os, re, shutil, signal, sys, tempfile
from functools import lru_cache
from pathlib import Path

import mutant, mutations

ROOT = Path(__file__).resolve().parent.parent
def copy(root):
    "The checkout as it is now, in a temporary folder, and what lets processes that tests start import wrong texts too."
    for name in ("softsortlib", "tests"):
        shutil.rmtree(COPY / name, ignore_errors=True)
        shutil.copytree(root / name, COPY / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for path in root.iterdir():
        if path.name[0] not in "._" and not (COPY / path.name).exists(): (COPY / path.name).symlink_to(path)
    for name in ("tasks", "known"): (COPY / name).mkdir(exist_ok=True)
    shutil.copy(ROOT / "tools" / "mutant.py", COPY / "mutant.py")
    (COPY / "sitecustomize.py").write_text("import os\nif 'MUTATE_TASK' in os.environ:\n    import json, mutant\n    mutant.TASK.update(json.load(open(os.environ['MUTATE_TASK'])))\n    mutant.install()\n")

def baseline(part, jobs):
    "What each test of a part calls, without those that fail as they are; kept until a file of the part or of the test changes."
    known, tasks = {}, []
    own = b"".join(p.read_bytes() for p in mutations.modules(COPY, part))
    for path in sorted((COPY / "tests" / part).glob("test_*.py")):
        if path.stem.endswith("_triton"): continue
        kept = COPY / "known" / f"{part}-{path.stem}-{hashlib.sha256(own + path.read_bytes()).hexdigest()[:16]}.json"
        if kept.exists(): known.update(json.loads(kept.read_text()))
        else: tasks.append(dict(texts={}, stale=[], files=[f"tests/{part}/{path.name}"], tests=[], chapter="", limit=1800, kept=kept))
    for task, found, seconds in mutant.results(tasks, jobs):
        bad = found["failed"] or [found["by"]] * bool(found["by"])
        good = {name: t for name, t in found["tests"].items() if name not in bad}
        print(f"    {task['files'][0]}: {len(good)} tests in {seconds:.0f} s" + (f"; left out, as it fails: {', '.join(bad[:3])}{' ...' * (len(bad) > 3)}" if bad else ""), flush=True)
        task["kept"].write_text(json.dumps(good))
        known.update(good)
    return known

def package():
    "The definitions of the copy, and who refers to whom: also what the compiler takes in the place of a function."
    found = check.Package(COPY)
    for module, (own, *_) in found.modules.items():
        for name, text in own.items():
            for other in re.findall(r"^@overload\((\w+)", text, re.M): found.users().setdefault((module, name), set()).add(found.home(module, other))
    return found

@lru_cache(None)
def functions(module):
    "{top-level name: where the functions inside begin} of a module."
    path, of = COPY / (module.replace(".", "/") + ".py"), {}
    for top in ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else ():
        inside = {mutations.begin(f) for f in ast.walk(top) if isinstance(f, ast.FunctionDef)}
        for name in check.targets(top) if inside else (): of[name] = of.get(name, set()) | inside
    return of

def tests_of(m, known, reached, patience):
    "The tests that call what a mistake reaches: first those that are quick and call little, as many as `patience` seconds allow."
    places = {(m.path, m.start)} if not m.kernel else set()                     # a kernel is called by others
    calls = {name: {tuple(c) for c in t["called"]} for name, t in known.items()}
    if not any(ran & places for ran in calls.values()):
        places = {(module.replace(".", "/") + ".py", line) for module, name in reached for line in functions(module).get(name, ())}
    wanted = sorted((n for n in known if calls[n] & places), key=lambda n: known[n]["seconds"] * len(calls[n]))
    wanted += sorted((n for n in known if known[n]["apart"] and not calls[n] & places), key=lambda n: known[n]["seconds"])
    return [n for n in wanted if (patience := patience - known[n]["seconds"]) > 0 or n == wanted[0]]

def task_of(m, tests, known, reached):
    "The tests, and then the chapter, with the wrong text."
    lines = (COPY / m.path).read_text(encoding="utf-8").splitlines()
    lines[m.number - 1] = m.text
    return dict(of=m, texts={m.module: "\n".join(lines) + "\n"}, stale=[list(d) for d in reached], tests=tests, files=sorted({name.split("::")[0] for name in tests}),
                chapter=m.module, limit=int(90 + 3 * sum(known[name]["seconds"] for name in tests)))

def verdicts(some, done, args, package, part):
    "Try the mistakes of a part, write each verdict down, and say it: first in forks of one process, and what no test noticed there from the beginning."
    known, voice = baseline(part, args.jobs), os.fdopen(os.dup(1), "w")
    reached = {m.key: list(package.affected([(m.module, m.top)])) for m in some}
    tasks = [task_of(m, tests_of(m, known, reached[m.key], args.patience), known, reached[m.key]) for m in some]

    def tell(task, found, seconds, last=False):
        m, by = task["of"], found["by"]
        if not by and not last: return
        done[m.key] = dict(key=m.key, path=m.path, line=m.number, before=m.before, after=m.after, noticed=by, tests=len(task["tests"]), seconds=round(seconds, 1))
        with args.out.open("a", encoding="utf-8") as f: f.write(json.dumps(done[m.key]) + "\n")
        print(f"{seconds:6.1f} s  {m.key}\n{'':10}{'noticed by ' + by if by else 'NOT NOTICED'}", file=voice, flush=True)

    pid = os.fork()
    if pid == 0: mutant.warm([task for task in tasks if task["tests"]], args.jobs, tell)
    try: os.waitpid(pid, 0)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)               # it ends its forks
        os.waitpid(pid, 0)
        raise
    done.update(verdicts_in(args.out))
    for task, found, seconds in mutant.results([task for task in tasks if not done.get(task["of"].key, {}).get("noticed")], args.jobs):
        if ".ipynb: " in found["by"] and next(mutant.results([{**task, "texts": {}, "stale": [], "files": []}], 1))[1]["by"]: found["by"] = ""     # its chapter fails as it is
        tell(task, found, seconds, last=True)

def verdicts_in(path):
    "{key: the last verdict} of a file."
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else ()
    return {one["key"]: one for one in map(json.loads, lines)}

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--parts", nargs="+", metavar="PART", help="parts of the package, one after another (all)")
    ap.add_argument("--count", type=int, default=200, help="how many mistakes, spread over the parts (200)")
    ap.add_argument("--seed", type=int, default=0, help="which ones (0)")
    ap.add_argument("--jobs", type=int, default=1, help="processes (1)")
    ap.add_argument("--patience", type=float, default=40, help="seconds of tests that one mistake is worth (40)")
    ap.add_argument("--again", action="store_true", help="run those once more that no test noticed")
    ap.add_argument("--out", type=Path, help="the verdicts, a line each (.cache/mutations.jsonl)")
    ap.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    args = ap.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)              # whoever ends it ends its processes
    try: return report(args)
    except KeyboardInterrupt: sys.exit("stopped: the same command goes on from here")

def report(args):
    "Say what is to be done, do it, and list what no test noticed."
    global COPY, check
    root, args.out = args.root.resolve(), args.out or args.root / ".cache" / "mutations.jsonl"
    all_parts = sorted(p.name for p in (root / "softsortlib").iterdir() if (root / "tests" / p.name).is_dir() and p.name != "lab")
    parts = args.parts or all_parts
    if unknown := {*parts} - {*all_parts}: sys.exit(f"no such part: {', '.join(unknown)}. There are {', '.join(all_parts)}")
    done, kept = verdicts_in(args.out), root / "tests" / "equivalent_mutations.json"
    harmless = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    share = {part: args.count * (k + 1) // len(parts) - args.count * k // len(parts) for k, part in enumerate(parts)}
    took = [one["seconds"] for one in done.values()] or [10]
    minutes = (args.count * sum(took) / len(took) + 60 * len(parts)) / 60 / args.jobs
    print(f"{args.count} mistakes in {', '.join(parts)}: {minutes:.0f} minutes where none has a verdict yet; verdicts in {args.out}", flush=True)
    COPY = mutant.COPY = Path(tempfile.gettempdir()) / f"softsortlib-mutations-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}"
    for folder in (COPY, args.out.parent): folder.mkdir(parents=True, exist_ok=True)
    copy(root)
    os.environ.update(PYTHONPATH=str(COPY), NUMBA_CACHE_DIR=str(COPY / "numba"), OMP_WAIT_POLICY="PASSIVE", MPLBACKEND="Agg")
    for module in ("numba", "pytest", "scipy.stats", "torch", "torch._dynamo", "check"): check = importlib.import_module(module)         # what every fork needs
    definitions, asked = package(), []
    for part in parts:
        some = mutations.choose(COPY, part, share[part], args.seed)
        todo = [m for m in some if m.key not in harmless and (m.key not in done or args.again and not done[m.key]["noticed"])]
        print(f"{part}: {len(some)} mistakes, {len(todo)} to try", flush=True)
        if todo: verdicts(todo, done, args, definitions, part)
        asked += some
    left = [m for m in asked if m.key not in harmless and not done[m.key]["noticed"]]
    print(f"{len(asked)} mistakes: {sum(m.key in harmless for m in asked)} change nothing, {len(left)} not noticed by any test")
    for m in left: print(f"{m.path}:{m.number} in {m.where}\n    {m.before}\n    {m.after}")
    return int(bool(left))

if __name__ == "__main__": sys.exit(main())
