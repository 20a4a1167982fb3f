"""What the library would launch on a GPU, counted where there is none (see pretend.py).

A call may not launch more than is recorded in nbs/results/launches.json (nbs/benchmarks/launches.ipynb measures it where RUN = "paper"), and
what has a fixed number of steps may not make the host wait, nor copy from it.
"""
import json
from pathlib import Path

import pytest
import torch
from pretend import both_ways, cases, on_a_gpu, pretend

import softsortlib.engine.dispatch as dispatch
from softsortlib import SoftSort, SortingNetwork
from softsortlib.networks.comparators import sorting_network

RECORD = Path(__file__).parent.parent / "nbs/results/launches.json"
ROWS = {row["call"]: row for row in json.loads(RECORD.read_text())["rows"]}
CASES = {case.name: case for case in cases()}
QUICK = sorted(name for name in CASES if (ROWS.get(name, {}).get("launches") or 0) < 1000)          # what iterates for thousands takes seconds to count


def test_every_case_is_recorded(): assert sorted(CASES) == sorted(ROWS)


@pytest.fixture
def by_launch_alone(monkeypatch):
    "Whoever starts a kernel of Triton in another way than by `launch` fails."
    jit = pytest.importorskip("triton.runtime.jit")
    def start(kernel, grid): raise AssertionError(f"{kernel.__name__} is not started by launch")
    monkeypatch.setattr(jit.KernelInterface, "__getitem__", start)


@pytest.mark.parametrize("name", QUICK)
def test_no_more_launches_than_recorded(name, by_launch_alone):
    found, row = CASES[name].run(), ROWS[name]
    if row["waits"]:
        assert found["waits"], f"{name} makes the host wait no more: record it"
        return
    assert not found["waits"], found["waits"]
    assert found["launches"] <= row["launches"], (found, row)


CEILINGS = {                       # of a forward and a backward pass together
    **{f"SoftSort, {what}, n = {n}": most for what, most in (("P @ x", 14), ("log_prob", 30)) for n in ("1,000", "200,000")},       # the likelihood is a formula around the scan
    **{f"LapSum, {product}, n = {n}": most for product, most in (("P @ x", 175), ("P.mT @ x", 210), ("log_prob", 245)) for n in ("1,000", "200,000")},    # plain torch around the scan
    "LapSum, to_dense, n = 1,000": 285, **{f"{name}, n = {n}": 110 for name, n in (("lapsum_topk", "1,000"), ("lapsum_topk", "200,000"), ("LapSumTopK", "1,000"), ("soft_topk_mask:lapsum", "1,000"))},
    **{f"{network}, {product}, n = 1,000": 12 for network in ("OddEven", "Bitonic", "ErrorFreeNetwork") for product in ("P @ x", "P.mT @ x", "to_dense")},
    **{f"NeuralSort, {what}, n = 1,000": 14 for what in ("P @ x", "P.mT @ x", "P[..., :10, :] @ x", "log_prob", "to_dense")},
    **{f"{name}, to_dense, n = 1,000": 10 for name in ("SoftSort", "SoftSortOfSquares")},
    **{f"{loss}, n = 1,000": 400 for loss in ("neural_ndcg_loss", "precision_loss", "recall_loss")},               # forty-one steps of the scan each way
    **{f"SinkhornSort, 10 rounds{how}, {what}, n = 1,000": 760 for how in ("", " of power 1") for what in ("P @ x", "log_prob")},
    **{f"SinkhornSort, 10 rounds unrolled, {what}, n = 1,000": 360 for what in ("P @ x", "log_prob")},     # the start of the rounds has a derivative too
    "lambda_loss, n = 1,000": 160, "lambda_loss:precision, n = 1,000": 110,                                # differences are taken before they are divided by tau
    "SigmoidRank, n = 20,000": 30, "Permutahedron, n = 1,000": 60, "Permutahedron, n = 200,000": 60,
    **{f"EntropicPermutahedron, {what}": 65 for what in ("n = 200,000", "masked, n = 1,000")},              # a block is summed in double precision
    **{f"{mask}, n = 1,000": 60 for mask in ("soft_topk_mask:sinkhorn", "soft_topk_mask:sparse", "SinkhornTopK", "SparseTopK")}, "TopKRouter, n = 1,000": 90,
}


