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
import argparse, ast, gc, hashlib, importlib, inspect, json, os, re, shutil, signal, sys, tempfile, threading, time, types
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path

import mutations

ROOT = Path(__file__).resolve().parent.parent
COMPILER = "softsortlib.engine.compile"
TASK = {"texts": {}, "stale": []}                    # of this process: other texts of modules, and definitions whose compiled code is not kept

# ------------------------------------------------------------------ in the processes that run the tests

def install():
    "Let modules be imported with the texts of the task."
    usual = SourceFileLoader.get_code
    def get_code(self, name):
        text = TASK["texts"].get(name) or name == COMPILER and Path(self.path).read_text(encoding="utf-8")
        adapting = "\nimport mutate\nmutate.adapt(globals())\n" if name == COMPILER else ""
        return compile(text + adapting, self.path, "exec", dont_inherit=True) if text else usual(self, name)
    SourceFileLoader.get_code = get_code

def adapt(compiler):
    "Compile anew what the mistake reaches, and keep none of it; and let the compiler be neither watched nor timed."
    init, undisturbed = compiler["KernelCache"].__init__, compiler["undisturbed"]
    def cache(self, f):
        init(self, f)
        if [f.__module__, f.__qualname__.split(".")[0]] in TASK["stale"]: self.kept = None
    def unseen(compile):
        def alone(*args):
            watch, begin = sys.getprofile(), time.process_time()
            sys.setprofile(None)
            try: return undisturbed(compile)(*args)
            finally:
                sys.setprofile(watch)
                if watch: Watch.begin += time.process_time() - begin
        return alone
    compiler["KernelCache"].__init__, compiler["undisturbed"] = cache, unseen

class Run:
    "Of pytest: the wanted tests in their order, and which one failed."
    def __init__(self, wanted=()): self.place, self.failed, self.tests = {name: k for k, name in enumerate(wanted)}, [], {}

    def pytest_collection_modifyitems(self, items):
        if self.place: items[:] = sorted((i for i in items if i.nodeid in self.place), key=lambda i: self.place[i.nodeid])

    def pytest_runtest_logreport(self, report): self.failed += [report.nodeid] * report.failed

class Warm(Run):
    "The same in a process that has imported the package and collected the tests: a fork of it for each task, in which the functions get the wrong code."
    def __init__(self, tasks, jobs, tell): self.tasks, self.jobs, self.tell, self.mine = tasks, jobs, tell, None

    def pytest_collection_modifyitems(self, items): pass

    def pytest_runtestloop(self, session):
        try:
            for task, found, seconds in results(self.tasks, self.jobs, fork=True): self.tell(task, found, seconds)
            return True
        except Forked as here:                                                                    # in the fork, which lets pytest go on
            self.mine, (task, _) = here.args, here.args
            super().__init__(task["tests"])
            super().pytest_collection_modifyitems(session.items)
            importlib.import_module("torch").set_num_threads(task["threads"])
            TASK["stale"] = task["stale"]
            for module, text in task["texts"].items(): replace(COPY / (module.replace(".", "/") + ".py"), text)

class Forked(Exception): "Raised in a new process, with its task and the file for what it finds."

def replace(path, text):
    "Give the functions of a module, which is imported, the code of another text; lambdas that share a line keep theirs."
    codes, todo = {}, [compile(text, str(path), "exec", dont_inherit=True)]
    for code in todo:
        todo += (inside := [c for c in code.co_consts if isinstance(c, types.CodeType)])
        for c in inside: codes.setdefault((c.co_firstlineno, c.co_name), []).append(c)
    for f in gc.get_objects():
        if type(f) is types.FunctionType and f.__code__.co_filename == str(path):
            new = codes.get((f.__code__.co_firstlineno, f.__code__.co_name), [])
            if len(new) == 1 and new[0].co_freevars == f.__code__.co_freevars: f.__code__ = new[0]

class Watch(Run):
    "The same, and what each test calls and how long it takes."
    begin = 0.0

    def pytest_runtest_setup(self, item):
        package, self.called, known = f"{COPY}/softsortlib/", set(), set()
        def call(code):
            if code.co_filename.startswith(package): self.called.add((f"softsortlib/{code.co_filename[len(package):]}", code.co_firstlineno))
        def watch(frame, event, _):
            code = frame.f_code
            if event == "call" and code.co_name == "__call__" and code.co_filename.endswith("engine/compile.py"): call(frame.f_locals["self"].f.__code__)
            if event == "call" and code not in known: known.add(code) or call(code)
        Watch.begin = sum(os.times()[:4])
        threading.setprofile(watch)
        sys.setprofile(watch)

    def pytest_runtest_teardown(self, item):
        sys.setprofile(None)
        threading.setprofile(None)
        apart = re.search("subprocess|processes", inspect.getsource(item.function)) is not None       # starts processes, which nobody watches
        self.tests[item.nodeid] = dict(seconds=sum(os.times()[:4]) - Watch.begin, called=sorted(self.called), apart=apart)

