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

from softsortlib.operators import get_operator
from softsortlib.training import (PRESETS, NumberCNN, NumberData, SortAccuracy, SortConfig, SortingTask, is_right, papers_tau, pl,
                                  preset, sorting_loss, train)

TINY = SortConfig(n=3, digits=1, steps=30, epoch=10, tau=8.0, batch=8, val_sets=40, test_sets=80, dropout=0.2, schedule="cosine", seed=3)
TRAIN = "import sys, json; from softsortlib.training import SortConfig, train; train(SortConfig(**json.loads(sys.argv[1])), sys.argv[2], threads=1)"


def numbers(result):
    timeless = [{k: v for k, v in point.items() if k != "seconds"} for point in result["curve"]]
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
    deadline = time.monotonic() + 100
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
    with pytest.raises(RuntimeError, match="cut"): train(TINY, tmp_path, callbacks=(Cut(),), threads=1)
    monkeypatch.undo()
    assert not (tmp_path / "result.json").exists()
    assert numbers(train(TINY, tmp_path, threads=1)) == numbers(alone)


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


@pytest.mark.parametrize("operator", ["softsort", "neuralsort"])
@pytest.mark.parametrize("samples", [0, 2])
def test_operators(operator, samples, tmp_path):
    config = replace(TINY, operator=operator, samples=samples, steps=20)
    first = train(config, tmp_path / "a", threads=1)
    assert first["curve"][-1]["loss"] < first["curve"][0]["loss"] < 3
    assert numbers(first) == numbers(train(config, tmp_path / "b", threads=1))


@pytest.mark.parametrize("convention,data", [("row", "digits"), ("stacked", "digits")])
def test_conventions(convention, data, tmp_path):
    assert train(replace(TINY, convention=convention, steps=10, digits=4), tmp_path, threads=1)["steps"] == 10


def test_ddp_steps_are_dealt_out(monkeypatch):
    loader = NumberData(TINY)
    loader.trainer = type("T", (), {"current_epoch": 2})()
    assert list(loader.train_dataloader()) == list(range(20, 30))


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


@pytest.mark.parametrize("changes,message", [({"operator": "softsrot"}, "did you mean 'softsort'"), ({"data": "mnits"}, "digits, mnist, fashion"),
                                             ({"convention": "diagonal"}, "stacked"), ({"tau": -1.0}, "tau")])
def test_a_bad_name_is_told_before_a_folder_is_made(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message): train(replace(TINY, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_preset_errors():
    with pytest.raises(ValueError, match="paper, quick, demo"): preset("fast")
    with pytest.raises(ValueError, match="there is no setting temperature"): preset("quick", temperature=1)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets(name):
    assert preset(name, seed=5).seed == 5 and preset(name).preset == name


# --- metrics and network ---

@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(2, 8), st.integers(0, 1 << 30))
def test_the_right_order_is_right_with_and_without_ties(batch, n, seed):
    g = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 6, (batch, n), generator=g)                 # many ties
    assert is_right(values.double() + torch.rand(batch, n, generator=g, dtype=torch.float64) / 2, values).all()
    if n > 1 and (values.max(-1).values > values.min(-1).values).any():
        assert not is_right(-values.double(), values).all()


def test_the_metric_does_not_depend_on_batches():
    g = torch.Generator().manual_seed(0)
    scores, values = torch.rand(20, 5, generator=g), torch.randint(9, (20, 5), generator=g)
    whole, parts = SortAccuracy(), SortAccuracy()
    whole.update(scores, values)
    for k in range(0, 20, 4): parts.update(scores[k:k + 4], values[k:k + 4])
    assert whole.compute() == parts.compute() and whole.compute()["EM"] == whole.compute()["EM5"]


def test_fewer_than_five_pictures_have_no_em5():
    accuracy = SortAccuracy()
    accuracy.update(torch.rand(1, 3), torch.arange(3)[None])
    assert accuracy.compute()["EM5"] == 0


@pytest.mark.parametrize("method", ["softsort", "neuralsort"])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_loss_gradient(method, n):
    g = torch.Generator().manual_seed(1)
    s = torch.randn(3, n, generator=g, dtype=torch.float64, requires_grad=True)
    values = torch.randint(100, (3, n), generator=g)
    P = get_operator(method, tau=0.7, descending=True)
    assert torch.autograd.gradcheck(lambda s: sorting_loss(P(s), values), s)


def test_scores_keep_full_precision_under_autocast():
    with torch.autocast("cpu", torch.bfloat16): assert NumberCNN((32, 8))(torch.rand(2, 5, 1, 32, 8)).dtype == torch.float32


def test_papers_tau(): assert papers_tau(7) == 1024 and papers_tau(8) == 128
def test_task_names_its_operator(): assert "tau=8.0" in repr(SortingTask(TINY, (8, 8)).operator)
