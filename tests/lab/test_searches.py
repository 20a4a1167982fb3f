"""Searches for a temperature: the papers' grids, and the choice that validation makes."""
import importlib.util

import pytest

for extra in ("pytorch_lightning", "torchmetrics"):
    if not importlib.util.find_spec(extra): pytest.skip("the experiments extra is not installed", allow_module_level=True)

from softsortlib.lab.grid import GRIDS, crossed
from softsortlib.lab.searches import SORT_TAUS, chosen_tau, sort_search


def finished(tau, *figures): return {"config": {"tau": tau}, "curve": [{"EM": x, "MSE": x} for x in figures]}


def test_the_papers_grid():
    configs = sort_search("paper")
    assert SORT_TAUS == (1, 16, 128, 1024) and len(configs) == len(set(configs)) == 5 * 4 * 4
    assert {(c.n, c.operator, c.samples) for c in configs if c.tau == 16} == {(n, o, s) for n in (3, 5, 7, 9, 15) for o in ("softsort", "neuralsort") for s in (0, 5)}
    assert all(c.steps == 68_700 and c.batch == 20 and c.lr == 0.005 for c in configs)
    importlib.import_module("softsortlib.lab.median")
    assert {"sort_search", "median_search"} <= set(GRIDS)


def test_a_product_has_each_combination_once_and_its_last_axis_turns_fastest():
    runs = crossed(dict, n=(3, 5), how=[dict(operator="softsort", samples=0), dict(operator="bitonic")], tau=(1.0, 2.0))
    assert runs[:2] == [dict(n=3, operator="softsort", samples=0, tau=tau) for tau in (1.0, 2.0)] and len(runs) == 8
    assert [(r["n"], r["operator"]) for r in runs[::2]] == [(n, o) for n in (3, 5) for o in ("softsort", "bitonic")]


def test_the_best_point_of_a_curve_counts():
    runs = [finished(1.0, 0.2, 0.3), finished(16.0, 0.9, 0.1), finished(128.0, 0.9, 0.8)]
    assert chosen_tau(runs) == 16 and chosen_tau(runs, "MSE", higher=False) == 16 and chosen_tau(runs[::-1]) == 128
    with pytest.raises(ValueError, match="at least one run of the search"): chosen_tau([])
