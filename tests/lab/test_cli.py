"""The command line as a shell sees it: output, one-line errors, exit codes, Ctrl-C, and life without the extra."""
import json
import os
import signal
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import ClassVar

import pytest

for extra in ("pytorch_lightning", "sklearn", "typer", "matplotlib"):
    if not __import__("importlib").util.find_spec(extra): pytest.skip("the experiments extra is not installed", allow_module_level=True)

import softsortlib
from softsortlib.lab import cli
from softsortlib.lab.sorting import SortConfig

SMALL = "run sort -p smoke -n 3 --batch 4 --threads 1"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    "Run a line in a folder of its own: exit code, standard output, standard error."
    monkeypatch.chdir(tmp_path)
    def of(line):
        with pytest.raises(SystemExit) as e: cli.main(line.split())
        out = capsys.readouterr()
        return e.value.code or 0, out.out, out.err
    return of


def shell(*args, prefix=""):
    code = prefix + "from softsortlib.lab.cli import main; main()"
    env = {k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"}          # as a user has it: an open file at Ctrl-C is no error
    return subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def test_version(run):
    assert run("--version") == (0, f"softsortlib {softsortlib.__version__}\n", "")


@pytest.mark.parametrize("line,words", [("--help", ["demo", "run", "table", "bench"]), ("run --help", ["sort"]), ("demo --help", ["--out", "order alone"]),
                                        ("run sort --help", ["--data", "--operator", "--preset", "resumes"]), ("table --help", ["--executor", "--retry"]), ("", ["demo", "table"])])
def test_help(run, line, words):
    code, out, err = run(line)
    assert all(w in out + err for w in words) and "Traceback" not in err


@pytest.mark.parametrize("line,code,message", [
    ("run sort --operator softsrot", 2, "did you mean 'softsort'"),
    ("run sort --data mnits", 2, "'digits', 'mnist', 'fashion'"),
    ("run srot", 2, "sort"),
    ("run sort --epoch ten", 2, "--epoch"),
    ("table srot", 2, "there is no table 'srot': there are "),
    ("table sort --preset fast", 2, "preset must be one of"),
    ("table sort --executor threads", 2, "executor must begin with one of inline, processes"),
    ("table sort --trainer device=2", 2, "no flag 'device'"),
    ("run sort --preset fast", 2, "paper, long, short, quick, demo, smoke"),
    ("run sort -n 1", 2, "n must be at least 2"),
    ("run sort -n five", 2, "'-n'"),
    ("run sort --lr -1", 2, "lr must be positive"),
    ("run sort -d digits --tau 0", 2, "tau must be positive"),
    ("run sort -d digits --convention diagonal", 2, "stacked"),
    ("run sort --steps 0", 2, "steps must be at least 1"),
    ("run sort --nonsense", 2, "--nonsense"),
    ("run sort --trainer devices", 2, "name=value"),
    ("run sort --trainer device=2", 2, "no flag 'device'"),
    ("run sort -d digits --trainer accelerator=abacus", 2, "abacus"),
    ("run sort --data mnist --folder empty --trainer max_epochs=1", 1, "train-images-idx3-ubyte"),
    ("run sort -d digits --threads -2", 2, "threads must be at least 1, got -2"),
    ("run sort -d digits --threads 0", 2, "threads must be at least 1"),
    ("run sort -d digits --compile nope", 2, "compile must be one of default"),
    ("table sort --threads -2", 2, "threads must be at least 1"),
    ("table sort --compile nope", 2, "compile must be one of default"),
    ("bench --device tpu", 2, "device must be 'cpu' or 'cuda', got 'tpu'"),
    ("bench --rounds 0", 2, "rounds must be at least 1, got 0"),
    ("demoo", 2, "demo"),
    ("demo --steps 0", 2, "steps must be at least 1"),
    ("demo --limit -1", 2, "limit must be a number of seconds, 0 or more, got -1"),
    ("table speed --preset smoke --compile default --folder here", 2, "table speed does not use --folder, --compile: leave it out; of such options it takes --threads"),
    ("table speed --preset smoke --trainer devices=2", 2, "does not use --trainer"),
    ("run speed --preset smoke --trainer devices=2", 2, "run speed does not use --trainer: leave it out; of such options it takes --threads"),
    ("run memory --preset smoke --threads 2", 2, "run memory does not use --threads: leave it out; of such options it takes none of its kind"),
    ("run knn_baseline --preset smoke --method pca --compile default", 2, "does not use --compile: leave it out; of such options it takes --folder, --threads"),
    ("table --retry --executor processes:2", 2, "the list of tables does not use --executor, --retry: leave it out; of such options it takes --preset, --out"),
    ("table --threads 2", 2, "the list of tables does not use --threads"),
])
def test_an_error_is_one_line_and_has_a_code(run, monkeypatch, tmp_path, line, code, message):
    def no_network(*args, **kwargs): raise OSError("no network")
    monkeypatch.setattr("softsortlib.lab.sources._download", no_network)
    found, out, err = run(line)
    assert (found, err.count("\n")) == (code, 1) and err.startswith("softsortlib: ") and message in err
    assert not list(tmp_path.rglob("config.json"))


def test_run_writes_reads_and_guards_its_folder(run):
    code, out, err = run(SMALL)
    [folder] = Path("runs").iterdir()
    assert code == 0 and "whole order right (EM)" in out and str(folder / "result.json") in out and folder.name.startswith("sort-smoke-n3-batch4-seed0-")

    record = json.loads((folder / "result.json").read_text())
    assert record["config"]["steps"] == 20 and record["config"]["preset"] == "smoke"
    assert f"sort, preset smoke: 20 steps; how long they take shows as they run; the results go to {folder}\n" in out or "20 steps, about " in out
    again = run(SMALL)                                                        # done: read again
    assert again[0] == code and again[1].splitlines()[1:] == out.splitlines()[1:] and "done before" in again[1]
    code, _, err = run(f"{SMALL} --seed 1 --out {folder}")
    assert code == 2 and "holds another run" in err


def broken(path, share):
    "The file with the first `share` of its bytes."
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:int(share * len(data))])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    "A folder in which a run has finished, and a copy of it: a checkpoint knows where it lies."
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        (folder / "here").mkdir()
        patch.chdir(folder / "here")
        with pytest.raises(SystemExit) as e: cli.main(SMALL.split())
    assert not e.value.code
    shutil.copytree(folder / "here", folder / "kept")
    return folder


