"""One set in many ways: every operator, function and loss of tests/tables.py, its value and derivatives for one set wherever that lies, and how far they may be off.

`subjects()` are the calls. A `Case` says where the set lies (alone, padded, in a batch) and how it is differentiated; `outcome` gives what is
compared, and `expected` the same of the set alone in double precision, with bounds from the conditioning: the outcome may move by what rounding each
difference of two scores, each payload and the temperature moves it."""
import math
import warnings
from functools import lru_cache
from typing import Callable, NamedTuple

import torch
from regimes import PLACES, REGIMES, spread_of
from tables import FUNCTIONS, HOST_FUNCTIONS, HOST_LOSSES, LOSSES, OPERATORS, RANKS

from softsortlib import SinkhornSort, core, functional, losses, selection
from softsortlib.transport import ConvergenceWarning

RELATIVE = {torch.float64: 1e-12, torch.float32: 1e-5}     # what the contract promises of fast paths, in terms of the largest entry,
ROUNDING = {torch.float64: 2.0**-44, torch.float32: 2.0**-23}      # and besides what such a change of the data makes, times
SAFETY = 16
MODES = "value", "autograd", "create_graph", "func", "vmap", "second"


class Around(NamedTuple):
    "What belongs to the elements, (B, N) each, and the options of a call."
    x: torch.Tensor         # payload
    y: torch.Tensor         # grades
    key: torch.Tensor       # real numbers, from which targets and weights are made
    d: int = 1              # columns of payload
    k: int = 2              # rows, or how many are chosen
    descending: bool = False

    def columns(self):
        "x in d columns."
        return self.x[..., None] * (1 + torch.arange(self.d)).to(self.x).cos() if self.d > 1 else self.x

    def target(self, mask):
        "A permutation of the real elements in front, the same wherever they lie."
        key = self.key if mask is None else self.key.masked_fill(~mask, math.inf)
        return key.argsort(dim=-1, stable=True)


class Subject(NamedTuple):
    "A call: f(s, tau, mask, around), with s (B, N) and tau a number or a tensor."
    name: str
    f: Callable
    lay: str                # one number for each "elements", place in "order", or "set"
    masked: bool = True
    options: str = ""       # of "d" and "k", those that it has
    payload: bool = False   # differentiates x too
    far: bool = False       # what lies far away changes nothing
    mixes: bool = False     # computes with mixtures of the scores, or standardised ones, which are rounded in terms of the whole spread
    directed: bool = False  # has a direction
    modes: tuple = MODES    # in which it can be had
    twin: "Callable | None" = None      # the same in plain torch
    again: "Callable | None" = None     # the same with second derivatives, where f has none


def flattened(y): return y.sum(-1) if y.ndim > 2 else y


def questions(row):
    "The calls of an operator."
    def call(ask, **own):
        def f(s, tau, mask, a): return ask(row.make(tau=tau, descending=a.descending, **own)(s, mask), mask, a)
        return f

    def spot(P, mask, a):
        w = (torch.arange(P.n)[:, None] * 1.7 + a.key.nan_to_num()[..., None, :]).cos().to(P.dtype)
        return (P.to_dense() * w).sum(-1)

    asks = {
        "P @ x": (lambda P, mask, a: flattened(P @ a.columns()), "order", "d", True),
        "P.mT @ x": (lambda P, mask, a: flattened(P.mT @ (a.columns() if mask is None else in_front(a.columns(), mask))), "elements", "d", True),
        "P[:k] @ x": (lambda P, mask, a: flattened(P[..., :a.k, :] @ a.columns()), "set", "dk", True),
        "log_prob": (lambda P, mask, a: P.log_prob(a.target(mask)), "order", "", False),
        "to_dense": (spot, "order", "", False),
    }
    sparse = "Sparsemax" in row.name or "Entmax" in row.name
    modes = MODES if row.promise("second") is not None else MODES[:-1]
    modes = tuple(mode for mode in modes if mode != "vmap" or row.promise("fixed_steps"))
    for what, (ask, lay, options, payload) in asks.items():
        if sparse and what == "log_prob": continue
        again = call(ask, **row.promise("precise"), **row.promise("second")) if row.promise("second") else None
        far = row.promise("outliers") and what != "log_prob"
        twin = call(ask, backend="torch") if in_plain_torch(row) else None
        f = call(ask, **row.promise("precise"))
        yield Subject(f"{row.name}, {what}", f, lay, True, options, payload, far, not row.promise("outliers"), True, modes, twin, again)


