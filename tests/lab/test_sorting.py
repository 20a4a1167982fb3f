"""Learning to sort: operators, losses, metrics and the network."""
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

for extra in ("pytorch_lightning", "sklearn"):
    if not __import__("importlib").util.find_spec(extra): pytest.skip("the experiments extra is not installed", allow_module_level=True)

from softsortlib.core.operators import get_operator, Operator
from softsortlib.core.rank_operators import RankOperator
from softsortlib.lab.scoring import is_right, NumberCNN, SortAccuracy, sorting_loss
from softsortlib.lab.sorting import build_operator, default_loss, order_loss, papers_tau, SortConfig

TINY = SortConfig(n=3, digits=1, steps=20, epoch=10, batch=8, val_sets=40, test_sets=80, width=4, seed=3)


def numbers(result): return [{k: v for k, v in point.items() if "seconds" not in k} for point in result["curve"]], result["test"]


# --- operators and losses ---

@pytest.mark.parametrize("operator,tau", [("softsort", 8.0), ("neuralsort", 8.0), ("sinkhorn", None), ("odd_even", None), ("bitonic", None), ("permutahedron", 1.0),
                                          ("laplace", 1.0), ("sigmoid", 1.0), ("gaussian", 1.0)])
def test_every_operator_learns_and_repeats_itself(operator, tau, tmp_path):
    config = replace(TINY, operator=operator, tau=tau)
    first = config.run(tmp_path / "a", threads=1)
    assert first["curve"][-1]["loss"] < first["curve"][0]["loss"] < 3
    assert numbers(first) == numbers(config.run(tmp_path / "b", threads=1))


@pytest.mark.parametrize("changes", [dict(samples=2, tau=8.0), dict(sharpness=0.6), dict(convention="row", digits=4), dict(shrink=2), dict(loss="bce", tau=8.0), dict(loss="columns", tau=8.0), dict(loss="spearman", tau=8.0)])
def test_variants_run(changes, tmp_path):
    result = replace(TINY, steps=10, **changes).run(tmp_path, threads=1)
    assert result["steps"] == 10 and math.isfinite(result["curve"][-1]["loss"])


def test_calibrated_training_does_not_depend_on_the_unit_of_the_scores():
    "The temperature found for 1000 s is 1000 times that for s, so the loss is the same."
    g = torch.Generator().manual_seed(0)
    s, values = torch.randn(6, 5, generator=g, dtype=torch.float64), torch.randint(100, (6, 5), generator=g)
    losses = []
    for unit in (1.0, 1000.0):
        _, task = replace(TINY, n=5, sharpness=0.5).parts()
        task.temperature(unit * s)
        losses.append(order_loss(task.operator, unit * s, values).item())
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


@pytest.mark.parametrize("name", sorted(set(Operator.names) - {"network"} | set(RankOperator.names)))
def test_the_right_order_has_the_smaller_loss(name):
    g = torch.Generator().manual_seed(0)
    s = torch.randn(4, 6, generator=g, dtype=torch.float64)
    operator = build_operator(SortConfig(operator=name, tau=0.05))
    good, bad = (order_loss(operator, x, s, default_loss(name)).item() for x in (s, -s))
    assert good < 0.5 * bad


@pytest.mark.parametrize("changes,message", [
    (dict(operator="permutahedron", loss="nll"), "gives ranks only"), (dict(operator="permutahedron", samples=2), "ranks only"),
    (dict(loss="mse"), "'nll', 'columns', 'bce', 'spearman', 'ranks' or None"), (dict(width=0), "width must be at least 1"), (dict(shrink=9), "shrink must be at most 8"),
])
def test_configuration_errors(changes, message):
    with pytest.raises(ValueError, match=message): replace(TINY, **changes).parts()


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
def test_task_names_its_operator(): assert "tau=8.0" in repr(build_operator(SortConfig(tau=8.0)))