@pytest.fixture
def finished(run, trained, monkeypatch):
    "That folder as it was, to be broken."
    shutil.rmtree(trained / "here")
    shutil.copytree(trained / "kept", trained / "here")
    monkeypatch.chdir(trained / "here")


@pytest.mark.parametrize("share", [0, 0.6])
@pytest.mark.parametrize("name,left", [("result.json", []), ("config.json", []), ("checkpoints/last.ckpt", ["result.json"]), ("checkpoints/best.ckpt", ["result.json"])])
def test_a_file_that_was_cut_off_is_named_with_a_way_out(run, finished, name, left, share):
    "Whichever it is, and what the message tells to do goes on."
    [folder] = Path("runs").iterdir()
    for file in left: (folder / file).unlink()
    broken(folder / name, share)
    code, _, err = run(SMALL)
    assert code == 2 and err.count("\n") == 1 and f"{folder / name} is empty or cut off: remove" in err
    if name == "result.json": (folder / name).unlink()
    else: shutil.rmtree(folder)
    assert run(SMALL)[0] == 0


def test_a_benchmark_looks_for_its_file_before_it_measures(run, monkeypatch):
    def measure(*args): raise AssertionError("measured")
    monkeypatch.setattr("softsortlib.lab.bench.run_case", measure)
    Path("file").write_text("")
    for out in ("file/bench.json", "."):
        code, _, err = run(f"bench --out {out}")
        assert code == 1 and err.count("\n") == 1 and f"cannot write {out} (" in err
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = run("bench --device cuda")
    assert code == 2 and "device cuda is not here: leave --device out" in err


