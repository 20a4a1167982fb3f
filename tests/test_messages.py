"""What users get wrong is answered by a message that names the argument, says what came and what was expected."""
import pytest
import torch

from softsortlib import SoftSort, SortingNetwork, core, functional, losses, networks, ranks, transport

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