@pytest.mark.parametrize("name", CEILINGS)
def test_ceilings(name): assert ROWS[name]["launches"] <= CEILINGS[name]


def test_the_guard_sees_what_it_forbids():
    "Each fault is seen: a wait, a boolean index, a list of numbers, a tensor of the host."
    s = pretend(5)
    for wrong in (lambda: s.max().item(), lambda: s[s > 0], lambda: bool(s.any())):
        with pytest.raises((RuntimeError, NotImplementedError)), on_a_gpu(): wrong()
    for wrong in (lambda: s * torch.tensor(2.0, device=s.device), lambda: s[[0, 2]], lambda: torch.arange(5.0).to(s.device)):
        with on_a_gpu() as seen: wrong()
        assert seen.faults
    with on_a_gpu() as seen: (s > 0).sort()
    assert seen.faults
    with on_a_gpu() as seen: (s * 2 + 1).view(1, 5)
    assert seen.names() == ["mul", "add"] and not seen.faults


def test_every_launch_is_on_the_device_of_its_tensors(monkeypatch):
    "On the current device a kernel would meet addresses of another one."
    entered = []

    class Kernel:
        def __getitem__(self, grid): return lambda **arguments: entered.append("run")

    class Device:
        def __init__(self, device): self.device = device
        def __enter__(self): entered.append(self.device)
        def __exit__(self, *error): entered.append("left")

    class OnSecond:
        device = torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "device", Device)
    dispatch.launch(Kernel(), 1, OnSecond(), n=1)
    assert entered == [torch.device("cuda:1"), "run", "left"]


def test_a_kernel_that_is_started_in_another_way_is_seen(by_launch_alone):
    import softsortlib.rowwise.rows_triton as kernels
    from compiled import jitted
    for name in sorted(jitted(kernels))[:1]:
        with pytest.raises(AssertionError, match=name): getattr(kernels, name)[(1,)]()


@pytest.mark.parametrize("kind", ["bitonic", "odd_even"])
@pytest.mark.parametrize("swaps", ["soft", "error_free"])
def test_the_kernels_of_a_network_move_little(kind, swaps):
    """For one set and one column, at most three times what goes in and comes out, and a tenth more for the lanes and the seven numbers of each layer.

    In and out go scores or payload, and arguments of the comparators. Each tensor of a kernel counts once: it is no larger than the cache."""
    n = 300
    seen = both_ways(lambda s, x: SortingNetwork(kind, swaps=swaps)(s) @ x, pretend(1, n, grad=True), pretend(1, n, 1, grad=True))
    C = len(sorting_network(kind, n).need)
    lanes = dict(_see=1, _see_backward=1, _forward=2, _backward=3)
    comparators = dict(_see=1, _see_backward=1, _forward=1)
    for k in seen.kernels:
        name, tensors = k.kernel.__name__, {id(a): a for a in k.arguments.values() if isinstance(a, torch.Tensor)}
        least = 4 * n * lanes.get(name, 0) + 4 * C * comparators.get(name, 3)
        moved = sum(a.numel() * a.itemsize for a in tensors.values())
        assert moved <= 3.1 * least, (name, moved / least)
    assert {k.kernel.__name__ for k in seen.kernels} >= {"_see", "_see_backward", "_forward", "_backward"}


@pytest.mark.parametrize("batch, d", [(70_000, 1), (1, 70_000), (1, 1 << 21)])
def test_a_grid_has_one_axis(batch, d):
    "The others end at 65,535, which a batch, a payload or a matrix of so many rows reaches."
    seen = both_ways(lambda s, x: SoftSort(0.1)(s) @ x, pretend(batch, 300, grad=True), pretend(batch, 300, d, grad=True))
    assert all(isinstance(k.programs, int) and k.programs < 2**31 for k in seen.kernels) and seen.kernels


def test_masked_calls_sort_no_bool():
    "Torch 2.4 refuses to on a GPU."
    mask = torch.ones(2, 300, dtype=torch.bool, device="meta")
    for op in (SoftSort(0.1), SortingNetwork()):
        for f in (lambda s: op(s, mask) @ s, lambda s: op(s, mask).hard()):
            assert not both_ways(f, pretend(2, 300, grad=True)).faults
