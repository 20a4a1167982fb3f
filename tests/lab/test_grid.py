"""Grids of runs where things die: workers, pools, clusters, drivers. Nothing is lost, nothing is done twice."""
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from toy_runs import ToyConfig, wait_for

from softsortlib.lab import grid
from softsortlib.lab.grid import Attempt, Outcome, collect, make_executor, progress, record_run, run_grid, run_name, summary
from softsortlib.lab.records import small_record

HERE = Path(__file__).parent
QUICK = [ToyConfig(seed=k) for k in range(3)]


def needs(package):
    return pytest.mark.skipif(not __import__("importlib").util.find_spec(package), reason=f"{package} is not installed")


def states(outcomes): return [o.state for o in outcomes]
def tries(folder, config): return (folder / run_name(config) / "tries").read_text().split()
def quietly(configs, out, *args, **kwargs): return run_grid(configs, out, *args, report=lambda line: None, **kwargs)


def alive(pid):
    try: return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError: return False


def driver(folder, kinds, executor="processes:1"):
    "A process of its own that runs a grid."
    code = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
if __name__ == "__main__":
    from softsortlib.lab.grid import run_grid
    from toy_runs import ToyConfig
    try: run_grid([ToyConfig(kind, seed=k) for k, kind in enumerate({kinds!r})], {str(folder)!r}, {executor!r})
    except KeyboardInterrupt as e: sys.exit(f"left: {{e}}")