def in_plain_torch(row):
    "Whether an operator may be asked for its plain twin, which has all derivatives."
    if row.promise("second") != {}: return False
    try: return bool(row.make(tau=1.0, backend="torch"))
    except TypeError: return False


def in_front(x, mask):
    "The real entries of x first, as the rows of a map are."
    order = (~mask).int().argsort(dim=-1, stable=True)
    moved = x.gather(1, order if x.ndim == 2 else order[..., None].expand(x.shape))
    real = mask.gather(-1, order)
    return torch.where(real if x.ndim == 2 else real[..., None], moved, 0.0)


IN_SCORES = ("soft_sort", "soft_quantile", "soft_median", "soft_topk", "isotonic", "chunked_quantile", "chunked_threshold")        # whose values move with the scores
NOISY = ("ranking_regret", "plackett_luce_reward", "ImplicitRank", "Stochastic", "Perturbed")     # other shapes draw other noise
OWN = {     # calls that the table makes otherwise: not squashed, in logarithms; an order that does not jump with the scores
    "SoftKNN": lambda s, tau, mask: losses.SoftKNN(1, tau=tau, classes=2)(s[:, :1, None], s[..., None], torch.arange(s.shape[-1]).expand(s.shape) % 2),
    "plackett_luce_log_prob": lambda s, tau, mask: core.plackett_luce_log_prob(s, torch.arange(s.shape[-1]).expand(s.shape)),
}
BY_LISTS, ONCE, IN_NUMPY, OWN_GRAPH = MODES[:4] + MODES[5:], MODES[:-1], ("value",), ("autograd",)       # lists are cut out of a batch by boolean masks, which vmap cannot


def modes_of(call):
    "In which a call can be had."
    if call.public.startswith("chunked") or call.public == "hard_metric": return IN_NUMPY
    if call.public == "gradient_and_curvature": return OWN_GRAPH
    if call.public == "BlackboxRank": return ONCE
    return BY_LISTS if "lists" in call.name else MODES


def subjects():
    "All of them, by name."
    found = []
    for row in OPERATORS:
        if row.promise("repeats"): found += questions(row)
    def two_rounds(s, tau, mask, a): return SinkhornSort(tau, descending=a.descending, gradient="unrolled", iterations=2)(s, mask) @ a.x
    found.append(Subject("SinkhornSort: two rounds, P @ x", two_rounds, "order", payload=True, mixes=True, directed=True))
    for row in RANKS:
        def f(s, tau, mask, a, row=row, **own): return row.make(tau=tau, descending=a.descending, **own)(s, mask)
        twin = (lambda *a, f=f: f(*a, backend="torch")) if in_plain_torch(row) else None
        found.append(Subject(row.name, f, "elements", far=True, directed=True, twin=twin))
    for call in FUNCTIONS + HOST_FUNCTIONS:
        if call.public in NOISY: continue
        def f(s, tau, mask, a, call=call): return OWN.get(call.name, call.f)(s, tau.item() if modes_of(call) == IN_NUMPY else tau, mask)
        lay = "elements" if call.equivariant else "order" if call.public in ("soft_sort", "isotonic") else "set"
        found.append(Subject(call.name, f, lay, call.masked, modes=modes_of(call)))
    for method in ("lapsum", "sinkhorn", "sparse", "threshold", "simple"):
        def f(s, tau, mask, a, method=method): return functional.soft_topk_mask(s, a.k, method=method, tau=tau, mask=mask)
        found.append(Subject(f"soft_topk_mask:{method}, k", f, "elements", options="k"))
        def f(s, tau, mask, a, method=method): return functional.soft_topk_mask(s, a.k - 0.5, method=method, tau=tau, mask=mask)
        if method in ("sinkhorn", "sparse", "lapsum"): found.append(Subject(f"soft_topk_mask:{method}, k - 1/2", f, "elements", options="k"))
    found.append(Subject("TopKRouter, k", lambda s, tau, mask, a: selection.TopKRouter(a.k, tau=tau)(s).weights, "set", masked=False, options="k"))
    for call in LOSSES + HOST_LOSSES:
        def f(s, tau, mask, a, call=call): return call.f(s, a.y, tau, mask)
        found.append(Subject(call.name, f, "elements" if call.equivariant else "set", call.masked, modes=modes_of(call)))
    return {subject.name: subject for subject in found}


