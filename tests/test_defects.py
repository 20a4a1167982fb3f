"""The defects that an attack of 36,000 cases found, each by the case that showed it: every test here failed on the code of that day.

What has a grid of its own is tested there too (softsortlib.testing, tests/<part>). Of the twenty, the cache of kernels (17) is in
engine/test_first_call.py, the command line (18) in lab/test_cli.py, types (20) in core/test_types.py.
"""
import copy
import io
import math
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import softsortlib
from softsortlib import (
    GaussianRank, LapSum, LaplaceRank, NeuralSort, Permutahedron, SigmoidRank, SinkhornSort, SoftSort, SortingNetwork, soft_quantile, soft_rank,
)
from softsortlib.losses import SoftKNeighborsClassifier, auc_loss, lambda_loss, listmle_loss, listnet_loss, precision_loss, slatk_loss, spearman_loss
from softsortlib.ranks import isotonic, lapsum_topk
from softsortlib.sampling import Perturbed, ranking_regret

METHODS = ["permutahedron", "sigmoid", "gaussian", "laplace", "softsort", "neuralsort", "lapsum"]


@pytest.mark.parametrize("method", METHODS)
def test_1_spearman_of_one_real_element_or_of_ties(method):
    "NaN for a set without an order, 1e18 for tied scores."
    s = torch.randn(2, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    spearman_loss(s, torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([[True, True], [True, False]]), method=method).backward()
    assert s.grad.isfinite().all()
    for y in (torch.zeros(3, 4), torch.arange(4.0).expand(3, 4)):
        s = torch.zeros(3, 4, requires_grad=True)
        spearman_loss(s, y, method=method).backward()
        assert s.grad.abs().max() < 100


def test_2_an_operator_is_pickled_copied_and_saved():
    for op in (SoftSort(), SoftSort(power=2), NeuralSort(), SinkhornSort(), SortingNetwork(), LapSum(), Permutahedron()):
        file = io.BytesIO()
        torch.save(op, file)
        file.seek(0)
        for other in (pickle.loads(pickle.dumps(op)), copy.deepcopy(op), torch.load(file, weights_only=False)): assert repr(other) == repr(op)


def test_3_the_own_quantiles_of_transport_are_interpolated():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    for kind in ("lower", "higher", "nearest", "midpoint"):
        got = soft_quantile(x, 0.4, interpolation=kind, method=SinkhornSort(1e-3))
        assert_close(got, x.quantile(0.4, interpolation=kind), atol=2e-2, rtol=0)


@pytest.mark.parametrize("n", [10, 30])
def test_4_hard_and_straight_through_of_a_transport_are_permutations(n):
    s = torch.randn(20, n, generator=torch.Generator().manual_seed(0))
    P = SinkhornSort()(s)
    assert torch.equal(P.hard(), s.argsort(-1))
    assert torch.equal(P.straight_through().to_dense().sum(-2), torch.ones(20, n))


def test_5_one_low_outlier_among_permutahedron_ranks():
    for far in (-1e16, -1e18):
        ranks = Permutahedron(1.0)(torch.tensor([far, 0.0, 0.5, 0.6, 2.0], dtype=torch.float64))
        assert_close(ranks, torch.tensor([1.0, 2.725, 3.225, 3.325, 4.725], dtype=torch.float64))
    x = torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
    assert (isotonic(x).diff() <= 0).all() or (isotonic(x).diff() >= 0).all()


@pytest.mark.parametrize("n", [3, 5, 8])
def test_6_neuralsort_beside_an_outlier_in_single_precision(n):
    s = torch.randn(n, generator=torch.Generator().manual_seed(0))
    s[0] = 1e16
    assert_close(NeuralSort(1.0)(s).to_dense().double(), NeuralSort(1.0)(s.double()).to_dense(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("make", [SoftSort, lambda tau: SoftSort(tau, power=2), NeuralSort, LapSum, SortingNetwork, SigmoidRank, GaussianRank, LaplaceRank, Permutahedron])
def test_7_the_smallest_number_as_a_score(make):
    for dtype in (torch.float32, torch.float64):
        for n in (2, 3, 5):
            s = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=dtype)
            s[1] = torch.finfo(dtype).min
            s.requires_grad_()
            out = make(tau=1.0)(s)
            out = out if isinstance(out, torch.Tensor) else out @ torch.arange(n).to(dtype)
            (g,) = torch.autograd.grad((out * torch.arange(1, n + 1)).sum(), s)
            assert out.isfinite().all() and not g.isnan().any()


def test_8_neighbours_by_an_operator_of_its_own_temperature():
    pytest.importorskip("sklearn")
    X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).numpy()
    SoftKNeighborsClassifier(2, method=SoftSort(0.2), max_iter=1, random_state=0).fit(X, np.arange(20) % 2)


def test_9_shapes_without_values():
    s = torch.empty(2, 5, device="meta")
    for op in (SigmoidRank(), GaussianRank(), LaplaceRank(), Permutahedron()): assert op(s).shape == (2, 5)
    assert Permutahedron().sort(s).shape == (2, 5)
    with torch.device("meta"): op = SortingNetwork()
    assert (op(torch.randn(3)) @ torch.randn(3)).isfinite().all()


@pytest.mark.parametrize("op", [LapSum(), SinkhornSort()])
def test_10_a_payload_of_no_columns(op):
    for n in (4, 200):
        s = torch.randn(2, n, requires_grad=True)
        for P in (op(s), op(s).mT):
            y = P @ torch.zeros(2, n, 0)
            y.sum().backward()
            assert y.shape == (2, n, 0)


def test_11_weights_of_tied_scores_sum_to_k():
    assert lapsum_topk(torch.full((60,), 1e6), 2, 1e-12).sum().item() == pytest.approx(2)
    s = torch.full((1, 60), 1e6)
    assert 0 <= precision_loss(s, torch.ones_like(s), k=2, method="lapsum", tau=1e-12) <= 1


def test_12_a_mean_of_large_numbers():
    for op in (SoftSort(1.0), SoftSort(1.0, power=2), NeuralSort(1.0), SortingNetwork(), LapSum(1.0)):
        y = op(torch.zeros(200)) @ torch.full((200,), 1e37)
        assert_close(y, torch.full((200,), 1e37), rtol=1e-4, atol=0)


def test_13_what_a_transport_does_not_differentiate_it_says_in_our_words():
    s = torch.randn(2, 4)
    with pytest.raises(Exception, match="unrolled"): torch.func.jvp(lambda s: SinkhornSort(power=torch.cosh)(s) @ s, (s,), (s,))
    f = lambda s: SinkhornSort(gradient="unrolled", tolerance=1e-3)(s) @ s
    assert_close(torch.func.vmap(f)(s), torch.stack([f(r) for r in s]), atol=1e-4, rtol=1e-4)


def test_14_a_row_by_a_number_of_numpy_and_a_new_axis():
    P = SoftSort()(torch.randn(4))
    assert_close(P[..., np.int64(1), :], P[..., 1, :])
    with pytest.raises((TypeError, IndexError), match="rows must be"): P[..., None, :]


def test_15_a_wrong_word_is_answered_with_the_right_ones():
    s = torch.randn(4)
    with pytest.raises(ValueError, match="did you mean 'permutahedron'.*laplace"): soft_rank(s, method="permutahedrn")
    with pytest.raises(ValueError, match="triton"): SoftSort(backend="triton")(s) @ s
    with pytest.raises(TypeError, match="tolerance must be a number, got str"): SinkhornSort(tolerance="a")


def test_16_every_operator_is_at_the_face():
    assert {"SoftSort", "NeuralSort", "SinkhornSort", "SortingNetwork", "LapSum", "SigmoidRank", "GaussianRank", "LaplaceRank", "Permutahedron"} <= set(softsortlib.__all__)


def test_19_half_precision_says_where_its_ranks_end():
    with pytest.raises(ValueError, match="float16"): SigmoidRank()(torch.zeros(70_000, dtype=torch.float16))
    assert math.isfinite(SigmoidRank()(torch.zeros(60_000, dtype=torch.float16)).max())


@pytest.mark.parametrize("loss", [listmle_loss, lambda_loss, partial(listnet_loss, target="share"), partial(slatk_loss, k=2)])
def test_a_difference_that_overflows_when_it_is_divided_by_tau(loss):
    s = torch.tensor([[-2e34, -1.6, 2e34], [-2e34, 0.4, 2e34]], requires_grad=True)
    for y in ([[1, 1, 2], [1, 2, 1]], [[0, 1, 2], [0, 2, 1]]):
        if getattr(loss, "func", None) is slatk_loss: y = [[int(v == max(row)) for v in row] for row in y]
        out = loss(s, torch.tensor(y), tau=1e-5, reduction="none")
        assert not out.isnan().any() and not torch.autograd.grad(out.sum(), s)[0].isnan().any()


def test_scores_that_overflow_when_they_are_divided_by_tau():
    s = torch.tensor([[-4e300, 0.5, 4e300]], dtype=torch.float64, requires_grad=True)
    assert_close(Perturbed(1e-9, 20)(s).to_dense().sum(-1), torch.ones(1, 3, dtype=torch.float64))
    for y, loss in (([[0, 0, 1]], 0.0), ([[1, 0, 0]], None)):
        found = auc_loss(s, torch.tensor(y), tau=1e-9)
        assert not found.isnan() and (loss is None or found == loss)


def test_a_ranking_that_is_right_has_no_regret():
    s = 1e28 * torch.randn(1, 70, generator=torch.Generator().manual_seed(0))
    assert ranking_regret(s, s.argsort(-1).argsort(-1) + 1.0, tau=1e-9) == 0