"""
    (folder / "driver.py").write_text(code)
    return subprocess.Popen([sys.executable, folder / "driver.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


# --- names ---

def test_a_name_says_what_differs_from_the_preset():
    assert run_name(ToyConfig(steps=7, preset="quick", seed=3)).startswith("toy-quick-seed3-")
    assert run_name(ToyConfig("wait", steps=8, preset="quick")).startswith("toy-quick-wait-steps8-seed0-")


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=200), st.integers(0, 10**9), st.integers(0, 3))
def test_a_name_is_fit_for_a_file_system(kind, steps, seed):
    name = run_name(ToyConfig(kind, steps, seed))
    assert len(name.encode()) < 255 and not set(name) & set("/\\:*?\"<>| \n\0") and name == run_name(ToyConfig(kind, steps, seed))


def test_long_names_stay_apart():
    assert len({run_name(ToyConfig("x" * 150, seed=seed)) for seed in range(100)}) == 100


# --- one process ---

def test_done_failed_retried(tmp_path):
    configs = [*QUICK, ToyConfig("fail"), ToyConfig("forget")]
    assert states(quietly(configs, tmp_path)) == ["done"] * 3 + ["failed"] * 2
    error = json.loads((tmp_path / run_name(configs[3]) / "error.json").read_text())
    assert error["error"] == "ArithmeticError: not today" and "Traceback" in error["traceback"] and error["config"]["kind"] == "fail"
    assert "without" in Outcome.of(tmp_path, run_name(configs[4])).error
    assert quietly(configs, tmp_path) == quietly(configs, tmp_path)
    assert all(len(tries(tmp_path, c)) == 1 for c in configs)
    (tmp_path / "cured").touch()
    assert states(quietly(configs, tmp_path)) == ["done"] * 3 + ["failed"] * 2, "a failed run is tried again only on request"
    assert states(quietly(configs, tmp_path, retry=True)) == ["done"] * 4 + ["failed"]
    assert [len(tries(tmp_path, c)) for c in configs] == [1, 1, 1, 2, 2] and not (tmp_path / run_name(configs[3]) / "error.json").exists()


def test_the_same_configuration_twice_is_one_run(tmp_path):
    assert len(quietly([*QUICK, *QUICK], tmp_path)) == 3


def test_a_line_for_each_run(tmp_path):
    lines = []
    run_grid([*QUICK, ToyConfig("fail")], tmp_path, report=lines.append)
    assert [line.split("| ")[1].split(",")[0] for line in lines] == ["3 left", "2 left", "1 left", "0 left"]
    assert "EM 0.2  0 s" in lines[2] and "FAILED ArithmeticError: not today" in lines[3]


def test_threads_and_options_reach_the_run(tmp_path):
    [outcome] = quietly(QUICK[:1], tmp_path, threads=3, folder="data", precision="32-true")
    assert outcome.result["threads"] == 3 and outcome.result["options"] == {"folder": "data", "precision": "32-true"}


def test_summary_and_progress(tmp_path):
    configs = [*QUICK, ToyConfig("fail")]
    assert states(progress(configs, tmp_path)) == [""] * 4 and "4 left (not begun)" in summary(progress(configs, tmp_path))
    quietly(configs, tmp_path)
    text = summary(progress(configs, tmp_path), tmp_path)
    assert "3 of 4 runs are done" in text and "1 failed" in text and str(tmp_path / run_name(configs[3])) in text and "not today" in text


def test_a_run_that_another_process_is_at_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "_PATIENCE", 0.0)
    out = tmp_path / run_name(QUICK[0])
    out.mkdir()
    with grid._alone(out) as held:
        assert held and states(quietly(QUICK, tmp_path)) == ["busy", "done", "done"]
    assert not (out / "tries").exists()
    assert states(quietly(QUICK, tmp_path)) == ["done"] * 3


def test_collect(tmp_path):
    quietly([*QUICK, ToyConfig("fail")], tmp_path)
    assert [r["config"]["seed"] for r in collect(tmp_path, task="toy")] == [r["config"]["seed"] for r in collect(tmp_path)]
    assert {r["config"]["seed"] for r in collect(tmp_path)} == {0, 1, 2} and [r["name"] for r in collect(tmp_path, seed=2)] == [run_name(QUICK[2])]
    assert collect(tmp_path, kind="wait") == []


@pytest.mark.parametrize("word", ["", "threads", "processes:two", "dask:0", "submitit-local:x"])
def test_words_for_executors(word):
    with pytest.raises(ValueError, match="executor must"), make_executor(word): pass


# --- a pool of processes ---

def test_a_worker_dies(tmp_path):
    "What was finished is kept, the pool is reported broken, and the next call does the rest."
    configs = [QUICK[0], ToyConfig("die"), *QUICK[1:]]
    first = quietly(configs, tmp_path, "processes:1")
    assert states(first) == ["done", "lost", "lost", "lost"] and "BrokenProcessPool" in first[1].error
    assert "the same call goes on" in summary(first)
    (tmp_path / "cured").touch()
    assert states(quietly(configs, tmp_path, "processes:1")) == ["done"] * 4
    assert [len(tries(tmp_path, c)) for c in configs] == [1, 2, 1, 1]


def test_a_run_that_died_comes_last_the_next_time(tmp_path):
    "If it was the one that broke the pool, it stands in nobody's way."
    (tmp_path / run_name(QUICK[0])).mkdir()
    (tmp_path / run_name(QUICK[0]) / "config.json").touch()
    order = []
    run_grid(QUICK, tmp_path, report=lambda line: order.append(line.split()[0]))
    assert order == [run_name(QUICK[k]) for k in (1, 2, 0)]


def test_the_driver_is_killed(tmp_path):
    "Its worker ends with it; the next call repeats nothing that is done and resumes what is half-done."
    process, waits = driver(tmp_path, ["quick", "wait"]), ToyConfig("wait", seed=1)
    sign = tmp_path / run_name(waits) / "tries"
    wait_for(lambda: process.poll() is not None or sign.exists() and sign.read_text().endswith("\n"))
    assert process.poll() is None, process.communicate()
    [worker] = tries(tmp_path, waits)
    process.kill()
    process.communicate()
    wait_for(lambda: not alive(worker))
    (tmp_path / "go").touch()
    outcomes = quietly([QUICK[0], waits], tmp_path)
    assert states(outcomes) == ["done", "done"] and outcomes[1].result["resumed"]
    assert len(tries(tmp_path, QUICK[0])) == 1 and len(tries(tmp_path, waits)) == 2


def test_ctrl_c_reaches_all_processes_of_a_terminal_and_the_driver_ends_the_others(tmp_path):
    process, waits = driver(tmp_path, ["quick", "wait", "quick"]), ToyConfig("wait", seed=1)
    sign = tmp_path / run_name(waits) / "tries"
    wait_for(lambda: process.poll() is not None or sign.exists() and sign.read_text().endswith("\n"))
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1 and err.strip() == "left: interrupted with 2 of 3 runs left: the same command goes on"
    assert not alive(tries(tmp_path, waits)[0]) and not list(tmp_path.glob(f"{run_name(waits)}/*.json.*"))
    assert states(progress([QUICK[0], waits], tmp_path)) == ["done", ""]


# --- clusters ---

@needs("distributed")
def test_a_worker_of_a_dask_cluster_is_killed(tmp_path):
    "The cluster replaces it and gives its work to the new one: the run goes on, those that had ended with the old worker are not repeated."
    waits = ToyConfig("wait")
    sign, killed = tmp_path / run_name(waits) / "tries", []
    def kill():
        wait_for(lambda: sign.exists() and sign.read_text().endswith("\n"))
        killed.extend(tries(tmp_path, waits))
        os.kill(int(killed[0]), signal.SIGKILL)
        wait_for(lambda: len(tries(tmp_path, waits)) == 2)
        (tmp_path / "go").touch()
    killer = threading.Thread(target=kill)
    killer.start()
    outcomes = quietly([*QUICK, waits], tmp_path, "dask:1")
    killer.join()
    assert states(outcomes) == ["done"] * 4 and outcomes[3].result["resumed"]
    assert len(set(tries(tmp_path, waits))) == 2 and all(len(tries(tmp_path, c)) == 1 for c in QUICK)


@needs("submitit")
def test_submitit(tmp_path, monkeypatch):
    import submitit
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setattr(submitit.Job, "_results_timeout_s", 1)                 # how long it waits for the result of a job that died
    configs = [QUICK[0], ToyConfig("fail"), ToyConfig("die")]
    assert states(quietly(configs, tmp_path, "submitit-local:2")) == ["done", "failed", "lost"]
    assert list((tmp_path / ".jobs").iterdir())
    (tmp_path / "cured").touch()
    assert states(quietly(configs, tmp_path, retry=True)) == ["done"] * 3
    assert [len(tries(tmp_path, c)) for c in configs] == [1, 2, 2]


SBATCH = """#!/bin/bash
cp "${@: -1}" "$0.$$"
echo "Submitted batch job $$"
SLURM_JOB_ID=$$ SLURM_NTASKS=1 SLURM_LOCALID=0 SLURM_PROCID=0 SLURM_NODEID=0 SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=here bash "$0.$$" > /dev/null 2>&1 &
"""
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do if [[ "$1" == --unbuffered ]]; then shift; else shift 2; fi; done
exec "$@"
"""

