"""Wrong arguments, one at a time: each is answered by a `ValueError` or `TypeError` that names the argument, or it computes. Nothing raw comes through.

Every public callable is called with valid arguments, of which one is exchanged for something else: another type, dtype, shape, number or word.
In the usual run a share of them, the same one each time; with HYPOTHESIS_PROFILE=explore all.
"""
import inspect
import os
import re
import warnings
import zlib
from functools import partial

import numpy as np
import pytest
import torch

import softsortlib
from softsortlib import core, functional, losses, networks, ragged, ranks, rowwise, sampling, selection, transport

EXPLORES = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
SHARE = 1 if EXPLORES else 12
n = 5
s = torch.randn(2, n, generator=torch.Generator().manual_seed(0))
y = torch.tensor([[0.0, 2.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 2.0, 0.0]])
sparse = torch.eye(n)[:2].to_sparse()
TENSORS = {"list": s.tolist(), "none": None, "word": "a", "number": 3.0, "array": s.numpy(), "complex": s.to(torch.complex64), "whole numbers": torch.ones(2, n, dtype=torch.long),
           "truth values": s > 0, "sparse": sparse, "nan": s.clone().fill_(float("nan")), "infinite": s.clone().fill_(float("inf")), "no dimension": torch.tensor(1.0),
           "other shape": s[:, :3], "more dimensions": s.expand(4, 3, 2, n), "nothing": s[:, :0], "class": torch.Tensor, "float8": s.to(torch.float8_e4m3fn)}
NUMBERS = {"zero": 0, "negative": -1, "nan": float("nan"), "infinite": float("inf"), "word": "a", "none": None, "list": [1.0], "complex": 1j, "truth value": True, "fraction": 1.5, "large": 1e30,
           "another shape": torch.ones(3), "negative tensor": torch.tensor(-1.0), "whole tensor": torch.ones(2, 1, dtype=torch.long), "array": np.ones(2), "object": object(), "sparse": torch.ones(2).to_sparse()}
WORDS = {"another word": "nope", "number": 3, "none": None, "list": ["mean"], "array": np.array(["a", "b"]), "class": SystemError, "near": "softsrt", "empty": "", "bytes": b"mean"}
FLAGS = {"word": "yes", "number": 1, "none": None, "tensor": torch.tensor([True, False]), "list": [True]}
MASKS = {"numbers": torch.ones(2, n), "list": [[True] * n] * 2, "other shape": torch.ones(2, 3, dtype=torch.bool), "word": "a", "sparse": torch.eye(n, dtype=torch.bool)[:2].to_sparse(),
         "number": True, "more dimensions": torch.ones(3, 2, n, dtype=torch.bool), "nobody": torch.zeros(2, n, dtype=torch.bool), "array": np.ones((2, n), dtype=bool)}
OFFSETS = {"list": [0, n], "numbers": torch.tensor([0.0, n]), "decreasing": torch.tensor([0, 4, 2, n]), "beyond": torch.tensor([0, 9]), "short": torch.tensor([0, 3]), "negative": torch.tensor([-1, n]),
           "not from 0": torch.tensor([1, n]), "matrix": torch.tensor([[0, n]]), "nothing": torch.tensor([], dtype=torch.long), "word": "a", "truth values": torch.tensor([False, True])}
KINDS = {        # parameter: what is wrong for it
    **dict.fromkeys("x s scores v perm relevance target logits P cost C ranks gains relevant u weights lengths ids sizes logits discounts a b p".split(), TENSORS),
    **dict.fromkeys("tau k dim q samples power tolerance max_iterations iterations steps layers steepness noise_scale chunk alpha bins mu step balance floor sharpness rtol start end weight_tau n lanes weights_tau classes".split(), NUMBERS),
    **dict.fromkeys("method kind sigmoid backend simplex interpolation reduction gain weighting regularization gradient squash noise step_kind dtype variant empty_target_action".split(), WORDS),
    **dict.fromkeys("descending largest hard keepdim fixed_weights straight_through baseline balanced gather".split(), FLAGS),
    "mask": MASKS, "offsets": OFFSETS, "generator": {"number": 3, "word": "a", "list": [1]}, "span": {"word": "a", "one": (1.0,), "backwards": (1.0, 0.0), "number": 3, "nan": (float("nan"), 1.0)},
    "group": {"number": 3, "word": "a"},
}
REQUIRED = dict(x=s, scores=s, s=s, relevance=y, logits=s, target=torch.tensor([0, 1]), k=2, q=0.5, tau=1.0, v=s, ranks=torch.ones(2, n), gains=torch.ones(2, n), alpha=0.1, start=1.0, end=0.1, steps=3, n=4,
                cost=torch.rand(2, n, n), lengths=[2, 3], weights=torch.ones(2, n), kind="odd_even", method="softsort", perm=torch.tensor([1, 0]))


