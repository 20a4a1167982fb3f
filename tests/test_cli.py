"""The command line as a shell sees it: output, one-line errors, exit codes, Ctrl-C, and life without the extra."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

for extra in ("pytorch_lightning", "sklearn", "typer", "matplotlib"):
    if not __import__("importlib").util.find_spec(extra): pytest.skip("the experiments extra is not installed", allow_module_level=True)

import softsortlib
from softsortlib import cli

SMALL = "train sort -n 3 --steps 20 --epoch 10 --batch 4 --threads 1"


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
    code = prefix + "from softsortlib.cli import main; main()"
    env = {k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"}          # as a user has it: an open file at Ctrl-C is no error
    return subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def test_version(run):
    assert run("--version") == (0, f"softsortlib {softsortlib.__version__}\n", "")


@pytest.mark.parametrize("line,words", [("--help", ["demo", "train"]), ("train --help", ["sort"]), ("demo --help", ["--out", "order alone"]),
                                        ("train sort --help", ["--data", "--operator", "--preset", "resumes"]), ("", ["demo", "train"])])
def test_help(run, line, words):
    code, out, err = run(line)
    assert all(w in out + err for w in words) and "Traceback" not in err


@pytest.mark.parametrize("line,code,message", [
    ("train sort --operator softsrot", 2, "did you mean 'softsort'"),
    ("train sort --data mnits", 2, "digits, mnist, fashion"),
    ("train sort --preset fast", 2, "paper, quick, demo"),
    ("train sort -n 1", 2, "n must be at least 2"),
    ("train sort -n five", 2, "'-n'"),
    ("train sort --lr -1", 2, "lr must be positive"),
    ("train sort --tau 0", 2, "tau must be positive"),
    ("train sort --convention diagonal", 2, "stacked"),
    ("train sort --steps 0", 2, "steps must be at least 1"),
    ("train sort --nonsense", 2, "--nonsense"),
    ("train sort --trainer devices", 2, "name=value"),
    ("train sort --trainer device=2", 2, "no flag 'device'"),
    ("train sort --trainer accelerator=abacus", 2, "abacus"),
    ("train sort --data mnist --folder empty --trainer max_epochs=1", 1, "train-images-idx3-ubyte"),
    ("demoo", 2, "demo"),
    ("demo --steps 0", 2, "steps must be at least 1"),
])
def test_an_error_is_one_line_and_has_a_code(run, monkeypatch, tmp_path, line, code, message):
    def no_network(*args, **kwargs): raise OSError("no network")
    monkeypatch.setattr("softsortlib.data._download", no_network)
    found, out, err = run(line)
    assert (found, err.count("\n")) == (code, 1) and err.startswith("softsortlib: ") and message in err
    assert not list(tmp_path.rglob("config.json"))


def test_train_sort_writes_reads_and_guards_its_folder(run):
    code, out, err = run(SMALL)
    assert code == 0 and "whole order right (EM)" in out and "runs/sort-digits-softsort-n3-quick-seed0" in out

    record = json.loads(Path("runs/sort-digits-softsort-n3-quick-seed0/result.json").read_text())
    assert record["config"]["steps"] == 20 and record["config"]["preset"] == "quick"
    assert run(SMALL)[:2] == (code, out)                                      # done: read again
    code, _, err = run(SMALL + " --seed 1 --out runs/sort-digits-softsort-n3-quick-seed0")
    assert code == 2 and "holds another run" in err


def test_demo(run, tmp_path):
    code, out, err = run("demo --steps 50")
    assert code == 0 and all(w in out for w in ("before", "after", "chance", "demo/learning_curve.png"))
    assert "50/50" in err
    assert all((tmp_path / f"demo/{name}.png").stat().st_size > 20_000 for name in ("learning_curve", "sharpening", "sorted_sets"))


def test_demo_stops_in_time(run):
    code, out, err = run("demo --limit 0")
    assert code == 0 and "after 50 of 2500 steps" in out


def test_ctrl_c_leaves_a_checkpoint_and_says_so(tmp_path):
    command = ["demo", "--out", str(tmp_path / "out"), "--steps", "400"]
    process = shell(*command)
    last, deadline = tmp_path / "out/run/checkpoints/last.ckpt", time.monotonic() + 100
    while not last.exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err, err
    assert "a checkpoint is in" in err and f"softsortlib demo --out {tmp_path / 'out'} --steps 400 goes on from it" in err
    assert last.exists() and not (tmp_path / "out/run/result.json").exists()


@pytest.mark.parametrize("missing", ["typer", "pytorch_lightning"])
def test_without_the_extra_one_line_says_what_to_install(missing):
    process = shell("demo", prefix=f"import sys; sys.modules[{missing!r}] = None\n")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "pip install 'softsortlib[experiments]'" in err
    assert len([line for line in err.splitlines() if line]) == 1


def test_importing_the_module_imports_no_extra():
    code = "import softsortlib.cli, sys; print([m for m in ('typer', 'rich', 'pytorch_lightning', 'matplotlib', 'sklearn') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_a_command_is_easily_added(run, monkeypatch):
    monkeypatch.setattr(cli, "COMMANDS", dict(cli.COMMANDS))
    @cli.command("table tall")
    def tall(rows: cli.Annotated[int, "how many", "-r"] = 2):
        "Print a tall table."
        print("row\n" * rows)
    assert run("table tall -r 3")[1].count("row") == 3
    assert "Print a tall table" in run("table --help")[1]


def test_bugs_show_their_traceback(run, monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "demo", lambda: 1 / 0)
    cli.COMMANDS["demo"].__doc__ = "Fail."
    with pytest.raises(ZeroDivisionError): cli.main(["demo"])