@needs("submitit")
def test_slurm_as_far_as_its_commands_go(tmp_path, monkeypatch):
    "With stand-ins for sbatch, srun and sacct: the job gets what the word asks for, and its run ends in the folder."
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("sacct", "#!/bin/bash\necho 'JobID|State|NodeList'\n")):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    assert states(quietly(QUICK[:1], tmp_path / "runs", "slurm:gpu,timeout_min=30,gpus_per_node=1", threads=2)) == ["done"]
    [job] = commands.glob("sbatch.*")
    asked = job.read_text()
    assert all(f"#SBATCH --{w}" in asked for w in ("partition=gpu", "time=30", "cpus-per-task=2", "gpus-per-node=1"))


@needs("submitit")
def test_without_slurm_the_message_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OSError, match="Slurm is not to be found here.*srun"): quietly(QUICK[:1], tmp_path, "slurm:gpu")


@needs("submitit")
def test_a_job_of_slurm_that_is_cut_off_is_queued_again(tmp_path):
    again = Attempt().checkpoint(QUICK[0], tmp_path, {})
    assert isinstance(again.function, Attempt) and again.args == (QUICK[0], tmp_path, {})


# --- small records ---

@settings(max_examples=40, deadline=None)
@given(st.integers(0, 300), st.integers(0, 40), st.integers(0, 300), st.floats(1e-9, 1e9))
def test_a_record_is_small_and_keeps_the_ends_and_the_best(length, scores, best, loss):
    curve = [{"step": k, "loss": loss / (k + 1), "scores": [loss + k] * scores} for k in range(length)]
    small = small_record({"task": "toy", "test": {"EM": 1 / 3}, "best_step": best, "curve": curve})
    assert len(json.dumps(small, indent=1)) < 15_000 and small["test"] == {"EM": 0.33333}
    if not curve: return
    steps = [p["step"] for p in small["curve"]]
    assert len(steps) <= 25 and {0, len(curve) - 1} | {best} & set(range(len(curve))) <= set(steps) and steps == sorted(set(steps))
    assert all(p["loss"] == pytest.approx(curve[p["step"]]["loss"], rel=1e-4) for p in small["curve"])


def test_a_record_that_cannot_be_small_says_so():
    with pytest.raises(ValueError, match="15000 are allowed"): small_record({"task": "toy", "test": {}, "all": list(range(10_000))})


def test_finished_runs_are_recorded_as_they_end(tmp_path):
    quietly(QUICK[:2], tmp_path / "runs")
    quietly(QUICK, tmp_path / "runs", record=tmp_path / "kept")
    files = sorted((tmp_path / "kept/toy").iterdir())
    assert [f.stem for f in files] == sorted(run_name(c) for c in QUICK)
    before = [f.stat().st_mtime_ns for f in files]
    quietly(QUICK, tmp_path / "runs", record=tmp_path / "kept")
    assert [f.stat().st_mtime_ns for f in files] == before, "a record that is there is not written again"
    assert record_run(json.loads(files[0].read_text()), files[0].stem, tmp_path / "kept") == files[0]
