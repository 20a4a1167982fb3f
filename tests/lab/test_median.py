"""Median regression: losses, metric, configurations and runs."""
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

for extra in ("pytorch_lightning", "sklearn"):
    if not __import__("importlib").util.find_spec(extra): pytest.skip("the experiments extra is not installed", allow_module_level=True)

from softsortlib.functional import soft_median
from softsortlib.lab.median import FORMS, MEDIAN_TAUS, MedianConfig, MedianScore, MedianTask, median_grid, median_loss, median_search, median_tau
from softsortlib.core.operators import get_operator
from softsortlib.core.stochastic import Stochastic

TINY = MedianConfig(n=3, digits=1, steps=8, epoch=4, batch=4, width=4, val_sets=8, test_sets=8, tau=1.0)


def numbers(result): return [{k: v for k, v in point.items() if "seconds" not in k} for point in result["curve"]], result["test"]


# --- losses ---

@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["softsort", "neuralsort", "bitonic", "odd_even"]), st.sampled_from([1, 3, 5, 9]), st.integers(0, 1 << 30))
def test_the_expected_loss_is_never_smaller(name, n, seed):
    g = torch.Generator().manual_seed(seed)
    s, v, y = (torch.randn(shape, generator=g, dtype=torch.float64) for shape in ((4, n), (4, n), (4,)))
    P = get_operator(name, tau=0.5, descending=True)(s)
    mean, expected = (median_loss(P, v, y, form).item() for form in ("mean", "expected"))
    assert expected >= mean - 1e-12
    if n == 1: assert expected == pytest.approx(mean)


@pytest.mark.parametrize("form", ["mean", "expected"])
@pytest.mark.parametrize("name", ["softsort", "neuralsort"])
def test_gradient(name, form):
    g = torch.Generator().manual_seed(0)
    s, v, y = (torch.randn(shape, generator=g, dtype=torch.float64) for shape in ((3, 5), (3, 5), (3,)))
    operator = get_operator(name, tau=0.7, descending=True)
    assert torch.autograd.gradcheck(lambda s, v: median_loss(operator(s), v, y, form), (s.requires_grad_(), v.requires_grad_()))


def test_the_hard_limit_is_the_error_of_the_picture_in_the_middle():
    g = torch.Generator().manual_seed(1)
    s, v, y = (torch.randn(shape, generator=g, dtype=torch.float64) for shape in ((6, 7), (6, 7), (6,)))
    middle = s.argsort(-1)[:, 3]
    wanted = (y - v.gather(-1, middle[:, None])[:, 0]).square().mean()
    for form in ("mean", "expected"):
        for descending in (False, True):
            torch.testing.assert_close(median_loss(get_operator("softsort", tau=1e-9, descending=descending)(s), v, y, form), wanted)


def test_noise_is_averaged_outside_the_square():
    g = torch.Generator().manual_seed(1)
    s, v, y = (torch.randn(shape, generator=g, dtype=torch.float64) for shape in ((2, 5), (2, 5), (2,)))
    P = Stochastic("softsort", 4, torch.Generator().manual_seed(2), tau=0.5, descending=True)(s)
    p = P.to_dense()[..., 2, :]
    torch.testing.assert_close(median_loss(P, v, y), (y - (p * v).sum(-1)).square().mean())
    assert p.shape == (4, 2, 5)


def test_the_form_quantile_of_softsort_is_the_form_mean_of_the_values():
    g = torch.Generator().manual_seed(3)
    v, y = torch.randn(4, 5, generator=g, dtype=torch.float64), torch.randn(4, generator=g, dtype=torch.float64)
    operator = get_operator("softsort", tau=0.4, descending=True)
    torch.testing.assert_close((y - soft_median(v, method=operator)).square().mean(), median_loss(operator(v), v, y))


def test_an_unknown_form():
    with pytest.raises(ValueError, match="'mean' or 'expected', got 'picture'"): median_loss(get_operator("softsort")(torch.zeros(1, 3)), torch.zeros(1, 3), torch.zeros(1), "picture")


# --- metric ---

def test_the_metric_is_scipys():
    stats = pytest.importorskip("scipy.stats")
    g = torch.Generator().manual_seed(0)
    a, y = torch.randint(20, (200,), generator=g).double(), torch.randint(20, (200,), generator=g).double()     # with ties
    score = MedianScore()
    for part in torch.arange(200).split(37): score.update(a[part], y[part], a[part] == y[part])
    got = score.compute()
    assert got["Spearman"].item() == pytest.approx(stats.spearmanr(a, y).statistic, abs=1e-12)
    assert got["MSE"].item() == pytest.approx(((a - y) ** 2).mean().item()) and got["found"].item() == pytest.approx((a == y).double().mean().item())