class Case(NamedTuple):
    "A set of m scores, and where it lies in a batch (B, N)."
    regime: str = "normal"
    m: int = 5
    B: int = 1
    N: int = 0                  # 0: m
    place: str = ""             # of the padding; "": no mask
    filler: float = 0.0
    far: float = 0.0            # an element that is added there, in units of tau
    mode: str = "autograd"
    dtype: torch.dtype = torch.float32
    tau: float = 0.5
    d: int = 1
    k: int = 2
    descending: bool = False
    seed: int = 0

    def __str__(self):
        other = [f"{name}={value}" for name, value in self._asdict().items() if value != Case._field_defaults.get(name)]
        return ", ".join(other)


@lru_cache(8)
def the_set(regime, m, dtype, seed):
    "Scores (m,) of a regime in `dtype`, and payload, grades and keys."
    rng = torch.Generator().manual_seed(seed)
    s = REGIMES[regime](1, m, dtype, rng)[0]
    x = torch.randn(m, generator=rng, dtype=torch.float64).to(dtype)
    y = torch.randint(0, 4, (m,), generator=rng).index_fill(0, torch.tensor([0]), 3)
    return s, x, y, torch.rand(m, generator=rng, dtype=torch.float64)


class Layout(NamedTuple):
    "Scores (B, N), a mask or None, what belongs to them, and the row and the places of the set."
    s: torch.Tensor
    mask: "torch.Tensor | None"
    around: Around
    row: int
    at: torch.Tensor


def laid_out(case):
    "The set of a case among others."
    s, x, y, key = the_set(case.regime, case.m, case.dtype, case.seed)
    B, m, N = case.B, case.m, (case.N or case.m) + bool(case.far)
    rng, row = torch.Generator().manual_seed(case.seed + 1), B // 2
    S, X = REGIMES[case.regime](B, N, case.dtype, rng), torch.randn(B, N, generator=rng, dtype=torch.float64).to(case.dtype)
    Y, K = torch.randint(0, 4, (B, N), generator=rng), torch.rand(B, N, generator=rng, dtype=torch.float64)
    at, mask = torch.arange(m), None
    if case.place:
        at, mask = PLACES[case.place](m, N), torch.rand(B, N, generator=rng) < 0.6
        mask[:, 0], mask[row] = True, False
        mask[row, at] = True
        S[~mask] = X[~mask] = case.filler
    S[row, at], X[row, at], Y[row, at], K[row, at] = s, x, y, key
    if case.far: S[row, m] = (s.double().median() + case.far * case.tau).to(case.dtype)
    return Layout(S, mask, Around(X, Y, K, case.d, case.k, case.descending), row, at)


def wave(v, shift=1.0): return (torch.arange(v.numel(), dtype=torch.float64) * 0.7 + shift).cos().reshape(v.shape).to(v)


def picked(subject, case, out, row, at):
    "What belongs to the set: numbers of its elements, of its places, or its own."
    if subject.lay == "elements": return out[row, at]
    if subject.lay == "set": return out[row]
    first = int(case.far and (case.far < 0) != case.descending)     # the place of an element that was added far away
    return out[row, first:first + len(at)]


