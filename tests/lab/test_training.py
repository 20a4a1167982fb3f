"""Runs as a user lives with them: killed, resumed, misconfigured, noisy, in half precision."""
import csv
import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

for extra in ("pytorch_lightning", "sklearn"):
    if not __import__("importlib").util.find_spec(extra): pytest.skip("the experiments extra is not installed", allow_module_level=True)

from softsortlib.core.operators import get_operator
from softsortlib.lab.scoring import SortAccuracy
from softsortlib.lab.sorting import SortConfig
from softsortlib.lab.training import RunConfig, pl, train

TINY = SortConfig(n=3, digits=1, steps=30, epoch=10, tau=8.0, batch=8, val_sets=40, test_sets=80, dropout=0.2, schedule="cosine", seed=3)
TRAIN = "import sys, json; from softsortlib.lab.sorting import SortConfig; from softsortlib.lab.training import train; train(SortConfig(**json.loads(sys.argv[1])), sys.argv[2], threads=1)"


def numbers(result):
    timeless = [{k: v for k, v in point.items() if "seconds" not in k} for point in result["curve"]]
    return timeless, result["test"], result["before"], result["best_step"], result["config"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train(TINY, tmp_path_factory.mktemp("alone") / "run", threads=1)


def start(config, out):
    return subprocess.Popen([sys.executable, "-W", "error", "-c", TRAIN, json.dumps(asdict(config)), str(out)], stderr=subprocess.PIPE)


# --- a run is a function of its configuration ---

def test_the_record_says_what_ran(alone):
    assert alone["config"] == asdict(TINY) and alone["steps"] == 30 and alone["best_step"] in (10, 20, 30)
    assert [p["step"] for p in alone["curve"]] == [10, 20, 30] and all(len(p["scores"]) == 3 for p in alone["curve"])
    assert alone["chance"]["EM"] == 1 / 6 and alone["environment"]["torch"] and alone["environment"]["softsortlib"]
    assert set(alone["test"]) == set(alone["before"]) == {"EM", "EW", "EM5"}
    json.dumps(alone)


def test_the_same_configuration_gives_the_same_numbers(alone, tmp_path):
    torch.rand(3)
    assert numbers(train(TINY, tmp_path, threads=1)) == numbers(alone)


def test_another_seed_gives_others(alone, tmp_path):
    other = train(replace(TINY, seed=4), tmp_path, threads=1)
    assert [p["loss"] for p in other["curve"]] != [p["loss"] for p in alone["curve"]]


def test_killed_and_resumed_nothing_is_lost(alone, tmp_path):
    run = tmp_path / "run"
    process = start(TINY, run)
    deadline = time.monotonic() + 300
    while not (run / "checkpoints/last.ckpt").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read().decode()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    assert not (run / "result.json").exists()
    assert numbers(train(TINY, run, threads=1)) == numbers(alone)
    assert (run / "result.json").exists()


@pytest.mark.parametrize("moment", ["before the first checkpoint", "while a checkpoint is written", "in the last test"])
def test_cut_off_at_any_moment(alone, tmp_path, monkeypatch, moment):
    class Cut(pl.Callback):
        tests = 0
        def on_train_batch_end(self, trainer, *_):
            if moment.startswith("before") and trainer.global_step == 7: raise RuntimeError("cut")
        def on_test_start(self, *_):
            self.tests += 1
            if moment.startswith("in the last") and self.tests == 2: raise RuntimeError("cut")
    save, saved = torch.save, []
    def half(checkpoint, path):
        saved.append(path)
        if len(saved) < 4: return save(checkpoint, path)
        path.write_bytes(b"half a checkpoint")
        raise RuntimeError("cut")
    if moment.startswith("while"): monkeypatch.setattr(torch, "save", half)
    with pytest.raises((RuntimeError, OSError), match="cut"): train(TINY, tmp_path, callbacks=(Cut(),), threads=1)
    monkeypatch.undo()
    assert not (tmp_path / "result.json").exists()
    assert numbers(train(TINY, tmp_path, threads=1)) == numbers(alone)


def test_an_interrupted_run_goes_on_from_its_last_epoch_where_an_earlier_one_was_better(tmp_path, monkeypatch):
    falling = iter(range(99, 0, -1))
    monkeypatch.setattr(SortAccuracy, "compute", lambda self: dict.fromkeys(("EM", "EW", "EM5"), torch.tensor(next(falling) / 100)))
    class Cut(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 25: raise RuntimeError("cut")
    with pytest.raises(RuntimeError, match="cut"): train(TINY, tmp_path, callbacks=(Cut(),), threads=1)
    steps = {name: torch.load(tmp_path / f"checkpoints/{name}.ckpt", weights_only=True)["global_step"] for name in ("best", "last")}
    assert steps == {"best": 10, "last": 20} and len(list((tmp_path / "checkpoints").iterdir())) == 2
    assert train(TINY, tmp_path, threads=1)["best_step"] == 10


def test_ctrl_c_raises_and_resumes(alone, tmp_path):
    class CtrlC(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 15: signal.raise_signal(signal.SIGINT)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt): train(TINY, tmp_path, callbacks=(CtrlC(),), threads=1)
    assert signal.getsignal(signal.SIGINT) is before and (tmp_path / "checkpoints/last.ckpt").exists()
    assert numbers(train(TINY, tmp_path, threads=1)) == numbers(alone)


def test_a_finished_run_is_read_not_repeated(alone, tmp_path, monkeypatch):
    first = train(TINY, tmp_path, threads=1)
    monkeypatch.setattr(pl.Trainer, "fit", None)
    assert train(TINY, tmp_path) == first


def test_the_csv_log_has_every_validation(tmp_path):
    result = train(TINY, tmp_path, threads=1)
    rows = list(csv.DictReader((tmp_path / "log/version_0/metrics.csv").read_text().splitlines()))
    assert [round(float(r["val_EM"]), 5) for r in rows if r["val_EM"]] == [p["EM"] for p in result["curve"]]


def test_nothing_global_is_left_changed(tmp_path):
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    train(replace(TINY, steps=10), tmp_path, threads=1)
    assert torch.get_num_threads() == threads and torch.equal(torch.random.get_rng_state(), state)


def test_a_last_epoch_may_be_short(tmp_path):
    assert [p["step"] for p in train(replace(TINY, steps=13), tmp_path, threads=1)["curve"]] == [10, 13]


def test_trainer_flags_and_the_bar(tmp_path, capfd):
    result = train(replace(TINY, steps=10), tmp_path, threads=1, progress=True, precision="bf16-mixed", accelerator="cpu")
    assert result["trainer"] == {"precision": "bf16-mixed", "accelerator": "cpu"}
    out = capfd.readouterr()
    assert "10/10" in out.err and "EM" in out.err and out.out == ""


# --- several devices ---

def test_an_epoch_has_its_own_steps():
    data, _ = TINY.parts()
    data.trainer = type("T", (), {"current_epoch": 2})()
    assert list(data.train_dataloader()) == list(range(20, 30))


TWO = """
import json, sys
from softsortlib.lab.scoring import SortAccuracy
from softsortlib.lab.sorting import SortConfig
from softsortlib.lab.training import train
if __name__ == "__main__":
    train(SortConfig(**json.loads(sys.argv[1])), sys.argv[2], threads=1, accelerator="cpu", devices=2, strategy="ddp")
"""

def test_two_processes_take_the_steps_of_one(tmp_path):
    "Prop B4.2: gradients of two halves of a batch, averaged, are the gradient of the batch."
    config = replace(TINY, dropout=0.0, steps=20)
    one = train(config, tmp_path / "one", threads=1)
    (tmp_path / "two.py").write_text(TWO)
    process = subprocess.run([sys.executable, "-W", "ignore", tmp_path / "two.py", json.dumps(asdict(config)), str(tmp_path / "two")], capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr[-3000:]
    two = json.loads((tmp_path / "two/result.json").read_text())
    assert (one["devices"], two["devices"]) == (1, 2) and two["steps"] == 20
    assert [p["loss"] for p in two["curve"]] == pytest.approx([p["loss"] for p in one["curve"]], rel=1e-4)
    assert two["test"]["EM"] == pytest.approx(one["test"]["EM"], abs=0.03)


AFTER_TWO = TWO.replace("    train(", "    two = train(") + """
    import os, torch
    assert not torch.distributed.is_initialized() and "LOCAL_RANK" not in os.environ, "the run left its group behind"
    one = train(SortConfig(**json.loads(sys.argv[1])), sys.argv[2] + "-one", threads=1, accelerator="cpu", devices=1)
    print(json.dumps([two["devices"], one["devices"], one["steps"], one["test"]["EM"]]))
"""

def test_a_run_after_one_of_two_processes_is_a_run_of_its_own(alone, tmp_path):
    "The process group ends with the run that opened it, and so does the process that was started for the second device."
    (tmp_path / "after.py").write_text(AFTER_TWO)
    process = subprocess.run([sys.executable, "-W", "ignore", tmp_path / "after.py", json.dumps(asdict(TINY)), str(tmp_path / "two")], capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr[-3000:]
    lines = [line for line in process.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == 1 and json.loads(lines[0]) == [2, 1, 30, alone["test"]["EM"]], lines


# --- errors ---

def test_two_runs_in_one_folder(alone, tmp_path):
    train(replace(TINY, steps=10), tmp_path, threads=1)
    with pytest.raises(ValueError, match="another run .*steps 10 instead of 30"): train(TINY, tmp_path)


@pytest.mark.parametrize("changes,message", [
    ({"n": 1}, "n must be at least 2"), ({"steps": 0}, "steps must be at least 1"), ({"lr": 0.0}, "lr must be positive"), ({"lr": math.nan}, "lr"),
    ({"dropout": 1.0}, "dropout"), ({"samples": -1}, "samples"), ({"schedule": "linear"}, "constant"), ({"batch": 0}, "batch"),
])
def test_configuration_errors(changes, message):
    with pytest.raises(ValueError, match=message): replace(TINY, **changes)


@pytest.mark.parametrize("changes,message", [({"operator": "softsrot"}, "did you mean 'softsort'"), ({"data": "mnits"}, "'digits', 'mnist', 'fashion'"),
                                             ({"convention": "diagonal"}, "stacked"), ({"tau": -1.0}, "tau")])
def test_a_bad_name_is_told_before_a_folder_is_made(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message): train(replace(TINY, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_preset_errors():
    with pytest.raises(ValueError, match="paper, long, short, quick, demo"): SortConfig.from_preset("fast")
    with pytest.raises(ValueError, match="there is no setting temperature"): SortConfig.from_preset("quick", temperature=1)
    with pytest.raises(NotImplementedError, match="RunConfig does not say"): RunConfig().parts()


@pytest.mark.parametrize("name", sorted(SortConfig.PRESETS))
def test_presets(name):
    assert SortConfig.from_preset(name, seed=5).seed == 5 and SortConfig.from_preset(name).preset == name


def test_a_compiled_network_learns_the_same(alone, tmp_path, monkeypatch):
    modes = []
    def compile(net, **how): modes.append(how)                    # what torch makes of it is torch's affair, and needs a compiler
    monkeypatch.setattr(torch.nn.Module, "compile", compile)
    assert numbers(train(TINY, tmp_path, threads=1, compile="reduce-overhead")) == numbers(alone) and modes == [{"mode": "reduce-overhead"}]