@pytest.mark.parametrize("what,error,name", [("torch.save", RuntimeError("[enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file data/3"), "best.ckpt"), ("json.dump", OSError(28, "No space left on device"), "config.json")])
def test_a_full_disk_is_one_line_that_names_the_file(run, monkeypatch, what, error, name):
    def full(*args, **kwargs): raise error
    monkeypatch.setattr(what, full)
    code, _, err = run(SMALL)
    lines = [line for line in err.splitlines() if line.startswith("softsortlib:")]
    assert code == 1 and len(lines) == 1 and "Traceback" not in err and f"{name} (" in lines[0] and "free some space there" in lines[0]
    assert not list(Path("runs").rglob(".*.part"))


# --- the options of a task are the fields of its configuration ---

@dataclass(frozen=True)
class OptionsConfig:
    "Every kind of field."
    n: int = 1  # a number
    long_name: "float | None" = None  # with a dash, "and # a sign"
    words: str = "a"  # a word
    on: bool = False  # yes or no
    sizes: tuple = (1, 2)  # as in Python
    seed: int = 0
    preset: str = "custom"  # the preset it came from

    task: ClassVar[str] = "options"
    PRESETS: ClassVar[dict] = {"slow": dict(n=5), "quick": dict(n=4)}

    @classmethod
    def from_preset(cls, name, **changes): return cls(**{**cls.PRESETS[name], "preset": name, **changes})

    def uses(self): return ("folder", "threads", "trainer")

    def run(self, out, progress=False, **how): return dict(task="options", config=asdict(self), test={"loss": 0.25, "how": repr(how)}, chance={"loss": 2.0}, seconds=1.0, out=str(out))


@pytest.fixture
def options(run, monkeypatch):
    seen = []
    real = OptionsConfig.run
    monkeypatch.setattr(OptionsConfig, "run", lambda self, out, **how: (seen.append((self, how)), real(self, out, **how))[1])
    monkeypatch.setattr(cli, "load_experiments", lambda: {"options": OptionsConfig})
    return lambda line: (seen.clear(), run(f"run options {line}"), seen and seen[0])[1:]


def test_comments_become_help(options):
    assert cli.field_comments(OptionsConfig) == {"n": "a number", "long_name": 'with a dash, "and # a sign"', "words": "a word", "on": "yes or no", "sizes": "as in Python", "seed": "", "preset": "the preset it came from"}
    (code, out, err), _ = options("--help")
    assert code == 0 and all(w in out for w in ("--long-name", "a number", "-n", "--no-on", "as in Python", "Every kind of field", "one of slow, quick", "default: quick"))


def test_a_class_without_a_source_has_options_without_comments():
    "One made by exec, or in a session that is over: the command line must not fail for the tasks of others."
    made = {}
    exec("from dataclasses import dataclass\n@dataclass\nclass Made:\n    n: int = 3  # a number\n", made)
    assert cli.field_comments(made["Made"]) == {"n": ""}


def test_inherited_comments_are_found():
    from softsortlib.lab.sorting import SortConfig
    comments = cli.field_comments(SortConfig)
    assert list(comments) == [f.name for f in fields(SortConfig)] and all(comments.values())


def test_options_become_fields(options):
    assert options("")[1] == (OptionsConfig(n=4, preset="quick"), {"progress": True})
    config, how = options("-n 9 --long-name 0.5 --words b --on --sizes (3,) -s 2 -p slow --threads 3 --trainer devices=2 --folder here")[1]
    assert config == OptionsConfig(n=9, long_name=0.5, words="b", on=True, sizes=(3,), seed=2, preset="slow")
    assert how == {"progress": True, "threads": 3, "devices": 2, "folder": Path("here")}
    (code, _, err), _ = options("--sizes (3")
    assert code == 2 and "--sizes takes a value as Python writes it" in err


def test_figures_of_any_task_are_shown(options):
    out = options("")[0][1]
    assert "loss" in out and "0.25" in out and not any(line.startswith("how") for line in out.splitlines()) and "1 seconds" in out


# --- tables ---

@pytest.fixture
def toys(monkeypatch):
    from toy_runs import ToyConfig
    from softsortlib.lab import grid
    def toys(preset):
        "Toys in a table"
        if preset != "quick": raise ValueError("preset must be quick")
        return [ToyConfig(kind, preset="quick", seed=k) for k, kind in enumerate(("quick", "fail", "quick"))]
    cli.load_experiments()
    monkeypatch.setitem(grid.GRIDS, "toys", toys)


