"""Every operator, function and loss of the library once, with what it promises: whoever adds one adds one line here.

The line brings it into every grid: the contract (softsortlib.testing), the custom operators under
`torch.library.opcheck` (test_custom_operators.py) and the properties of random scores (test_properties.py). A test
fails for a public name that is neither in a table nor among the names that take no scores.
"""
import inspect
from functools import partial
from typing import Any, Callable, NamedTuple

import torch
from regimes import REGIMES, spread_of

import softsortlib
from softsortlib import (
    GaussianRank, LapSum, LaplaceRank, NeuralSort, Permutahedron, Perturbed, SigmoidRank, SinkhornSort, SoftSort, SortingNetwork,
    Stochastic, is_doubly_stochastic, is_row_stochastic, is_unimodal_row_stochastic,
)
from softsortlib import core, distributed, functional, losses, networks, ragged, ranks, rowwise, sampling, selection, transport
from softsortlib.sampling.perturbed import in_reach
from softsortlib.testing import OperatorTests, RankTests

UNIMODAL = (is_row_stochastic, is_unimodal_row_stochastic)
DOUBLY = (is_row_stochastic, is_doubly_stochastic)


class Seeded(Stochastic):
    "The same noise in every call, so that differences can be taken."
    def forward(self, scores, mask=None):
        self.generator.manual_seed(1)
        return super().forward(scores, mask)


class SeededPerturbed(softsortlib.Perturbed):
    "Likewise."
    def forward(self, scores, mask=None):
        self.generator.manual_seed(1)
        return super().forward(scores, mask)


def regimes(self):
    "Scores (3, 5) of every regime of ours, each with a temperature that fits."
    drawn = {name: draw(3, 5, torch.float64, torch.Generator().manual_seed(0)) for name, draw in REGIMES.items()}
    return [(s, spread_of(s) / 2) for name, s in drawn.items() if self.outliers or "outlier" not in name]


class Row(NamedTuple):
    "An operator: how it is made, and what it does not promise or promises besides (the attributes of its contract)."
    name: str
    make: Callable[..., Any]
    promises: dict = {}
    base: type = OperatorTests

    def contract(self):
        "The subclass of the contract that pytest collects."
        def make(contract, **kwargs): return self.make(**kwargs)
        return type(f"Test{self.name}", (self.base,), {"regimes": regimes, **self.promises, "make": make})

    def promise(self, name): return getattr(self.contract(), name)


TRANSPORT = dict(claims=DOUBLY, outliers=False, fixed_steps=False, second=dict(gradient="unrolled"),
                 precise=dict(tolerance=1e-13, max_iterations=20_000))
def without_log_prob(self, op, s, x):
    "A log-probability of -inf, as sparse rows have them, is no number to differentiate."
    P = op(s)
    return P @ x, P.mT @ x, P.to_dense()


SPARSE = dict(claims=UNIMODAL, of=without_log_prob)
NETWORK = dict(claims=DOUBLY, outliers=False, equivariant=False, uniform_when_soft=False)
OPERATORS = [
    Row("SoftSort", SoftSort, dict(claims=UNIMODAL)),
    Row("SoftSortOfSquares", partial(SoftSort, power=2), dict(claims=UNIMODAL)),
    Row("NeuralSort", NeuralSort, dict(claims=UNIMODAL)),
    Row("SparsemaxSoftSort", partial(SoftSort, simplex="sparsemax"), SPARSE),
    Row("Entmax15SoftSort", partial(SoftSort, simplex="entmax15"), SPARSE),
    Row("SparsemaxNeuralSort", partial(NeuralSort, simplex="sparsemax"), SPARSE),
    Row("Entmax15NeuralSort", partial(NeuralSort, simplex="entmax15"), SPARSE),
    Row("SinkhornSort", SinkhornSort, TRANSPORT),
    Row("OddEven", partial(SortingNetwork, "odd_even"), NETWORK),
    Row("Bitonic", partial(SortingNetwork, "bitonic"), NETWORK),
    Row("ErrorFreeNetwork", partial(SortingNetwork, swaps="error_free"), {**NETWORK, "estimates": True, "second": None}),
    Row("LapSum", LapSum, dict(claims=DOUBLY)),
    Row("Stochastic", lambda **kwargs: Seeded("softsort", 2, torch.Generator(), **kwargs), dict(claims=UNIMODAL, samples=(2,), repeats=False)),
    Row("Perturbed", lambda **kwargs: SeededPerturbed(samples=20, generator=torch.Generator(), **kwargs), dict(claims=DOUBLY, repeats=False, uniform_when_soft=False, estimates=True)),
]
RANKS = [
    Row("SigmoidRank", SigmoidRank, base=RankTests),
    Row("GaussianRank", GaussianRank, base=RankTests),
    Row("LaplaceRank", LaplaceRank, base=RankTests),
    Row("Permutahedron", Permutahedron, base=RankTests),
    Row("EntropicPermutahedron", partial(Permutahedron, regularization="kl"), base=RankTests),
]


