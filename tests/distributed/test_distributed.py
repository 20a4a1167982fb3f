"""Functions and losses of scores in parts are those of one process that holds everything."""
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from softsortlib.distributed.scaling import Costs, modelled_seconds

FUNCTIONS = ("soft_sort", "soft_rank", "soft_topk", "soft_quantile", "soft_median")
RANKS = ("laplace", "sigmoid", "gaussian", "permutahedron")
LOSSES = {"spearman_loss": {}, "spearman_loss:laplace": dict(method="laplace"), "spearman_loss:permutahedron": dict(method="permutahedron"), "approx_ndcg_loss:laplace": dict(method="laplace"), "approx_ndcg_loss": {},
          "precision_loss": dict(k=4, iterations=3), "recall_loss": dict(k=4, iterations=2), "kendall_loss": {}, "kendall_loss:sigmoid": dict(kind="sigmoid", gather=True), "approx_ndcg_loss:at 5": dict(k=5)}
BOUND = {torch.float64: 1e-12, torch.float32: 1e-6}


def check(results, dtype=torch.float64):
    for result in results:
        assert not isinstance(result, str), result
        assert max(result) < BOUND[dtype], results


@pytest.mark.parametrize("P", (1, 2, 3, 4))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(processes, name, P):
    for options in (dict(tau=0.3), dict(tau=0.3, hard=True), dict(tau=0.3, gather=True)):
        check(processes("function", P, name=name, options=options))


@pytest.mark.parametrize("name", ("soft_sort", "soft_rank"))
def test_without_a_temperature_it_follows_the_spread_of_the_whole(processes, name):
    "The quartiles stand at scores, or a quarter, a half or three quarters of the way to the next."
    for n in (9, 10, 11, 12):
        for P in (1, 3): check(processes("function", P, name=name, n=n))


@pytest.mark.parametrize("split", ("alone", "first", "holes"))
@pytest.mark.parametrize("name", ("soft_sort", "soft_rank", "soft_quantile"))
def test_parts_may_be_empty(processes, name, split):
    for P in (2, 3, 4): check(processes("function", P, name=name, split=split, options=dict(tau=0.3)))