def test_a_table_is_listed_run_and_retried(run, toys):
    code, out, _ = run("table")
    assert code == 0 and "Toys in a table" in out and out.split("toys")[1].split()[:3] == ["3", "0", "0"]
    code, out, _ = run("table toys --record kept")
    assert code == 1 and "FAILED ArithmeticError: not today" in out and "2 of 3 runs are done" in out and "1 failed" in out and "0.100±0.141 (2 runs)" in out
    assert len(list(Path("kept/toy").iterdir())) == 2
    assert run("table")[1].split("toys")[1].split()[:3] == ["3", "2", "1"]
    Path("runs/cured").touch()
    assert run("table toys")[0] == 1
    code, out, _ = run("table toys --retry --record kept")
    assert code == 0 and "3 of 3 runs are done" in out and len(list(Path("kept/toy").iterdir())) == 3
    assert "no such preset" in run("table --preset paper")[1].split("toys")[1].splitlines()[0]


def test_the_runs_of_every_table_have_names_of_their_own():
    from softsortlib.lab.grid import run_name
    for name, f in cli._grids().items():
        for preset in ("quick", "paper", "smoke"):
            try: configs = f(preset)
            except ValueError as e: assert "preset" in str(e), (name, preset)
            else: assert configs and len({run_name(c) for c in configs}) == len(configs), (name, preset)


def test_ctrl_c_in_a_table_says_how_to_go_on(run, toys, monkeypatch):
    from toy_runs import ToyConfig
    def interrupt(self, out, **options): raise KeyboardInterrupt
    monkeypatch.setattr(ToyConfig, "run", interrupt)
    code, _, err = run("table toys")
    assert code == 130 and err == "softsortlib: interrupted with 3 of 3 runs left: the same command goes on\n"


def test_demo(run, tmp_path):
    code, out, err = run("demo --steps 50")
    assert code == 0 and all(w in out for w in ("before", "after", "chance", "demo/learning_curve.png"))
    assert "50/50" in err
    assert all((tmp_path / f"demo/{name}.png").stat().st_size > 20_000 for name in ("learning_curve", "sharpening", "sorted_sets"))


def test_demo_stops_in_time_and_goes_on(run, monkeypatch):
    "As if it had never stopped: the same curve and the same test."
    monkeypatch.setitem(SortConfig.PRESETS, "demo", {**SortConfig.PRESETS["demo"], "val_sets": 50, "test_sets": 200})       # of four runs; test_demo has all
    code, out, err = run("demo --limit 0 --steps 100")
    assert code == 0 and "after 50 of 100 steps" in out and "softsortlib demo --out demo --steps 100 goes on" in out
    assert "holds another run" in run("demo --steps 150")[2] and Path("demo/run/result.json").exists()
    code, out, err = run("demo --steps 100")
    assert code == 0 and "after 100 of 100 steps" in out and "goes on" not in out
    assert "holds a finished run" in run("demo --limit 0 --steps 100")[1]
    assert run("demo --steps 100 --out whole")[0] == 0
    parts, whole = (json.loads(Path(f"{at}/run/result.json").read_text()) for at in ("demo", "whole"))
    for key in ("test", "before", "steps", "best_step"): assert parts[key] == whole[key], key
    assert [p["loss"] for p in parts["curve"]] == [p["loss"] for p in whole["curve"]] and len(whole["curve"]) == 2


@pytest.mark.parametrize("stage", ["softsortlib.lab.sorting.SortConfig.run", "softsortlib.lab.cli.write_pictures"])
def test_ctrl_c_in_the_demo_says_how_to_go_on(run, monkeypatch, stage):
    def interrupt(*args, **how): raise KeyboardInterrupt
    monkeypatch.setattr(stage, interrupt)
    code, _, err = run("demo --steps 50 --seed 1")
    said = err.splitlines()[-1]
    assert code == 130 and said.startswith("softsortlib: interrupted") and "softsortlib demo --out demo --seed 1 --steps 50" in said


@pytest.mark.parametrize("line,where", [("bench --only ranks/100/1 -m 9", "softsortlib.lab.bench.run_case"), ("warm softsort", "softsortlib.warm")])
def test_ctrl_c_anywhere_names_the_command_that_goes_on(run, monkeypatch, line, where):
    def interrupt(*args, **how): raise KeyboardInterrupt
    monkeypatch.setattr(where, interrupt)
    assert run(line)[::2] == (130, f"softsortlib: interrupted; what is done is kept: softsortlib {line} goes on\n")