class Call(NamedTuple):
    """A function of scores (b, n): `f(s, tau, mask)` gives a tensor or a tuple of tensors, one entry of the batch each.

    `f` of a loss takes the relevance too: `f(s, y, tau, mask)`."""
    name: str               # of the public function, with a remark behind a colon
    f: Callable
    masked: bool = True     # takes a mask; without one it is called with s and tau alone
    equivariant: bool = False   # permuting the scores permutes its result
    invariant: bool = False     # permuting the scores does not change its result
    direct: bool = True     # hands the scores over as they are, so that those of a half type can be compared with the same in single precision
    within: "tuple | None" = None   # bounds of its values: numbers, or a function of n

    @property
    def public(self): return self.name.split(":")[0]


def costs(s): return s[..., :, None] / 2 - s[..., None, :] / 2     # half the differences, so that they are numbers where the scores are


def wide(s): return s if s.dtype.itemsize > 2 else s.float()     # for `isotonic`, which takes no half types


def lists(f, lay=None):
    """`f(..., offsets=...)` of the real elements of a batch, end to end, as a function of the batch.

    What comes out is laid back: with one number for each element, as the mask says ("elements"), or at the front ("order"); None: one for each list."""
    def of(s, *args):
        *args, tau, mask = args
        real = torch.ones_like(s, dtype=torch.bool) if mask is None else mask
        out = f(s[real], *(y.expand(s.shape)[real] for y in args), tau, None, offsets=ragged.offsets_of(real.sum(-1)))
        if lay is None: return out
        at = real if lay == "elements" else torch.arange(s.shape[-1]) < real.sum(-1, keepdim=True)
        return torch.zeros(s.shape, dtype=out.dtype).masked_scatter(at, out)
    return of


