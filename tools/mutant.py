"""The processes in which tools/mutate.py tries a mistake: forks that import a wrong text, or get the wrong code, and run tests.

A fork of the process that gives out the work imports the package and collects the tests, and a fork of that one tries a mistake in seconds: its
functions get other code. What a definition gave while it was imported, a constant say, stays right there: what no test notices in such a fork
is tried once more in one that imports the wrong text. Compiled code that a mistake reaches is compiled anew and not kept.
"""
import gc, importlib, inspect, json, os, re, signal, sys, threading, time, types
from importlib.machinery import SourceFileLoader
from pathlib import Path

COPY = Path(__file__).resolve().parent                # of the checkout; tools/mutate.py says where
COMPILER = "softsortlib.engine.compile"
TASK = {"texts": {}, "stale": []}                    # of this process: other texts of modules, and definitions whose compiled code is not kept

def install():
    "Let modules be imported with the texts of the task."
    usual = SourceFileLoader.get_code
    def get_code(self, name):
        text = TASK["texts"].get(name) or name == COMPILER and Path(self.path).read_text(encoding="utf-8")
        adapting = "\nimport mutant\nmutant.adapt(globals())\n" if name == COMPILER else ""
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
                if time.time() - begin > 20 * task["limit"]: end(pid)
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