def test_the_first_words_come_before_the_package_is_loaded():
    "Whoever stops it there is told how to go on, too."
    code = """if True:
        import sys
        class Stop:
            def find_spec(name, *rest):
                if name.partition(".")[0] in ("softsortlib", "torch"): raise KeyboardInterrupt
        sys.meta_path.insert(0, Stop)
        import softsortlib_command
        softsortlib_command.main()"""
    root = Path(cli.__file__).parents[2]
    done = lambda *words: subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=root)
    for command in ("demo", "run", "table", "bench", "warm"):
        said = done(command, "x").stderr
        assert said.startswith(f"softsortlib {command} ") and "Loading PyTorch comes first" in said.splitlines()[0]
    ended = done("demo")
    assert ended.returncode == 130 and ended.stderr.splitlines()[-1] == "softsortlib: interrupted before it began: the same command begins anew"
    for words in ([], ["--help"], ["run", "sort", "--help"], ["--version"]): assert "Loading" not in done(*words).stderr
    import softsortlib_command
    assert {*softsortlib_command.PLANS} == {*cli.COMMANDS} | {*cli.GROUPS}


EXAMPLES = ["demo", "table", "bench", "warm", "run", *(f"run {task}" for task in ("sort", "svhn", "median", "knn", "knn_baseline", "speed", "memory", "large_sets", "topk"))]


def test_every_command_has_its_example():
    assert {c for c in EXAMPLES if c != "run"} == {*cli.COMMANDS} | {*cli._task_commands()}


@pytest.mark.parametrize("command", EXAMPLES)
def test_the_example_of_a_help_runs(run, command):
    code, out, err = run(f"{command} --help")
    text = " ".join((out + err).replace("│", " ").split())
    assert code == 0 and text.count("Example: softsortlib ") == 1
    line = text.partition("Example: softsortlib ")[2]
    code, out, err = run(line + (" --methods softsort1-lazy" if command in ("run speed", "run memory") else ""))
    assert line.startswith(command) and code == 0, (line, out[-600:], err[-600:])
    files = [word.strip(":;,") for word in (out + err).split() if Path(word.strip(":;,")).exists()]
    assert files or command == "warm", "it ends with where its results lie"


def test_ctrl_c_leaves_a_checkpoint_and_says_so(tmp_path):
    command = ["demo", "--out", str(tmp_path / "out"), "--steps", "400"]
    process = shell(*command)
    last, deadline = tmp_path / "out/run/checkpoints/last.ckpt", time.monotonic() + 300
    while not last.exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in err, err
    assert "a checkpoint is in" in err and f"softsortlib demo --out {tmp_path / 'out'} --steps 400 goes on from it" in err
    assert last.exists() and not (tmp_path / "out/run/result.json").exists()


@pytest.mark.parametrize("missing", ["typer", "pytorch_lightning"])
def test_without_the_extra_one_line_says_what_to_install(missing):
    process = shell("demo", prefix=f"import sys; sys.modules[{missing!r}] = None\n")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1 and "pip install 'softsortlib[experiments]'" in err
    assert len([line for line in err.splitlines() if line]) == 1


def test_importing_the_module_imports_no_extra():
    code = "import softsortlib.lab.cli, sys; print([m for m in ('typer', 'rich', 'pytorch_lightning', 'matplotlib', 'sklearn') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_a_command_is_easily_added(run, monkeypatch):
    monkeypatch.setattr(cli, "COMMANDS", dict(cli.COMMANDS))
    @cli.command("tall")
    def tall(rows: cli.Annotated[int, "how many", "-r"] = 2):
        "Print a tall table."
        print("row\n" * rows)
    assert run("tall -r 3")[1].count("row") == 3
    assert "Print a tall table" in run("--help")[1]


def test_bugs_show_their_traceback(run, monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "demo", lambda: 1 / 0)
    cli.COMMANDS["demo"].__doc__ = "Fail."
    with pytest.raises(ZeroDivisionError): cli.main(["demo"])