def chapter(module):
    "The first cell of a module's chapter that fails, of those that are not exported; empty if none does."
    loaded = importlib.import_module(module)
    names, source = {**vars(loaded), "display": print}, Path(loaded.__file__).read_text(encoding="utf-8")
    page = Path(loaded.__file__).parent / (re.search(r"File to edit: (\S+\.ipynb)", source) or [""] * 2)[1]
    for cell in json.loads(page.read_text(encoding="utf-8"))["cells"] if page.is_file() else ():
        text = "".join(cell["source"])
        if cell["cell_type"] != "code" or re.search(r"^#\|\s*(export|default_exp|eval: false)|^[%!]", text, re.M): continue
        try: exec(compile(text, str(page), "exec"), names)
        except Exception as e: return f"{page.name}: {text.strip().splitlines()[0][:60]} ({type(e).__name__})"
    return ""

OPTIONS = ["-q", "--tb=line", "--capture=sys", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider", "-p", "no:xdist"]

def enter(task, out):
    "Make this fork a process of its own, with a limit to its time and the texts of its task."
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource = importlib.import_module("resource")
    resource.setrlimit(resource.RLIMIT_CPU, (task["limit"], task["limit"] + 5))
    out.with_suffix(".task").write_text(json.dumps({name: task[name] for name in TASK}))
    os.environ["MUTATE_TASK"] = str(out.with_suffix(".task"))

def prepare():
    "Let this process run tests of the copy, and say nothing."
    os.chdir(COPY)
    sys.path.insert(0, str(COPY))
    sys.modules["mutate"] = sys.modules[__name__]
    for stream in (1, 2): os.dup2(os.open(COPY / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
    install()

def work(task, out):
    "Run the tests of a task, and then its chapter, and write what was found: in a process of its own, which ends here."
    try:
        enter(task, out)
        prepare()
        TASK.update(texts=task["texts"], stale=task["stale"])
        run, code = Run(task["tests"]) if task["tests"] else Watch(), 0
        if task["files"]: code = importlib.import_module("pytest").main([*OPTIONS, *["-x"] * bool(task["tests"]), *task["files"]], [run])
        by = run.failed[:1] or ["import"] * (code not in (0, 5)) or [chapter(task["chapter"]) if task["chapter"] else ""]
        out.write_text(json.dumps({"by": by[0], "failed": run.failed, "tests": run.tests}))
    except BaseException as e: out.write_text(json.dumps({"by": f"import ({type(e).__name__}: {e})", "failed": [], "tests": {}}))
    finally: os._exit(0)

def warm(tasks, jobs, tell):
    "Collect the tests of some tasks and run each task in a fork: in a process of its own, which ends here."
    try:
        prepare()
        torch, files = importlib.import_module("torch"), sorted({name for task in tasks for name in task["files"]})
        for task in tasks: task["threads"] = torch.get_num_threads()
        torch.set_num_threads(1)                                            # a process whose threads have begun cannot be forked
        run = Warm(tasks, jobs, tell)
        importlib.import_module("pytest").main([*OPTIONS, "-x", *files], [run])
        if run.mine: run.mine[1].write_text(json.dumps({"by": "".join(run.failed[:1]), "failed": run.failed, "tests": {}}))
    finally: os._exit(0)

# ------------------------------------------------------------------ in the process that gives out the work

def results(tasks, jobs, fork=False):
    "Run tasks, so many at a time, each in a fork of this process, which has imported what all need: (task, what was found, seconds)."
    running, tasks = {}, list(tasks)[::-1]
    try:
        while tasks or running:
            while tasks and len(running) < jobs:
                task, out = tasks.pop(), COPY / "tasks" / f"{len(tasks)}-{time.time():.6f}.json"
                pid = os.fork()
                if pid == 0 and fork:
                    running.clear()
                    enter(task, out)
                    raise Forked(task, out)
                if pid == 0: work(task, out)
                running[pid] = task, out, time.time()
            for pid, (task, out, begin) in list(running.items()):
                if time.time() - begin > 4 * task["limit"]: end(pid)
                if os.waitpid(pid, os.WNOHANG)[0] == 0: continue
                del running[pid]
                end(pid)                                                          # what its tests left running
                yield task, json.loads(out.read_text() or "null") if out.exists() else {"by": "time", "failed": [], "tests": {}}, time.time() - begin
                for left in out.parent.glob(f"{out.stem}.*"): left.unlink()
            time.sleep(0.05)
    finally:
        for pid in running: end(pid)

def end(group):
    try: os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError): pass

def copy(root):
    "The checkout as it is now, in a temporary folder, and what lets processes that tests start import wrong texts too."
    for name in ("softsortlib", "tests"):
        shutil.rmtree(COPY / name, ignore_errors=True)
        shutil.copytree(root / name, COPY / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for path in root.iterdir():
        if path.name[0] not in "._" and not (COPY / path.name).exists(): (COPY / path.name).symlink_to(path)
    for name in ("tasks", "known"): (COPY / name).mkdir(exist_ok=True)
    for name in ("mutate.py", "mutations.py"): shutil.copy(ROOT / "tools" / name, COPY / name)
    (COPY / "sitecustomize.py").write_text("import os\nif 'MUTATE_TASK' in os.environ:\n    import json, mutate\n    mutate.TASK.update(json.load(open(os.environ['MUTATE_TASK'])))\n    mutate.install()\n")

def baseline(part, jobs):
    "What each test of a part calls, without those that fail as they are; kept until a file of the part or of the test changes."
    known, tasks = {}, []
    own = b"".join(p.read_bytes() for p in mutations.modules(COPY, part))
    for path in sorted((COPY / "tests" / part).glob("test_*.py")):
        if path.stem.endswith("_triton"): continue
        kept = COPY / "known" / f"{part}-{path.stem}-{hashlib.sha256(own + path.read_bytes()).hexdigest()[:16]}.json"
        if kept.exists(): known.update(json.loads(kept.read_text()))
        else: tasks.append(dict(texts={}, stale=[], files=[f"tests/{part}/{path.name}"], tests=[], chapter="", limit=1800, kept=kept))
    for task, found, seconds in results(tasks, jobs):
        bad = found["failed"] or [found["by"]] * bool(found["by"])
        good = {name: t for name, t in found["tests"].items() if name not in bad}
        print(f"    {task['files'][0]}: {len(good)} tests in {seconds:.0f} s" + (f"; left out, as it fails: {', '.join(bad[:3])}{' ...' * (len(bad) > 3)}" if bad else ""), flush=True)
        task["kept"].write_text(json.dumps(good))
        known.update(good)
    return known

class Users:
    "Which definitions a mistake reaches."
    def __init__(self, package):
        self.users = package.users()
        for module, (own, *_) in package.modules.items():
            for name, text in own.items():
                for other in re.findall(r"^@overload\((\w+)", text, re.M): self.users.setdefault((module, name), set()).add(package.home(module, other))

    def reached(self, m):
        found = ring = [(m.module, m.top)]
        while ring:
            ring = sorted({d for c in ring for d in self.users.get(c, ())} - {*found})
            found = found + ring
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

def verdicts(some, done, args, users, part):
    "Try the mistakes of a part, write each verdict down, and say it: first in forks of one process, and what no test noticed there from the beginning."
    known, voice = baseline(part, args.jobs), os.fdopen(os.dup(1), "w")
    reached = {m.key: users.reached(m) for m in some}
    tasks = [task_of(m, tests_of(m, known, reached[m.key], args.patience), known, reached[m.key]) for m in some]

    def tell(task, found, seconds, last=False):
        m, by = task["of"], found["by"]
        if not by and not last: return
        done[m.key] = dict(key=m.key, path=m.path, line=m.number, before=m.before, after=m.after, noticed=by, tests=len(task["tests"]), seconds=round(seconds, 1))
        with args.out.open("a", encoding="utf-8") as f: f.write(json.dumps(done[m.key]) + "\n")
        print(f"{seconds:6.1f} s  {m.key}\n{'':10}{'noticed by ' + by if by else 'NOT NOTICED'}", file=voice, flush=True)

    pid = os.fork()
    if pid == 0: warm([task for task in tasks if task["tests"]], args.jobs, tell)
    try: os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGTERM)
        raise
    done.update(verdicts_in(args.out))
    for task, found, seconds in results([task for task in tasks if not done.get(task["of"].key, {}).get("noticed")], args.jobs):
        if ".ipynb: " in found["by"] and next(results([{**task, "texts": {}, "stale": [], "files": []}], 1))[1]["by"]: found["by"] = ""     # its chapter fails as it is
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
    COPY = Path(tempfile.gettempdir()) / f"softsortlib-mutations-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}"
    for folder in (COPY, args.out.parent): folder.mkdir(parents=True, exist_ok=True)
    copy(root)
    os.environ.update(PYTHONPATH=str(COPY), NUMBA_CACHE_DIR=str(COPY / "numba"), OMP_WAIT_POLICY="PASSIVE", MPLBACKEND="Agg")
    for module in ("numba", "pytest", "scipy.stats", "torch", "torch._dynamo", "check"): check = importlib.import_module(module)         # what every fork needs
    users, asked = Users(check.Package(COPY)), []
    for part in parts:
        some = mutations.choose(COPY, part, share[part], args.seed)
        todo = [m for m in some if m.key not in harmless and (m.key not in done or args.again and not done[m.key]["noticed"])]
        print(f"{part}: {len(some)} mistakes, {len(todo)} to try", flush=True)
        if todo: verdicts(todo, done, args, users, part)
        asked += some
    left = [m for m in asked if m.key not in harmless and not done[m.key]["noticed"]]
    print(f"{len(asked)} mistakes: {sum(m.key in harmless for m in asked)} change nothing, {len(left)} not noticed by any test")
    for m in left: print(f"{m.path}:{m.number} in {m.where}\n    {m.before}\n    {m.after}")
    return int(bool(left))

if __name__ == "__main__": sys.exit(main())