@pytest.mark.parametrize("kind", ("tied", "few", "falling", "rising", "wide"))
@pytest.mark.parametrize("name", ("soft_sort", "soft_rank", "soft_topk"))
def test_any_scores(processes, name, kind):
    for P in (2, 4): check(processes("function", P, name=name, kind=kind, options=dict(tau=0.3, descending=True) if name != "soft_topk" else dict(tau=0.3, largest=False)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches_masks_and_single_precision(processes, name):
    check(processes("function", 3, name=name, batch=(2, 3), options=dict(tau=0.3)))
    check(processes("function", 3, name=name, batch=(2, 3), masked=True, options=dict(tau=0.3)))
    check(processes("function", 2, name=name, batch=(2,), masked=True, options=dict(tau=0.3, gather=True)))
    check(processes("function", 4, name=name, n=200, dtype=torch.float32, options=dict(tau=0.3)), torch.float32)
    check(processes("function", 4, name=name, n=2, options=dict(tau=0.3)) if name != "soft_topk" else [])


@pytest.mark.parametrize("method", RANKS)
def test_rank_operators(processes, method):
    for P in (1, 2, 3, 4): check(processes("function", P, name="soft_rank", n=90, options=dict(method=method, tau=0.3)))
    for kind in ("tied", "few", "falling", "wide"): check(processes("function", 3, name="soft_rank", kind=kind, n=90, options=dict(method=method, tau=0.3)))
    for split in ("alone", "holes"): check(processes("function", 4, name="soft_rank", split=split, options=dict(method=method, tau=0.3)))
    for tau in (1e-2, 30.0): check(processes("function", 4, name="soft_rank", batch=(2,), masked=True, options=dict(method=method, tau=tau)))
    check(processes("function", 3, name="soft_rank", n=200, dtype=torch.float32, options=dict(method=method, tau=0.3)), torch.float32)
    check(processes("function", 2, name="soft_rank", kind="few", options=dict(method=method, tau=0.3, hard=True)))


@pytest.mark.parametrize("name", ("soft_sort", "soft_rank"))
def test_blocks_join_across_seams(processes, name):
    for tau in (1e-3, 0.01, 0.1, 1.0, 100.0):                     # from single scores to one block of all
        for P in (1, 2, 3, 4): check(processes("function", P, name=name, n=90, options=dict(method="permutahedron", tau=tau)))
    for kind in ("tied", "few", "falling", "rising", "wide", "stairs"):
        for split in ("random", "holes"): check(processes("function", 4, name=name, kind=kind, split=split, level=True, options=dict(method="permutahedron", tau=1.0, descending=True)))
    check(processes("function", 3, name=name, batch=(2, 2), masked=True, options=dict(method="permutahedron", tau=0.1)))
    check(processes("function", 4, name=name, n=20_000, options=dict(method="permutahedron", tau=1e-4)))
    check(processes("function", 2, name=name, n=200, dtype=torch.float32, options=dict(method="permutahedron", tau=0.05)), torch.float32)
    check(processes("function", 2, name=name, options=dict(method="permutahedron", tau=0.3, hard=True)))


@pytest.mark.parametrize("name", LOSSES)
def test_losses(processes, name):
    options = LOSSES[name]
    name = name.split(":")[0]
    for P in (1, 2, 3, 4): check(processes("loss", P, name=name, options=dict(options, tau=0.3)))
    for split in ("alone", "holes"): check(processes("loss", 4, name=name, split=split, options=dict(options, tau=0.3)))
    for kind in ("tied", "few"): check(processes("loss", 3, name=name, kind=kind, options=dict(options, tau=0.3)))
    check(processes("loss", 3, name=name, batch=(2, 2), masked=True, options=dict(options, tau=0.3, reduction="none")))
    check(processes("loss", 2, name=name, batch=(3,), options=dict(options, tau=0.3, gather=True)))
    check(processes("loss", 2, name=name, dtype=torch.float32, options=dict(options, tau=0.3)), torch.float32)


def test_a_wide_gap_behind_the_first_k(processes):
    "The k-th score and the next may be a thousand temperatures apart: the threshold lies between them."
    for P in (1, 3): check(processes("loss", P, name="approx_ndcg_loss", kind="wide", options=dict(k=5, tau=1e-3)))


METRICS = {"SpearmanLoss": dict(tau=0.3), "KendallLoss": dict(tau=0.3), "ApproxNDCGLoss": dict(tau=0.3, k=5), "PrecisionLoss": dict(tau=0.3, k=4), "RecallLoss": dict(tau=0.3, k=4), "AUCLoss": {}, "ReciprocalRankLoss": {}}


@pytest.mark.parametrize("name", METRICS)
def test_metrics(processes, name):
    "The hard metric of each loss in parts, by group= and by the loss's own group; the soft one where the loss has a form in parts."
    for P in (1, 2, 3, 4): check(processes("metric", P, name=name, options=METRICS[name]))
    check(processes("metric", 4, name=name, split="holes", options=METRICS[name]))
    check(processes("metric", 3, name=name, batch=(2, 2), masked=True, options=METRICS[name], reduction="none"))
    check(processes("metric", 2, name=name, batch=(3,), options=METRICS[name], reduction="count"))


def test_likelihood_of_an_order(processes):
    for P in (1, 2, 3, 4): check(processes("likelihood", P, options=dict(tau=0.3)))
    for split in ("alone", "first", "holes"): check(processes("likelihood", 4, split=split, options=dict(tau=0.3)))
    for kind in ("tied", "few", "falling", "wide"): check(processes("likelihood", 3, kind=kind, batch=(2,), options=dict(tau=0.3, reduction="none")))
    check(processes("likelihood", 3, batch=(2, 2), options=dict(tau=0.3, gather=True)))
    check(processes("likelihood", 2, n=200, dtype=torch.float32, options=dict(tau=0.3)), torch.float32)


def test_pairs_far_and_near(processes):
    cases = [dict(P=2), dict(P=4, split="holes"), dict(P=3, kind="tied"), dict(P=3, kind="few"), dict(P=3, batch=(2,), masked=True), dict(P=4, kind="wide"), dict(P=4, options=dict(tau=1e-3))]
    for case in cases:                                            # beyond some five hundred scores, one process and several both sum by kernels
        P, options = case.pop("P"), case.pop("options", dict(tau=0.3))
        for value, gradient in processes("loss", P, name="kendall_loss", n=700, options=options, **case): assert value < 1e-13 and gradient < 1e-9, (case, value, gradient)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nan_stays_in_its_set(processes, name):
    results = processes("confined", 3, name=name, options=dict(tau=0.3))
    assert all(error < 1e-12 and nan for error, nan in results), results
    if name == "soft_rank": assert all(error < 1e-12 for error, _ in processes("confined", 3, name=name, options=dict(method="permutahedron", tau=0.3)))


@pytest.mark.parametrize("what", ("shape", "dtype", "tau", "method", "function"))
def test_a_difference_is_named_on_all(processes, what):
    for message in processes("disagree", 3, what=what):
        assert message.startswith("ValueError") and f"disagree on {what}" in message and "on rank 0, 1" in message and "on rank 2" in message


def test_an_error_of_one_ends_all(processes):
    *others, own = processes("disagree", 3, what="error")
    assert own.startswith("TypeError: x must be floating point")
    assert all("rank 2 of the group raised TypeError: x must be floating point" in message for message in others)
    assert all("disagree on" in message for message in processes("disagree", 2, what="dim"))
    assert all("gather=True" in message for message in processes("disagree", 2, what="operator"))
    assert all("at least one element" in message for message in processes("disagree", 2, what="empty"))


@pytest.mark.parametrize("P", (2, 4))
@pytest.mark.parametrize("name", ("soft_sort", "soft_rank"))
def test_scores_travel_once_each_way(processes, name, P):
    n = 40_000
    for backward, ways in ((False, 2), (True, 4)):
        got = processes("traffic", P, name=name, n=n, backward=backward, options=dict(tau=0.01))
        assert sum(g["all_to_all"] for g in got) <= ways * n, got
        assert all(g["small"] <= 20 * P * P + 40 * P for g in got), got


@pytest.mark.parametrize("P", (2, 3, 4))
def test_no_process_gets_much_more_than_its_share(processes, P):
    for kind in ("normal", "tied", "few", "falling", "wide"):
        for split in ("random", "alone", "holes"):
            shares = processes("share", P, kind=kind, split=split, n=3001)
            assert sum(shares) == 3001 and max(shares) <= 1.25 * 3001 / P + 1, (kind, split, shares)


def test_second_derivatives_and_those_who_want_none(processes):
    check(processes("second", 3))
    assert processes("one_learns", 3) == [True] * 3


@pytest.mark.parametrize("P", (1, 2, 3))
def test_second_derivatives_of_losses(processes, P):
    for errors in processes("second_of_losses", P): assert max(errors) < 1e-10, errors     # boxes lose a digit with each derivative


@pytest.mark.parametrize("P", (1, 3))
def test_scores_that_are_all_the_same_have_no_correlation(processes, P):
    for found in processes("tied", P):
        for loss, slope in found: assert abs(loss - 1) < 1e-6 and slope < 100, found


@pytest.mark.parametrize("masked", (False, True))
@pytest.mark.parametrize("name", ("spearman_loss", "kendall_loss", "approx_ndcg_loss", "precision_loss"))
def test_a_training_takes_the_same_steps_on_two_processes(processes, name, masked):
    options = dict(k=2) if name == "precision_loss" else {}
    one, two = (processes("training", P, name=name, masked=masked, options=options) for P in (1, 2))
    for values in two:
        assert not isinstance(values, str), values
        torch.testing.assert_close(torch.tensor(values), torch.tensor(one[0]), rtol=1e-10, atol=1e-12)


def test_the_tutorial_is_the_same_run_on_any_number_of_processes(processes):
    cells = json.loads((Path(__file__).parents[2] / "nbs/tutorials/ranking_across_devices.ipynb").read_text())["cells"]
    program = next("".join(c["source"]) for c in cells if "".join(c["source"]).startswith("program ="))
    space = {}
    exec(program, space)
    one, *several = ([curves for curves in processes("towers", P, program=space["program"], steps=4)] for P in (1, 2, 4))
    for curves in several:
        for curve in curves:
            assert not isinstance(curve, str), curve
            for name in ("spearman", "ndcg"): torch.testing.assert_close(torch.tensor(curve[name]), torch.tensor(one[0][name]), rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", ("soft_sort", "soft_rank", "soft_quantile"))
def test_a_dtensor_keeps_its_placement(processes, name):
    for P in (2, 4): check(processes("sharded", P, name=name))


DIES = """
import datetime, os, sys, time, torch, torch.distributed as dist, softsortlib
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2, timeout=datetime.timedelta(seconds=10))
dist.barrier()
if rank == 1: time.sleep(1), os._exit(1)          # when the other has left the barrier, too
try: softsortlib.soft_rank(torch.zeros(5), group=dist.group.WORLD)
except RuntimeError as e: print(str(e)[:120])
os._exit(0)
"""


def test_a_process_that_died_is_no_hang(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", DIES]
    with subprocess.Popen([*command, "1", str(tmp_path / "store")]):
        said = subprocess.run([*command, "0", str(tmp_path / "store")], capture_output=True, text=True, timeout=60).stdout
    assert said.startswith("soft_rank: a process of the group died, or did not make this call"), said


def test_the_modelled_time_of_a_sort():
    "(D5.1), term by term, in numbers that add up to nothing else."
    costs = Costs(sort=2.0, scan=3.0, bandwidth=5.0, latency=7.0, messages=11)
    assert modelled_seconds(32, 1, costs) == 2 * 32 * 5 + 3 * 32
    assert modelled_seconds(32, 4, costs) == pytest.approx(2 * 8 * 3 + 3 * 8 + 16 * 8 * (3 / 4) / 5 + 11 * 7)