def gradients(total, leaves, laid, mode):
    "Gradients of total(s, tau, x) in a mode, None for what has none, and the value that it gives besides."
    if mode == "func": return torch.func.grad(total, (0, 1, 2), has_aux=True)(*(leaf.detach() for leaf in leaves))
    if mode == "vmap":
        def of_one(s, tau, x, mask, y, key):
            def one(s, tau, x): return total(s[None], tau, x[None], None if mask is None else mask[None], laid.around._replace(y=y[None], key=key[None]), 0)
            return torch.func.grad(one, (0, 1, 2), has_aux=True)(s, tau, x)
        rows = (0, None, 0, None if laid.mask is None else 0, 0, 0)
        (s, tau, x), v = torch.func.vmap(of_one, rows)(*(leaf.detach() for leaf in leaves), laid.mask, laid.around.y, laid.around.key)
        own = (torch.arange(len(s)) == laid.row)[:, None]       # each row is a set of its own, with its own sum
        return (s * own, tau[laid.row], x * own), v[laid.row]
    value, v = total(*leaves)
    if not value.requires_grad: return (), v
    return torch.autograd.grad(value, leaves, create_graph=mode in ("create_graph", "second"), allow_unused=True), v


def told(subject, laid, leaves, grads, suffix=""):
    "The gradients of the set by name, and under `leak` what is not zero elsewhere."
    found = {}
    for name, g, leaf in zip(("s", "tau", "x"), grads, leaves):
        g = (torch.zeros_like(leaf) if g is None else g).detach().double()
        if name != "tau":
            rest = g.clone()
            rest[laid.row] = 0 if laid.mask is None else rest[laid.row].masked_fill(laid.mask[laid.row], 0)
            found[f"leak {name}{suffix}"] = rest.abs().sum()
            g = g[laid.row, laid.at]
        if name != "x" or subject.payload: found[name + suffix] = g
    return found


def outcome(subject, case, laid=None, tau=None, f=None):
    "Value and derivatives of the set in a case: a dictionary of tensors in double precision."
    laid = laid or laid_out(case)
    f = f or case.mode == "second" and subject.again or subject.f
    tau = torch.tensor(case.tau, dtype=torch.float64).to(laid.s.dtype) if tau is None else tau
    def total(s, tau, x, mask=laid.mask, around=laid.around, row=laid.row):
        v = picked(subject, case, f(s, tau, mask, around._replace(x=x)), row, laid.at)
        return (v * wave(v)).sum(), v
    leaves = laid.s, tau, laid.around.x
    if case.mode == "value":
        with torch.no_grad(): return dict(value=total(*leaves)[1].double())
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    grads, v = gradients(total, leaves, laid, case.mode)
    found = dict(value=v.detach().double(), **told(subject, laid, leaves, grads))
    if case.mode == "second" and grads and grads[0] is not None and grads[0].requires_grad:
        g = grads[0][laid.row, laid.at]
        found |= told(subject, laid, leaves, torch.autograd.grad((g * wave(g, 2.0)).sum(), leaves, allow_unused=True), "2")
    return found


def shaken(s, x, tau, eps, rng, mixes):
    "The data with each gap of neighbouring scores, each payload and tau off by a share of at most eps; each score by a share of the spread if it `mixes`."
    def share(v): return 1 + eps * (2 * torch.rand(v.shape, generator=rng, dtype=torch.float64) - 1)
    t, order = s.sort()
    gaps = t.diff() * share(t[1:])
    up = torch.cat([gaps.new_zeros(1), gaps.cumsum(0)])
    middle = len(t) // 2
    t = torch.where(torch.arange(len(t)) == middle, t, up - up[middle] + t[middle])
    if mixes: t = t + (share(t) - 1) * (t[-1] - t[0])
    return torch.empty_like(s).scatter(0, order, t), x * share(x), tau * share(tau)


