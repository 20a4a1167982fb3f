"""What the record of conformal training claims: as many choices for either loss, seeds of its own for tuning, coverage."""
import importlib.util
import json
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
RECORD = json.loads((ROOT / "nbs/results/conformal.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("record_conformal", ROOT / "tools/record_conformal.py")
    module = importlib.util.module_from_spec(spec)
    threads = torch.get_num_threads()
    spec.loader.exec_module(module)
    assert torch.get_num_threads() == threads
    return module


def test_the_record_is_fair(tool):
    every = list(tool.choices())
    assert len(RECORD["seeds"]) >= 5 and not set(RECORD["seeds"]) & set(RECORD["tuning_seeds"]) and set(RECORD["tasks"]) == set(tool.TASKS)
    assert sum(c["loss"] == "conformal" for c in every) == sum(c["loss"] == "cross-entropy" for c in every) >= 6
    for task in RECORD["tasks"].values():
        assert [run["seed"] for run in task["runs"]] == RECORD["seeds"] and len(task["tuning"]) == len(every) * len(RECORD["tuning_seeds"])
        for loss, chosen in task["chosen"].items():
            assert chosen == tool.best(task["tuning"], loss)


def test_the_sets_cover_and_their_shares_are_shares():
    for task in RECORD["tasks"].values():
        for run in task["runs"]:
            for loss in ("start", "cross-entropy", "conformal"):
                assert abs(run[loss]["coverage"] - (1 - RECORD["alpha"])) < 0.004
                assert abs(sum(run[loss]["histogram"]) - 1) < 1e-3
    assert len(RECORD["gallery"]) == 12


def test_a_threshold_lets_as_few_miss_as_promised(tool, rng):
    "Of n + 1 scores, each left out once, floor(alpha (n + 1)) fall below the threshold of the others."
    for n, alpha in ((9, 0.2), (99, 0.01), (57, 0.1)):
        values = torch.rand(n + 1, 1, generator=rng)
        others = [torch.cat([values[:i], values[i + 1:]]) for i in range(n + 1)]
        missed = sum(bool(values[i, 0] < tool.threshold(o, torch.zeros(n, dtype=torch.long), alpha)) for i, o in enumerate(others))
        assert missed == int(alpha * (n + 1))


def test_the_loss_shrinks_the_sets_of_a_crippled_classifier(tool, rng):
    "Three overlapping classes in the plane, and scores that see only one coordinate at the start."
    y = torch.arange(1500) % 3
    X = torch.stack([y.double(), (y == 1).double() * 3], -1).float() + 0.5 * torch.randn(1500, 2, generator=rng)
    net = torch.nn.Linear(2, 3)
    with torch.no_grad(): net.weight.copy_(torch.tensor([[-1.0, 0], [0, 0], [1, 0]])), net.bias.copy_(torch.tensor([0.0, 0, -1]))
    before, _ = tool.judge(net, X, y, 0.05)
    after, coverage = tool.judge(tool.train(net, X, y, lambda z, t: tool.conformal_loss(z, t, 0.05), 100, 400, 0.05, 0), X, y, 0.05)
    assert after < before - 0.1 and coverage > 0.93