def ways():
    "{name: (function of keyword arguments, its parameters, what it is given)}"
    out = {}
    def add(name, f, finish=lambda r: r, **given):
        parameters = inspect.signature(f).parameters
        fixed = {p: REQUIRED[p] for p, found in parameters.items() if found.default is inspect.Parameter.empty and p in REQUIRED} | given
        out[name] = (lambda **kwargs: finish(f(**kwargs)), [p for p in parameters if p in KINDS], fixed)
    for f in ("soft_sort", "soft_rank", "soft_topk", "soft_argsort", "soft_topk_mask", "soft_quantile", "soft_trimmed_mean", "soft_permutation", "calibrate_tau", "tau_schedule"): add(f, getattr(functional, f))
    add("soft_median", lambda x, dim=-1, keepdim=False, tau=None, method="softsort", mask=None, offsets=None: functional.soft_median(x, dim, keepdim, tau=tau, method=method, mask=mask, offsets=offsets))
    for f in sorted(losses.__all__):
        if f.endswith("_loss"): add(f, getattr(losses, f), **({"relevance": y > 1} if f in ("precision_loss", "recall_loss", "average_precision_loss", "quantised_ap_loss", "auc_loss", "reciprocal_rank_loss", "slatk_loss") else {}))
    add("ideal_order", losses.ideal_order)
    P, order = softsortlib.SoftSort(1.0)(s), s.argsort(-1)
    for f in (losses.permutation_nll, losses.permutation_bce): add(f.__name__, f, P=P, target=order)
    for op in (softsortlib.SoftSort, softsortlib.NeuralSort, softsortlib.SinkhornSort, softsortlib.SortingNetwork, softsortlib.LapSum, softsortlib.Perturbed): add(op.__name__, op, lambda op: op(s) @ s)
    for op in (softsortlib.SigmoidRank, softsortlib.GaussianRank, softsortlib.LaplaceRank, softsortlib.Permutahedron, sampling.BlackboxRank, sampling.ImplicitRank): add(op.__name__, op, lambda op: op(s))
    for op in (softsortlib.SoftSort, softsortlib.NeuralSort, softsortlib.SinkhornSort, softsortlib.SortingNetwork, softsortlib.LapSum, softsortlib.SigmoidRank, softsortlib.Permutahedron):
        add(f"{op.__name__}()", lambda scores, mask=None, op=op: op()(scores, mask))
    for op in (selection.SinkhornTopK, selection.ThresholdTopK, selection.SparseTopK, selection.SimpleTopK): add(op.__name__, op, lambda op: op(s))
    add("TopKRouter", selection.TopKRouter, lambda op: op(s))
    add("SparseTopK()", lambda scores, mask=None: selection.SparseTopK(1)(scores, mask))
    for f in (sampling.ranking_regret, sampling.plackett_luce_reward): add(f.__name__, f)
    add("plackett_luce_log_prob", core.plackett_luce_log_prob, **{list(inspect.signature(core.plackett_luce_log_prob).parameters)[1]: order})
    add("isotonic", ranks.isotonic, z=s)
    for f in (ranks.lapsum_topk, networks.odd_even_layers, networks.bitonic_layers, core.permutation_matrix): add(f.__name__, f)
    add("pair_sum", ranks.pair_sum)
    add("soft_matching", transport.soft_matching, **{list(inspect.signature(transport.soft_matching).parameters)[0]: torch.rand(2, n, n)})
    add("GumbelSinkhorn", transport.GumbelSinkhorn, lambda op: op(torch.rand(2, n, n)).to_dense())
    add("offsets_of", ragged.offsets_of)
    add("offsets_from", ragged.offsets_from)
    for f in (ragged.chunked_quantile, ragged.chunked_threshold): add(f.__name__, f, x=s.flatten().numpy())
    add("ChunkedRank", ragged.ChunkedRank, lambda rank: rank(s.flatten()), x=s.flatten().numpy())
    add("SoftKNN", losses.SoftKNN, lambda knn: knn(s[:, :1, None], s[..., None], torch.tensor([[0, 1, 0, 1, 0]] * 2)))
    for f in (losses.hard_metric, losses.soft_metric, losses.gradient_and_curvature): add(f.__name__, f, loss=losses.SpearmanLoss())
    return out


WAYS = ways()
TAKEN = {("SinkhornSort", "squash", "class")}        # any callable is one
CASES = [(name, p, wrong) for name, (_, parameters, _) in WAYS.items() for p in parameters for wrong in KINDS[p] if (name, p, wrong) not in TAKEN]


def answer(name, p, wrong):
    "None where the call computes or names the argument, or one that does not go with it; else what is wrong with its answer."
    call, parameters, given = WAYS[name]
    if isinstance(given.get(p), str) and KINDS[p] is not WORDS or KINDS[p] is TENSORS and wrong == "array" and name.startswith(("chunked", "Chunked")): return None
    try: call(**{**given, p: KINDS[p][wrong]})
    except (ValueError, TypeError, IndexError) as e:       # a dimension out of range is torch's IndexError
        if not re.search(rf"\b({'|'.join({p, *given})})\b", str(e)): return f"{type(e).__name__} does not name {p}: {e}"
    except Exception as e: return f"raw {type(e).__name__}: {e}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WAYS)
def test_a_wrong_argument_is_named(name):
    share = [case for case in CASES if case[0] == name and zlib.crc32(repr(case).encode()) % SHARE == 0]
    found = {case[1:]: said for case in share if (said := answer(*case))}
    assert not found, "\n".join(f"{name}({p}={wrong}): {said}" for (p, wrong), said in found.items())