def scales(right, s, t, dtype, in_scores, of_set):
    "What each entry of an outcome is measured in: its largest number, and what is rounded on the way there, in units of RELATIVE."
    value, unit = right["value"], right["value"].abs()
    if in_scores: unit = unit.clamp(max=max(value.max() - value.min(), s.max() - s.min()))
    eps, least = torch.finfo(dtype).eps / RELATIVE[dtype], torch.finfo(dtype).tiny / RELATIVE[dtype]
    ones = 2 * eps * (of_set and not in_scores)         # a loss or a metric may be one less what is computed
    found = dict(value=torch.maximum(unit, unit.median()) + 8 * eps * value.abs() + least + ones)
    for n, per in (("", 1 / t), ("2", 1 / t**2)):
        if f"s{n}" not in right: continue
        rounded = max(unit.max(), 8.0) if of_set and not in_scores else unit.max()     # a loss that is zero was a difference of ones
        g, noise = right[f"s{n}"].abs(), 4 * eps * rounded * per + least * max(1, per)
        found[f"s{n}"] = g.max() + noise
        found[f"tau{n}"] = right[f"tau{n}"].abs() + (g * (s - s.median()).abs()).sum() / t + noise
        if f"x{n}" in right: found[f"x{n}"] = right[f"x{n}"].abs().max() + (8 * eps + least) * per * t      # a sum of weights that cancel
    return found


@lru_cache(4096)
def expected(name, twin, case):
    "Outcome of the set alone in double precision, and the bounds of each of its entries."
    subject, laid = SUBJECTS[name], laid_out(case)
    def at(s, x, t):
        exact = laid._replace(s=s[None], around=laid.around._replace(x=x[None]))
        return outcome(subject, case._replace(dtype=torch.float64), exact, t, subject.twin if twin else None)
    data = laid.s[0].double(), laid.around.x[0].double(), torch.tensor(case.tau, dtype=torch.float64).to(case.dtype).double()
    right, rng = at(*data), torch.Generator().manual_seed(7)
    moved = dict.fromkeys(right, 0.0)
    for _ in range(3):
        near = at(*shaken(*data, ROUNDING[case.dtype], rng, subject.mixes))
        for key, v in near.items(): moved[key] = max(moved[key], (v - right[key]).abs().nan_to_num(nan=math.inf).max().item())
    unit = scales(right, data[0], case.tau, case.dtype, name.split(":")[0] in IN_SCORES, subject.lay == "set")
    return right, {key: RELATIVE[case.dtype] * math.sqrt(case.d) * unit[key] + SAFETY * moved[key] for key in unit}


def converges(f, *args, **kwargs):
    "The result, or None where a transport says that it has not converged."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", ConvergenceWarning)
        try: return f(*args, **kwargs)
        except ConvergenceWarning: return None


def against(subject, case, twin=False, times=1):
    "What differs in a case from the set alone by more than `times` the bound: lines of text."
    alone = case._replace(B=1, N=0, place="", filler=0.0, far=0.0, mode=case.mode if case.mode in ("value", "second") else "autograd")
    right, bound = expected(subject.name, twin, alone)
    wrong = []
    for key, v in outcome(subject, case).items():
        if key.startswith("leak"):
            if not v == 0: wrong.append(f"{key} {v.item():.3g}")
        elif v.shape != right[key].shape: wrong.append(f"{key} has shape {tuple(v.shape)}, not {tuple(right[key].shape)}")
        else:
            limit = (times * bound[key]).expand(v.shape)
            same = (v == right[key]) | (v.isnan() & right[key].isnan()) | (right[key].abs() + limit > torch.finfo(case.dtype).max)     # beyond all numbers
            off = ((v - right[key]).abs() / limit).masked_fill(same, 0).nan_to_num(nan=math.inf).flatten()
            if (i := off.argmax()) >= 0 and off[i] > 1: wrong.append(f"{key} {v.flatten()[i]:.6g} for {right[key].flatten()[i]:.6g} (bound {limit.flatten()[i]:.2g})")
    return wrong


SUBJECTS = subjects()