def by_chunks(f):
    "`f(x, tau, chunk)` of each set alone, as numpy in a precision that a file has."
    def of(s, tau, mask):
        rows = [f(wide(row.detach()).numpy(), tau, max(1, row.numel() // 3)) for row in s]
        return torch.stack([torch.as_tensor(row) for row in rows]).to(s.dtype)
    return of


FUNCTIONS = [
    Call("soft_sort", lambda s, tau, mask: functional.soft_sort(s, tau=tau, mask=mask), invariant=True),
    Call("soft_rank", lambda s, tau, mask: functional.soft_rank(s, tau=tau, mask=mask), equivariant=True, within=(1, None)),
    Call("soft_topk", lambda s, tau, mask: functional.soft_topk(s, 1, tau=tau, mask=mask)[0], invariant=True),
    Call("soft_quantile", lambda s, tau, mask: functional.soft_quantile(s, torch.linspace(0, 1, 3, dtype=torch.float64, device=s.device), tau=tau, mask=mask).movedim(0, -1), invariant=True),
    Call("soft_quantile:nearest", lambda s, tau, mask: functional.soft_quantile(s, 0.3, interpolation="nearest", tau=tau, mask=mask), invariant=True),
    Call("soft_median", lambda s, tau, mask: functional.soft_median(s, tau=tau, mask=mask), invariant=True),
    Call("soft_permutation", lambda s, tau, mask: functional.soft_permutation(s, tau=tau, mask=mask).to_dense().sum(-2), equivariant=True),
    Call("lapsum_topk", lambda s, tau, mask: ranks.lapsum_topk(s, 1, tau, mask=mask), equivariant=True, within=(0, 1)),
    Call("LapSumTopK", lambda s, tau, mask: ranks.LapSumTopK(1, tau)(s, mask), equivariant=True, within=(0, 1)),
    *(Call(f"soft_topk_mask:{method}", lambda s, tau, mask, method=method: functional.soft_topk_mask(s, 1, method=method, tau=tau, mask=mask), equivariant=True, within=(0, 1))
      for method in ("lapsum", "sinkhorn", "sparse", "threshold", "simple")),
    Call("SinkhornTopK", lambda s, tau, mask: selection.SinkhornTopK(s.new_full(s.shape[:-1], 0.7), tau)(s, mask), equivariant=True, within=(0, 1)),
    Call("ThresholdTopK", lambda s, tau, mask: selection.ThresholdTopK(s.new_ones(s.shape[:-1], dtype=torch.long), tau)(s, mask), equivariant=True, within=(0, 1)),
    Call("SparseTopK", lambda s, tau, mask: selection.SparseTopK(0.7, tau, p=4 / 3)(s, mask), equivariant=True, within=(0, 1)),
    Call("SimpleTopK", lambda s, tau, mask: selection.SimpleTopK(s.new_ones(s.shape[:-1], dtype=torch.long), tau)(s, mask), equivariant=True, within=(0, 1)),
    Call("TopKRouter", lambda s, tau, mask: selection.TopKRouter(min(2, s.shape[-1]), tau=tau)(s).weights, masked=False, invariant=True, within=(0, 1)),
    Call("pair_sum", lambda s, tau, mask: ranks.pair_sum(s, tau, torch.ones_like(s)), masked=False, equivariant=True),
    Call("isotonic", lambda s, tau, mask: ranks.isotonic(wide(s)), masked=False),
    Call("plackett_luce_log_prob", lambda s, tau, mask: core.plackett_luce_log_prob(s, s.argsort(-1, descending=True), mask), masked=False, invariant=True),
    Call("ranking_regret", lambda s, tau, mask: sampling.ranking_regret(s, s.argsort(-1).argsort(-1).to(s) + 1, mask, tau=tau, generator=torch.Generator().manual_seed(0)), masked=False, within=(0, None)),   # a shorter set draws other noise
    Call("plackett_luce_reward", lambda s, tau, mask: sampling.plackett_luce_reward(in_reach(s, tau) / tau, torch.ones_like(s), mask, k=1, generator=torch.Generator().manual_seed(0)), within=(0, 1)),
    Call("soft_matching", lambda s, tau, mask: transport.soft_matching(costs(s), 1.0, 10).to_dense().sum(-2), direct=False, masked=False, equivariant=True),
    Call("GumbelSinkhorn", lambda s, tau, mask: transport.GumbelSinkhorn(1.0, 0.0)(costs(s)).to_dense().sum(-2), direct=False, masked=False, equivariant=True),
    Call("SoftKNN", lambda s, tau, mask: losses.SoftKNN(1, tau=tau, classes=2)(s[:, :1, None].tanh(), s[..., None].tanh(), torch.arange(s.shape[-1], device=s.device).expand(s.shape) % 2).exp(), direct=False, masked=False, within=(0, 1)),
]
LOSSES = [
    Call("permutation_nll", lambda s, y, tau, mask: losses.permutation_nll(softsortlib.SoftSort(tau)(s, mask), losses.ideal_order(y, mask=mask), reduction="none")),
    Call("permutation_bce", lambda s, y, tau, mask: losses.permutation_bce(softsortlib.SoftSort(tau)(s, mask), losses.ideal_order(y, mask=mask), reduction="none")),
    Call("spearman_loss", lambda s, y, tau, mask, **more: losses.spearman_loss(s, y, mask, tau=tau, reduction="none", **more), invariant=True, within=(0, 2)),
    Call("spearman_loss:sigmoid", lambda s, y, tau, mask, **more: losses.spearman_loss(s, y, mask, method="sigmoid", tau=tau, reduction="none", **more), invariant=True, within=(0, 2)),
    Call("kendall_loss", lambda s, y, tau, mask, **more: losses.kendall_loss(s, y, mask, tau=tau, reduction="none", **more), invariant=True, within=(0, None)),
    Call("approx_ndcg_loss", lambda s, y, tau, mask, **more: losses.approx_ndcg_loss(s, y, mask, tau=tau, reduction="none", **more), invariant=True),
    Call("neural_ndcg_loss", lambda s, y, tau, mask, **more: losses.neural_ndcg_loss(s, y, mask, tau=tau, reduction="none", **more), invariant=True),
    Call("precision_loss", lambda s, y, tau, mask, **more: losses.precision_loss(s, y > 1, mask, k=1, tau=tau, reduction="none", **more), invariant=True, within=(0, 1)),
    Call("recall_loss", lambda s, y, tau, mask, **more: losses.recall_loss(s, y > 1, mask, k=1, tau=tau, reduction="none", **more), invariant=True, within=(0, 1)),
    Call("listnet_loss", lambda s, y, tau, mask, **more: losses.listnet_loss(s, y, mask, tau=tau, reduction="none", **more), invariant=True, within=(0, None)),
    Call("listnet_loss:share", lambda s, y, tau, mask, **more: losses.listnet_loss(s, y, mask, target="share", tau=tau, reduction="none", **more), invariant=True, within=(0, None)),
    Call("listmle_loss", lambda s, y, tau, mask, **more: losses.listmle_loss(s, y, mask, tau=tau, reduction="none", **more), invariant=True, within=(0, None)),
    Call("listmle_loss:exp2", lambda s, y, tau, mask, **more: losses.listmle_loss(s, y, mask, weighting="exp2", tau=tau, reduction="none", **more), invariant=True, within=(0, None)),
    Call("slatk_loss", lambda s, y, tau, mask, **more: losses.slatk_loss(s, y > 1, mask, k=2, tau=tau, reduction="none", **more), invariant=True, within=(0, None)),
    Call("lambda_loss", lambda s, y, tau, mask, **more: losses.lambda_loss(s, y, mask, tau=tau, reduction="none", **more), invariant=True, within=(0, None)),
    Call("lambda_loss:precision", lambda s, y, tau, mask, **more: losses.lambda_loss(s, y > 1, mask, weighting="precision", k=2, tau=tau, reduction="none", **more), invariant=True, within=(0, None)),
    Call("average_precision_loss", lambda s, y, tau, mask, **more: losses.average_precision_loss(s, y > 1, mask, tau=tau, reduction="none", **more), invariant=True, within=(0, 1)),
    Call("quantised_ap_loss", lambda s, y, tau, mask, **more: losses.quantised_ap_loss(s, y > 1, mask, reduction="none", **more), invariant=True, within=(0, 1)),
    Call("auc_loss", lambda s, y, tau, mask, **more: losses.auc_loss(s, y > 1, mask, tau=tau, reduction="none", **more), invariant=True, within=(0, None)),
    Call("auc_loss:sigmoid", lambda s, y, tau, mask, **more: losses.auc_loss(s, y > 1, mask, kind="sigmoid", tau=tau, reduction="none", **more), invariant=True, within=(0, 1)),
    Call("weighted_kendall_loss", lambda s, y, tau, mask, **more: losses.weighted_kendall_loss(s, y, mask, tau=tau, reduction="none", **more), invariant=True, within=(0, None)),
    Call("pirank_loss", lambda s, y, tau, mask, **more: losses.pirank_loss(s, y, mask, tau=tau, reduction="none", **more), invariant=True),
    Call("reciprocal_rank_loss", lambda s, y, tau, mask, **more: losses.reciprocal_rank_loss(s, y > 1, mask, tau=tau, reduction="none", **more), invariant=True, within=(0, 1)),
    Call("topk_loss", lambda s, y, tau, mask: losses.topk_loss(s, y > 1, k=1, tau=tau, reduction="none"), masked=False, invariant=True, within=(0, None)),
    Call("zero_one_loss", lambda s, y, tau, mask: losses.zero_one_loss(s, y > 1, k=1, tau=tau, reduction="none"), masked=False, invariant=True, within=(0, None)),
]
# The same, of what asks how many there are, or computes in numpy: no launches are counted here.
HOST_FUNCTIONS = [
    *(Call(f"soft_topk_mask:{method}, lists", lists(lambda x, tau, _, offsets, method=method: functional.soft_topk_mask(x, 1, method=method, tau=tau, offsets=offsets), "elements"), equivariant=True, within=(0, 1))
      for method in ("lapsum", "sinkhorn", "sparse", "threshold", "simple")),
    *(Call(f"soft_rank:{method}, lists", lists(lambda x, tau, _, offsets, method=method: functional.soft_rank(x, method=method, tau=tau, offsets=offsets), "elements"), equivariant=True, within=(1, None))
      for method in ("softsort", "neuralsort", "lapsum", "sigmoid", "gaussian", "laplace", "permutahedron")),
    Call("soft_sort:lists", lists(lambda x, tau, _, offsets: functional.soft_sort(x, tau=tau, offsets=offsets), "order"), invariant=True),
    Call("soft_quantile:lists", lists(lambda x, tau, _, offsets: functional.soft_quantile(x, 0.3, tau=tau, offsets=offsets)), invariant=True),
    Call("soft_median:weights", lambda s, tau, mask: functional.soft_median(s, tau=tau, mask=mask, weights=torch.full((), 2.0, device=s.device)), invariant=True),
    Call("soft_median:lists", lists(lambda x, tau, _, offsets: functional.soft_median(x, tau=tau, offsets=offsets)), invariant=True),
    Call("soft_topk:lists", lists(lambda x, tau, _, offsets: functional.soft_topk(x, 1, tau=tau, offsets=offsets)[0]), invariant=True),
    Call("soft_permutation:lists", lists(lambda x, tau, _, offsets: functional.soft_permutation(x, tau=tau, offsets=offsets).mT @ torch.ones_like(x), "elements"), equivariant=True),
    *(Call(f"TopKRouter:{method}", lambda s, tau, mask, method=method: selection.TopKRouter(min(2, s.shape[-1]), method, tau=tau)(s).weights, masked=False, invariant=True, within=(0, 1))
      for method in ("lapsum", "sinkhorn", "threshold", "simple")),
    Call("BlackboxRank", lambda s, tau, mask: sampling.BlackboxRank(tau)(s, mask), equivariant=True, within=(1, None)),
    Call("ImplicitRank", lambda s, tau, mask: sampling.ImplicitRank(tau, generator=torch.Generator().manual_seed(0))(s, mask), masked=False, within=(1, None)),   # a shorter set draws other noise
    Call("chunked_quantile", by_chunks(lambda x, tau, chunk: ragged.chunked_quantile(x, [0.0, 0.3, 1.0], tau=tau, chunk=chunk)), masked=False, invariant=True),
    Call("chunked_threshold", by_chunks(lambda x, tau, chunk: ragged.chunked_threshold(x, 0.6, tau=tau, chunk=chunk).soft), masked=False, invariant=True),
]
HOST_LOSSES = [
    Call("hard_metric:ndcg", lambda s, y, tau, mask: losses.hard_metric(losses.ApproxNDCGLoss(), s, y, mask, reduction="none", empty_target_action="pos"), within=(0, 1)),
    Call("hard_metric:auc", lambda s, y, tau, mask: losses.hard_metric(losses.AUCLoss(), s, y > 1, mask, reduction="none", empty_target_action="pos"), invariant=True, within=(0, 1)),
    Call("hard_metric:kendall", lambda s, y, tau, mask: losses.hard_metric(losses.KendallLoss(), s, y, mask, reduction="none", empty_target_action="pos"), invariant=True, within=(-1, 1)),
    Call("soft_metric", lambda s, y, tau, mask: losses.soft_metric(losses.SpearmanLoss(tau=tau, reduction="none"), s, y, mask), invariant=True, within=(-1, 1)),
    Call("gradient_and_curvature", lambda s, y, tau, mask: losses.gradient_and_curvature(losses.ListNetLoss(tau=tau, reduction="sum"), s, y, mask)[1], equivariant=True),
    *(call._replace(name=f"{call.name}:lists", f=lists(call.f)) for call in LOSSES if "offsets" in inspect.signature(getattr(losses, call.public)).parameters),
]
LOSS_MODULES = {name: cls for name, cls in vars(losses).items() if inspect.isclass(cls) and hasattr(cls, "function")}
# Public names that take no scores, or are the matter of which the entries above are made.
ELSEWHERE = {
    "matrices and checkers": "permutation_matrix is_row_stochastic is_doubly_stochastic is_permutation_matrix is_unimodal_row_stochastic compute_dtype "
                             "check_scores check_mask check_tau",
    "the maps that operators return": "SoftPermutation DensePermutation TransposedPermutation SampleMean SoftSortPermutation LaplacePermutation SparseRows "
                                      "WindowedPermutation SquarePermutation PowerPermutation OrderPermutation NeuralSortPermutation NetworkPermutation TransportPermutation LapSumPermutation ListPermutation",
    "base classes and look-ups": "Operator RankOperator get_operator get_rank_operator TopKMask get_topk_mask Routing",
    "definitions read aloud, the oracles of the parts' tests": "neuralsort_published neuralsort_quadratic row_sums isotonic_plain sinkhorn line_potentials convex_cost subset_marginals",
    "pieces of a network": "odd_even_layers bitonic_layers Comparators sorting_network run_network swap_sigmoid lane_differences error_free_differences replace_activation apply_layers apply_error_free default_steepness",
    "a network that asks a comparison (tests/networks/test_compared.py)": "compare_sort",
    "pictures (tests/functional/test_plots.py)": "plot_permutation plot_temperature",
    "pieces of a transport": "ConvergenceWarning Gibbs potentials hard_matching",
    "noise": "gumbel_noise",
    "numbers, not tensors": "calibrate_tau tau_schedule",
    "a mean of what soft_sort gives (tests/functional)": "soft_trimmed_mean",
    "orders, whose numbers say where a thing lies (tests/functional, tests/losses)": "ideal_order soft_argsort",
    "lists end to end, and scores in files (tests/ragged)": "offsets_of offsets_from Threshold ChunkedRank",
    "scores on many processes, in tests/distributed": "Party gather_parts gathered summed agreed_sum SortedParts sort_parts bring home spread positions SoftSortParts laplace_ranks step_ranks mean_ranks pooled_ranks pooled_values",
    "pieces with tests of their own": "warm",
    "an estimator, under scikit-learn's own checks": "SoftKNeighborsClassifier",
}
PARTS = (core, rowwise, networks, transport, ranks, selection, sampling, distributed, ragged, functional, losses)


def public_names():
    "Every public name of the parts below the laboratory."
    return {name for part in PARTS for name in part.__all__}


def described_names():
    "Every public name that a table, or ELSEWHERE, speaks of."
    rows = {type(row.make()).__mro__[1 if row.name in ("Stochastic", "Perturbed") else 0].__name__ for row in OPERATORS + RANKS}
    return rows | {call.public for call in FUNCTIONS + LOSSES + HOST_FUNCTIONS + HOST_LOSSES} | {f.__name__ for f in LOSS_MODULES.values()} | set(" ".join(ELSEWHERE.values()).split())
