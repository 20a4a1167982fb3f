"""What users get wrong is answered by a message that names the argument, says what came and what was expected."""
import numpy as np
import pytest
import torch

from softsortlib import Perturbed, Permutahedron, SinkhornSort, SoftSort, SortingNetwork, core, functional, losses, networks, ranks, rowwise, sampling, selection, transport

s, M = torch.tensor([[0.3, 2.0, -1.0]]), torch.eye(3)
sparse = torch.eye(3).to_sparse()
CALLS = {
    "permutation_matrix of scores": (lambda: core.permutation_matrix(s), TypeError, "perm must be a tensor of indices .torch.long., as argsort returns it, got torch.float32"),
    "permutation_matrix of a list": (lambda: core.permutation_matrix([1, 0]), TypeError, "perm must be .* got list"),
    "permutation_matrix of a number": (lambda: core.permutation_matrix(torch.tensor(1)), ValueError, "perm must have shape"),
    "a checker of a list": (lambda: core.is_row_stochastic([[1.0]]), TypeError, "P must be a tensor or a soft permutation.* got list: wrap it"),
    "a checker of an order": (lambda: core.is_permutation_matrix(torch.tensor([1, 0])), ValueError, "P must be a matrix.*got \\(2,\\)"),
    "a checker of no square": (lambda: core.is_unimodal_row_stochastic(torch.zeros(2, 3)), ValueError, "P must be a square matrix.*got \\(2, 3\\)"),
    "doubly stochastic of no square": (lambda: core.is_doubly_stochastic(torch.zeros(2, 3)), ValueError, "P must be a square matrix"),
    "a soft permutation taken for a tensor": (lambda: SoftSort()(s).sum(-1), AttributeError, "no attribute 'sum': P.to_dense\\(\\).sum is its matrix's"),
    "its transpose": (lambda: SoftSort()(s).mT.sum(-1), AttributeError, "no attribute 'sum': P.to_dense"),
    "numpy of a soft permutation": (lambda: np.asarray(SoftSort()(s)), TypeError, "call P.to_dense\\(\\).numpy"),
    "a product with numpy": (lambda: np.ones(3) @ SoftSort()(s), TypeError, "call P.to_dense\\(\\).numpy"),
    "a loop over the rows": (lambda: list(SoftSort()(s)), TypeError, "'SmallPermutation' object is not iterable"),
    "a name that no tensor has": (lambda: SoftSort()(s).sorted, AttributeError, "no attribute 'sorted'$"),
    "a sparse tau": (lambda: SoftSort(torch.ones(2).to_sparse()), TypeError, "tau must be a dense tensor, got torch.sparse_coo: call tau.to_dense"),
    "a list for a sigmoid": (lambda: SortingNetwork(sigmoid=["cauchy"]), ValueError, "sigmoid must be one of 'logistic'"),
    "swap_sigmoid of a number": (lambda: networks.swap_sigmoid(0.5), TypeError, "v must be a floating point tensor, got float"),
    "swap_sigmoid of a list": (lambda: networks.swap_sigmoid(s, ["cauchy"]), ValueError, "sigmoid must be one of"),
    "soft_matching tolerance": (lambda: transport.soft_matching(M, tolerance="small"), TypeError, "tolerance must be a number, got str"),
    "soft_matching max_iterations": (lambda: transport.soft_matching(M, max_iterations=-1), ValueError, "max_iterations must be a positive int, got -1"),
    "GumbelSinkhorn noise": (lambda: transport.GumbelSinkhorn(noise="much"), TypeError, "noise must be a number, got str"),
    "GumbelSinkhorn iterations": (lambda: transport.GumbelSinkhorn(iterations=0), ValueError, "iterations must be a positive int or None, got 0"),
    "GumbelSinkhorn tolerance": (lambda: transport.GumbelSinkhorn(tolerance=0), ValueError, "tolerance must be between 0 and 2"),
    "pair_sum step": (lambda: ranks.pair_sum(s, 1.0, s, "cauchy"), ValueError, "step must be one of 'logistic', 'normal', 'laplace', got 'cauchy'"),
    "pair_sum tau": (lambda: ranks.pair_sum(s, 0.0, s), ValueError, "tau must be positive"),
    "pair_sum of a list": (lambda: ranks.pair_sum([1.0], 1.0, s), TypeError, "s must be a torch.Tensor"),
    "pair_sum weights": (lambda: ranks.pair_sum(s, 1.0, s[:, :2]), ValueError, "v must have as many elements as s"),
    "a tensor for dim": (lambda: functional.soft_sort(s, torch.tensor(1.0)), TypeError, "dim must be an int, got Tensor"),
    "a sparse relevance": (lambda: losses.spearman_loss(M, sparse), TypeError, "relevance must be a dense tensor, got torch.sparse_coo: call relevance.to_dense"),
    "complex tie breakers": (lambda: losses.ideal_order(M, M.to(torch.complex64)), TypeError, "scores must be real, got torch.complex64"),
    "warm a number": (lambda: functional.warm(3), TypeError, "operators must be a name, several of them, or None, got int"),
    "warm one dtype that has no kernels": (lambda: functional.warm("softsort", torch.float16), TypeError, "dtypes may hold torch.float32 and torch.float64, got torch.float16"),
}


