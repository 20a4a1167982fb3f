"""What the record of conformal training claims: as many choices for either loss, seeds of its own for tuning, coverage; and what the page builds."""
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from execnb.nbio import read_nb
from execnb.shell import CaptureShell

pytest.importorskip("sklearn", reason="the experiments extra is not installed")
NBS = Path(__file__).resolve().parent.parent / "nbs"
PAGE = NBS / "tutorials/conformal_training.ipynb"
RUNS, TUNING = (json.loads((NBS / f"results/{name}.json").read_text(encoding="utf-8"))["rows"] for name in ("conformal", "conformal_tuning"))


@pytest.fixture(scope="module")
def tutorial():
    "The names that the page defines before its large runs."
    shell, nb = CaptureShell(PAGE), read_nb(PAGE)
    end = next(i for i, cell in enumerate(nb.cells) if cell.source.startswith("RUN = "))
    nb.cells = [cell for cell in nb.cells[:end] if cell.cell_type == "code" and "google.colab" not in cell.source]
    shell.run_all(nb, exc_stop=True)
    return SimpleNamespace(**{name: f for name, f in shell.user_ns.items() if callable(f)})


def test_the_record_is_fair():
    seeds, tuning_seeds, tasks = ({row[key] for row in rows} for rows, key in ((RUNS, "seed"), (TUNING, "seed"), (RUNS, "task")))
    assert len(seeds) >= 5 and not seeds & tuning_seeds and len(tasks) == 3 and tasks == {t["task"] for t in TUNING}
    assert sorted((run["task"], run["seed"]) for run in RUNS) == sorted((task, seed) for task in tasks for seed in seeds)
    tried = Counter((t["task"], t["seed"], t["loss"]) for t in TUNING)
    assert len(tried) == 2 * len(tasks) * len(tuning_seeds) and len(set(tried.values())) == 1 and min(tried.values()) >= 6


def test_the_sets_cover_and_their_shares_are_shares():
    for run in RUNS:
        for loss in ("start", "cross-entropy", "conformal"):
            assert abs(run[loss]["coverage"] - 0.99) < 0.004
            assert abs(sum(run[loss]["histogram"]) - 1) < 1e-3
    assert [len(run.get("gallery", [])) for run in RUNS] == [12] + [0] * (len(RUNS) - 1)


def test_a_threshold_lets_as_few_miss_as_promised(tutorial, rng):
    "Of n + 1 scores, each left out once, floor(alpha (n + 1)) fall below the threshold of the others."
    for n, alpha in ((9, 0.2), (99, 0.01), (57, 0.1)):
        values = torch.rand(n + 1, 1, generator=rng)
        others = [torch.cat([values[:i], values[i + 1:]]) for i in range(n + 1)]
        labels = torch.zeros(n, dtype=torch.long)
        missed = sum(bool(values[i, 0] < tutorial.threshold(o, labels, alpha)) for i, o in enumerate(others))
        assert missed == int(alpha * (n + 1))


def test_the_loss_shrinks_the_sets_of_a_crippled_classifier(tutorial, rng):
    "Three overlapping classes in the plane, and scores that see only one coordinate at the start."
    y = torch.arange(1500) % 3
    X = torch.stack([y.double(), (y == 1).double() * 3], -1).float() + 0.5 * torch.randn(1500, 2, generator=rng)
    net = torch.nn.Linear(2, 3)
    with torch.no_grad(): net.weight.copy_(torch.tensor([[-1.0, 0], [0, 0], [1, 0]])), net.bias.copy_(torch.tensor([0.0, 0, -1]))
    before, _ = tutorial.judge(net, X, y, 0.05)
    def loss(z, t): return tutorial.conformal_loss(z, t, 0.05)
    after, coverage = tutorial.judge(tutorial.train(net, X, y, loss, 100, 400, 0.05, 0), X, y, 0.05)
    assert after < before - 0.1 and coverage > 0.93