def test_the_metric_counts_from_zero_after_a_reset():
    score = MedianScore()
    score.update(torch.ones(3), torch.zeros(3), torch.zeros(3, dtype=torch.bool))
    score.reset()
    score.update(torch.ones(2), torch.ones(2), torch.ones(2, dtype=torch.bool))
    assert score.compute()["MSE"] == 0 and score.compute()["found"] == 1


# --- configurations and runs ---

@pytest.mark.parametrize("changes,message", [
    (dict(n=4), "n must be odd"), (dict(n=1), "n must be at least 3"), (dict(form="median"), "form must be .picture., .mean., .expected. or .quantile."), (dict(form="quantile", samples=2), "samples must be 0"),
    (dict(lr=0.0), "lr must be positive"), (dict(unit=-1.0), "unit must be positive"), (dict(schedule="step"), "schedule must be"), (dict(operator="softsrt"), "did you mean 'softsort'"), (dict(width=0), "width must be at least 1"),
    (dict(select="loss"), "select must be 'MSE', 'Spearman' or 'found', got 'loss'"),
])
def test_configuration_errors(changes, message):
    with pytest.raises(ValueError, match=message): replace(TINY, **changes)


@pytest.mark.parametrize("changes", [*(dict(form=form) for form in FORMS), dict(operator="sinkhorn", tau=None, form="quantile"), dict(operator="bitonic", tau=None), dict(samples=2, form="expected", operator="neuralsort"), dict(samples=2, form="picture")])
def test_every_form_runs_and_repeats_itself(changes, tmp_path):
    config = replace(TINY, **changes)
    first = config.run(tmp_path / "a", threads=1)
    assert math.isfinite(first["curve"][-1]["loss"]) and first["steps"] == 8 and set(first["test"]) == {"MSE", "Spearman", "found"}
    assert numbers(first) == numbers(config.run(tmp_path / "b", threads=1))


def test_the_unit_scales_the_answers():
    torch.manual_seed(0)
    one, many = (MedianTask(replace(TINY, unit=unit), (8, 8)) for unit in (1.0, 50.0))
    many.load_state_dict(one.state_dict())
    x = torch.rand(2, 3, 1, 8, 8)
    torch.testing.assert_close(50 * one.worth(x), many.worth(x))
    torch.testing.assert_close(50 * one.marks(x), many.marks(x))            # so that a temperature in the unit of the numbers suits both
    assert torch.equal(one(x)[1], many(x)[1])


def test_chance_is_the_error_of_the_best_constant():
    g = torch.Generator().manual_seed(0)
    medians = torch.randint(100, (100_000, 5), generator=g).double().median(-1).values
    assert MedianTask(replace(TINY, n=5, digits=2), (16, 8)).chance["MSE"] == pytest.approx(medians.var().item(), rel=0.03)


def test_the_papers_temperatures():
    assert [median_tau("neuralsort", n) for n in (5, 7, 9, 15, 21)] == [1024, 1024, 512, 1024, 1024]
    assert median_tau("sinkhorn", 5, top=9999) == 0.1


def test_the_grid_holds_the_papers_table():
    configs = median_grid("paper")
    assert {(c.n, c.operator, c.samples) for c in configs} >= {(n, o, s) for n in (5, 9, 15) for o in ("softsort", "neuralsort") for s in (0, 5)}
    assert all(c.unit == 1 and c.batch == 5 and c.steps == 275_000 and c.shrink == 1 for c in configs) and len(set(configs)) == len(configs)
    assert {(c.n, c.operator, c.samples) for c in configs if c.form == "picture"} == {(n, o, s) for n in (5, 9, 15) for o in ("softsort", "neuralsort") for s in (0, 5)}


def test_the_preset_paper_is_the_protocol():
    c = MedianConfig.from_preset("paper", n=9, operator="neuralsort", samples=5)
    assert (c.data, c.convention, c.digits, c.lr, c.schedule, c.batch, c.width, c.shrink, c.unit) == ("mnist", "stacked", 4, 0.001, "constant", 5, 32, 1, 1.0)
    assert (c.steps, c.epoch, c.best, c.tau) == (100 * 2750, 2750, ("MSE", "min"), None) and median_tau(c.operator, c.n, True) == 512


def test_the_search_tries_the_papers_temperatures():
    search = median_search("paper")
    assert MEDIAN_TAUS == (128, 256, 512, 1024, 2048, 4096) and len(search) == len(set(search)) == 3 * 4 * 6
    assert {c.tau for c in search} == set(MEDIAN_TAUS) and {c.form for c in search} == {"picture"}


@pytest.mark.parametrize("select", ["MSE", "Spearman"])
def test_the_figure_that_chooses_the_weights(select, tmp_path):
    result = replace(TINY, steps=24, epoch=4, select=select).run(tmp_path, threads=1)
    better = min if select == "MSE" else max
    assert result["best_step"] == better(result["curve"], key=lambda p: p[select])["step"]
