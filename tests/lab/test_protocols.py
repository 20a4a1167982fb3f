"""The preset `paper` of every experiment is the protocol that its paper, or the paper's own code, describes."""
from collections import Counter

import pytest

from softsortlib.lab.cli import load_experiments
from softsortlib.lab.grid import GRIDS

load_experiments()


def of(name):
    "The runs of a table in the preset `paper`."
    return GRIDS[name]("paper")


def values(configs, field):
    "What a field is in some of the runs."
    return {getattr(c, field) for c in configs}


def everywhere(configs, **settings):
    "Each of the settings holds in all runs."
    wrong = {field: values(configs, field) for field, value in settings.items() if values(configs, field) != {value}}
    assert not wrong, f"wanted {settings}, found {wrong}"


# Grover et al. 2019 and Prillo & Eisenschlos 2020: 55,000 pictures, 20 sets a batch, four digits a number
EPOCH = 55_000 // (4 * 20)


def test_sorting_stacked():
    runs = of("sort")
    assert Counter(c.n for c in runs if c.operator == "softsort" and not c.samples) == {n: 10 for n in (3, 5, 7, 9, 15)}
    everywhere(runs, convention="stacked", data="mnist", digits=4, batch=20, lr=0.005, schedule="constant", dropout=0.0,
               width=32, shrink=1, steps=100 * EPOCH, epoch=EPOCH)
    assert values([c for c in runs if c.samples], "samples") == {5}
    from softsortlib.lab.sorting import build_operator
    for c in runs:
        if c.operator in ("softsort", "neuralsort") and not c.samples:
            assert build_operator(c).tau == (1024 if c.n <= 7 else 128)


ROW = dict(convention="row", data="mnist", digits=4, batch=100, lr=10 ** -3.5, width=32, shrink=1)       # Petersen et al. 2021, section 5.1


def test_sorting_side_by_side():
    runs = of("sort_row")
    everywhere(runs, **ROW, steps=1_000_000, art_lambda=0.25)
    assert values(runs, "n") == {2, 3, 4, 5, 7, 8, 9, 15, 16, 32} and values(runs, "seed") == set(range(5))
    from softsortlib.networks import default_steepness
    assert [default_steepness("odd_even", n) for n in (4, 32)] == [8, 64]
    assert [default_steepness("bitonic", n) for n in (4, 32)] == [2 * 3, 5 * 6]


def test_ablations_of_the_networks():
    art, lam, steep = of("art"), of("art_lambda"), of("steepness")
    for runs in (art, lam, steep):
        everywhere(runs, **ROW)
    assert {(c.n, c.art_lambda) for c in art} == {(n, x) for n in (4, 32) for x in (0.0, 0.25)} and values(art, "seed") == set(range(5))
    assert values(lam, "n") == {8, 16} and min(values(lam, "art_lambda")) == 0 and max(values(lam, "art_lambda")) >= 0.95
    assert values(steep, "n") == {16} and {1 / t for t in values(steep, "tau")} == {10, 15, 20, 25, 30, 35, 40}


def test_large_sets():
    runs = of("sort_large")
    everywhere(runs, **{k: v for k, v in ROW.items() if k != "batch"}, operator="bitonic", steps=10_000)
    assert Counter(c.seed for c in runs) == {seed: 5 * 12 for seed in range(10)}
    assert {round(1 / t, 9) for t in values(runs, "tau")} == {30, 32.5, 35, 37.5, 40}
    cells = {(c.n, c.batch, c.art_lambda) for c in runs}
    sizes = (32, 64, 128, 256, 512, 1024)
    assert cells == {(n, 4096 // n, 0.4) for n in sizes} | {(n, 4, 0.4) for n in sizes} | {(32, 128, 0.25)}


def test_street_numbers():
    from softsortlib.lab.svhn import SvhnConfig
    c = SvhnConfig.from_preset("paper")
    assert (c.steps, c.batch, c.lr, c.width, c.shrink) == (1_000_000, 100, 10 ** -3.5, 32, 1)
    assert values(of("svhn"), "n") == {2, 4, 8, 16, 32}


def test_median():
    from softsortlib.lab.median import median_tau
    runs = of("median")
    everywhere(runs, data="mnist", steps=100 * (55_000 // (4 * 5)), epoch=55_000 // (4 * 5), batch=5, lr=0.001, width=32, shrink=1)
    taus = {5: (1024, 2048, 2048, 4096), 9: (512, 512, 2048, 2048), 15: (1024, 4096, 256, 2048)}    # Prillo & Eisenschlos, table of appendix
    kinds = [("neuralsort", False), ("neuralsort", True), ("softsort", False), ("softsort", True)]
    for n, row in taus.items():
        for (operator, noisy), tau in zip(kinds, row):
            some = [c for c in runs if (c.n, c.operator, c.samples > 0) == (n, operator, noisy) and c.form != "quantile"]
            assert some and {c.tau or median_tau(c.operator, c.n, c.samples) for c in some} == {tau}, (n, operator, noisy)


def test_neighbours():
    runs = of("knn_search")
    everywhere(runs, batch=100, candidates=100)
    for data in ("mnist", "fashion", "cifar10"):
        some = [c for c in runs if c.data == data]
        assert {(c.k, c.tau, c.lr) for c in some} == {(k, tau, lr) for k in (1, 3, 5, 9) for tau in (1, 4, 16, 64, 128, 512) for lr in (1e-3, 1e-4, 1e-5)}
        train = 45_000 if data == "cifar10" else 55_000
        assert values(some, "steps") == {200 * train // 100}


def test_speed():
    runs = [c for c in of("speed") if c.task == "speed"]
    assert values(runs, "n") == {100, 500, 1000, 1500, 2000, 2500, 3000, 3500, 4000}
    everywhere(runs, batch=20, steps=100, lr=10.0, momentum=0.5, weight_decay=0.01)


def test_topk_classification():
    runs = of("topk")
    assert values(runs, "seed") == set(range(10)) and {(c.data, c.net) for c in runs} == {(d, net) for d in ("cifar10", "cifar100") for net in ("cnn", "resnet18")}
    assert {"ce", "topk"} <= values(runs, "loss") and values(runs, "k") >= {1}


@pytest.mark.parametrize("preset", ["long", "quick"])
def test_smaller_presets_change_sizes_and_never_the_task(preset):
    for name, task_fields in {"sort": ("convention", "digits", "data"), "sort_row": ("convention", "digits", "data")}.items():
        runs = GRIDS[name](preset)
        for field in task_fields:
            assert values(runs, field) == values(of(name), field)