@pytest.mark.parametrize("call, kind, message", CALLS.values(), ids=CALLS)
def test_a_message_names_the_argument(call, kind, message):
    with pytest.raises(kind, match=message): call()


y, words = torch.tensor([[0.0, 2.0, 1.0]]), np.array(["a", "b"])
OPTIONS = {         # argument: calls that take a word for it
    "method": [lambda w: functional.soft_sort(s, method=w), lambda w: functional.soft_rank(s, method=w), lambda w: functional.soft_topk_mask(s, 1, method=w), lambda w: losses.spearman_loss(s, y, method=w),
               lambda w: losses.SoftKNN(1, method=w), core.get_operator, core.get_rank_operator, selection.get_topk_mask],
    "kind": [SortingNetwork, lambda w: networks.sorting_network(w, 3), lambda w: functional.tau_schedule(1.0, 0.1, 3, w), lambda w: losses.kendall_loss(s, y, kind=w), lambda w: losses.auc_loss(s, y > 1, kind=w),
             lambda w: losses.weighted_kendall_loss(s, y, kind=w), lambda w: losses.zero_one_loss(s, y > 1, kind=w)],
    "sigmoid": [lambda w: SortingNetwork(sigmoid=w), lambda w: networks.swap_sigmoid(s, w)],
    "backend": [lambda w: SoftSort(backend=w), lambda w: SortingNetwork(backend=w), lambda w: SinkhornSort(backend=w), lambda w: Permutahedron(backend=w)],
    "simplex": [lambda w: SoftSort(simplex=w), lambda w: rowwise.NeuralSort(simplex=w)],
    "interpolation": [lambda w: functional.soft_quantile(s, 0.5, interpolation=w)],
    "reduction": [lambda w: losses.spearman_loss(s, y, reduction=w), lambda w: losses.NeuralNDCGLoss(reduction=w)],
    "gain": [lambda w: losses.approx_ndcg_loss(s, y, gain=w)],
    "target": [lambda w: losses.listnet_loss(s, y, target=w)],
    "weighting": [lambda w: losses.listmle_loss(s, y, weighting=w), lambda w: losses.lambda_loss(s, y, weighting=w), lambda w: losses.weighted_kendall_loss(s, y, weighting=w)],
    "weights": [lambda w: losses.listmle_loss(s, y, weights=w), lambda w: losses.spearman_loss(s, y, weights=w), lambda w: losses.topk_loss(s, y > 1, weights=w)],
    "regularization": [lambda w: Permutahedron(regularization=w)],
    "gradient": [lambda w: SinkhornSort(gradient=w)],
    "squash": [lambda w: SinkhornSort(squash=w)],
    "noise": [lambda w: Perturbed(noise=w)],
    "step": [lambda w: ranks.pair_sum(s, 1.0, s, w)],
}


@pytest.mark.parametrize("name, k", [(name, k) for name, calls in OPTIONS.items() for k in range(len(calls))])
@pytest.mark.parametrize("wrong", [words, words[:1], ["mean", "sum"], torch.tensor([1.0, 2.0])], ids=["array", "array of one", "list", "tensor"])
def test_an_option_that_is_no_word_is_named(name, k, wrong):
    with pytest.raises((ValueError, TypeError), match=f"^{name} must be"): OPTIONS[name][k](wrong)


MAPS = [core.DensePermutation, core.TransposedPermutation, core.SampleMean, lambda w: rowwise.SoftSortPermutation(w, 1.0, torch.dist, False, torch.float32), lambda w: rowwise.LaplacePermutation(w, 1.0, torch.dist, False, torch.float32),
        lambda w: rowwise.NeuralSortPermutation(w, 1.0, False, torch.float32), lambda w: rowwise.SparseRows(w, "sparsemax"), lambda w: networks.NetworkPermutation(w, "bitonic", "cauchy", 1.0),
        lambda w: ranks.LapSumPermutation(w, 1.0), lambda w: sampling.OrderPermutation(w, w), lambda w: transport.TransportPermutation(w, s, s, s, s, s.argsort(-1), torch.float32)]


@pytest.mark.parametrize("make", MAPS)
@pytest.mark.parametrize("wrong", [[0.3, 2.0], np.zeros((3, 3)), None], ids=["list", "array", "none"])
def test_a_map_of_what_is_no_tensor_is_refused(make, wrong):
    with pytest.raises(TypeError, match="^(log_P|P|s|base|orders|K) must be a (Tensor|SoftPermutation|Gibbs), got (list|ndarray|NoneType)"): make(wrong)


@pytest.mark.parametrize("n, error, says", [(10**9, ValueError, "at most"), (-1, ValueError, "at least 0, the number of lanes, got -1"), (2.5, TypeError, "n must be an int, the number of lanes, got float"), (True, TypeError, "got bool")])
def test_a_network_of_an_impossible_number_of_lanes(n, error, says):
    for layers in (networks.odd_even_layers, networks.bitonic_layers):
        with pytest.raises(error, match=says): layers(n)
    with pytest.raises(error, match=says): networks.sorting_network("odd_even", n)
    if n == 10**9:
        with pytest.raises(ValueError, match="at most 32768 .* got 1000000: .* take 'bitonic' or SoftSort"): networks.odd_even_layers(10**6)
