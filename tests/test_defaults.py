"""Every function, operator, rank and loss with the least that it takes: numbers of the right shape, in the range that its docstring states, and a gradient that says something."""
import warnings

import pytest
import torch

from softsortlib import (
    GaussianRank, LapSum, LaplaceRank, NeuralSort, Permutahedron, Perturbed, SigmoidRank, SimpleTopK, SinkhornSort, SinkhornTopK, SoftSort, SortingNetwork, SparseTopK, Stochastic, ThresholdTopK,
    TopKRouter, losses, ranks, soft_argsort, soft_median, soft_permutation, soft_quantile, soft_rank, soft_sort, soft_topk, soft_topk_mask, soft_trimmed_mean,
)

SORTS = {"soft_sort": soft_sort, "soft_permutation": lambda x: soft_permutation(x) @ x, **{op.__name__: (lambda x, op=op: op()(x) @ x) for op in (SoftSort, NeuralSort, SinkhornSort, SortingNetwork, LapSum)}}
SAMPLES = {"Perturbed": lambda x: Perturbed()(x) @ x, "Stochastic": lambda x: Stochastic("softsort")(x) @ x}
REDUCED = {"soft_median": soft_median, "soft_trimmed_mean": soft_trimmed_mean, "soft_quantile": lambda x: soft_quantile(x, 0.3), "soft_topk": lambda x: soft_topk(x, 1)[0][..., 0]}
RANKS = {"soft_rank": soft_rank, **{op.__name__: (lambda x, op=op: op()(x)) for op in (SigmoidRank, GaussianRank, LaplaceRank, Permutahedron)}}
MASKS = {"soft_topk_mask": lambda x: soft_topk_mask(x, 1), "lapsum_topk": lambda x: ranks.lapsum_topk(x, 1), **{op.__name__: (lambda x, op=op: op(1)(x)) for op in (SimpleTopK, SinkhornTopK, SparseTopK, ThresholdTopK)},
         "TopKRouter": lambda x: TopKRouter(1)(x).weights}
LOSSES = {name: getattr(losses, name) for name in losses.__all__ if name.endswith("_loss")}
BINARY = {"precision_loss", "recall_loss", "average_precision_loss", "quantised_ap_loss", "auc_loss", "reciprocal_rank_loss", "slatk_loss"}
AT_ONE = {"precision_loss", "recall_loss", "slatk_loss"}       # k has no default
# Piecewise linear: where a set lies inside a piece, nothing changes. Two ranks have the correlation 1 or -1.
FLAT = {"Permutahedron", "SparseTopK", "TopKRouter", "quantised_ap_loss", "zero_one_loss", "topk_loss"}
AS_TWO = {"spearman_loss", "listnet_loss", "slatk_loss"}
# Without a tau the units of the scores cancel, and all pairs of two are the same but for their order.
UNITLESS = {"soft_argsort", "soft_permutation", *RANKS, *MASKS, "approx_ndcg_loss", "neural_ndcg_loss", "pirank_loss", "precision_loss", "recall_loss", "reciprocal_rank_loss", "spearman_loss"}
CASES = [(kind, n, batch, dtype) for kind in ("uniform", "normal", "tied", "constant") for n in (1, 2, 5, 300) for batch in ((), (0,), (3,)) for dtype in (torch.float32, torch.bfloat16)]


def scores(kind, n, batch, dtype):
    rng = torch.Generator().manual_seed(n)
    made = {"uniform": torch.rand, "normal": torch.randn, "tied": lambda *shape, generator: torch.randint(3, shape, generator=generator).float(), "constant": lambda *shape, generator: torch.ones(shape)}
    return made[kind](*batch, n, generator=rng).to(dtype).requires_grad_()


def grades(name, x):
    "The grades 0, 1, 2 in turn, or whether an element is relevant: every second."
    i = torch.arange(x.shape[-1]).expand(x.shape)
    if name in ("topk_loss", "zero_one_loss"): return torch.zeros(x.shape[:-1], dtype=torch.long)
    return i % 3 if name not in BINARY else i % 2 == 0


def called(name, x):
    "What the name gives for these scores, and its range."
    low, high = (x.detach().amin(-1, keepdim=True).float(), x.detach().amax(-1, keepdim=True).float()) if x.numel() else (0, 0)
    for kind, found in (("sort", SORTS), ("sample", SAMPLES), ("one", REDUCED)):
        if name in found:
            y = found[name](x)
            return y, (y.shape[:0] if kind == "sample" else x.shape if kind == "sort" else x.shape[:-1]), (low, high) if kind == "sort" else (x.detach().float().min(), x.detach().float().max()) if x.numel() else (0, 0)
    if name == "soft_argsort": return soft_argsort(x), x.shape, (0, x.shape[-1] - 1)
    if name in RANKS: return RANKS[name](x), x.shape, (1, x.shape[-1])
    if name in MASKS: return MASKS[name](x), None if name == "TopKRouter" else x.shape, (0, 1)
    options = dict(k=1) if name in AT_ONE or name == "topk_loss" else {}
    return LOSSES[name](x, grades(name, x), **options), (), (-float("inf"), float("inf"))


@pytest.mark.parametrize("name", [*SORTS, *SAMPLES, *REDUCED, "soft_argsort", *RANKS, *MASKS, *LOSSES])
def test_the_least_that_it_takes(name):
    for kind, n, batch, dtype in CASES:
        said = f"{name} of {kind} scores {(*batch, n)}, {dtype}"
        x = scores(kind, n, batch, dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)        # lists of one element, and loops that stop at the digits of half precision
            torch.manual_seed(0)
            y, shape, (low, high) = called(name, x)
            weights = torch.arange(y.numel()).mul(1.7).cos().reshape(y.shape)
            g, = torch.autograd.grad((y.float() * weights).sum(), x)
        assert y.dtype == dtype and y.isfinite().all() and g.isfinite().all() and g.shape == x.shape, said
        if shape is not None and name not in SAMPLES: assert y.shape == shape, said
        slack = (0.02 if dtype == torch.bfloat16 else 1e-3) * max(1, n if name in RANKS or name == "soft_argsort" else 1)
        if y.numel(): assert (y.float() >= low - slack).all() and (y.float() <= high + slack).all(), said
        moves = x.numel() and (x != x[..., :1]).any() and name not in FLAT and not (n == 2 and name in AS_TWO | UNITLESS)
        if moves: assert g.any(), f"{said}: the gradient is zero everywhere"
