"""One set in many ways: every operator, function and loss of tests/tables.py, its value and derivatives for one set wherever that lies, and how far they may be off.

`subjects()` are the calls. A `Case` says where the set lies (alone, padded, in a batch) and how it is differentiated; `outcome` gives what is
compared, and `expected` the same of the set alone in double precision, with bounds from the conditioning: the outcome may move by what rounding each
difference of two scores, each payload and the temperature moves it."""
import math
import warnings
from functools import lru_cache
from typing import Any, Callable, NamedTuple

import torch
from regimes import PLACES, REGIMES, spread_of
from tables import FUNCTIONS, HOST_FUNCTIONS, HOST_LOSSES, LOSSES, OPERATORS, RANKS

from softsortlib import functional, losses, selection
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
OWN = {"SoftKNN": lambda s, tau, mask: losses.SoftKNN(1, tau=tau, classes=2)(s[:, :1, None], s[..., None], torch.arange(s.shape[-1]).expand(s.shape) % 2)}     # not squashed, in logarithms
BY_LISTS, IN_NUMPY, OWN_GRAPH = MODES[:4] + MODES[5:], ("value",), ("autograd",)       # lists are cut out of a batch by boolean masks, which vmap cannot


def modes_of(call):
    if call.public.startswith("chunked"): return IN_NUMPY
    if call.public == "gradient_and_curvature": return OWN_GRAPH
    return BY_LISTS if "lists" in call.name else MODES


def subjects():
    "All of them, by name."
    found = []
    for row in OPERATORS:
        if row.promise("repeats"): found += questions(row)
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
    return s, x, torch.randint(0, 4, (m,), generator=rng).index_fill(0, torch.tensor([0]), 3), torch.rand(m, generator=rng, dtype=torch.float64)


def laid_out(case):
    "Scores (B, N), mask, `Around`, and the row and places of the set."
    s, x, y, key = the_set(case.regime, case.m, case.dtype, case.seed)
    B, m, N = case.B, case.m, (case.N or case.m) + bool(case.far)
    rng = torch.Generator().manual_seed(case.seed + 1)
    if B == 1 and N == m:
        mask = torch.ones(1, m, dtype=torch.bool) if case.place else None
        return s[None].clone(), mask, Around(x[None].clone(), y[None], key[None], case.d, case.k, case.descending), (0, torch.arange(m))
    row = B // 2
    at = PLACES[case.place](m, N) if case.place else torch.arange(m)
    if case.place:
        mask = torch.rand(B, N, generator=rng) < 0.6
        mask[:, 0], mask[row] = True, False
        mask[row, at] = True
        big = REGIMES[case.regime](B, N, case.dtype, rng)
        big[~mask] = case.filler
    else:
        mask, big = None, REGIMES[case.regime](B, N, case.dtype, rng)
    X = torch.randn(B, N, generator=rng, dtype=torch.float64).to(case.dtype)
    Y, K = torch.randint(0, 4, (B, N), generator=rng), torch.rand(B, N, generator=rng, dtype=torch.float64)
    if mask is not None: X[~mask] = case.filler
    big[row, at], X[row, at], Y[row, at], K[row, at] = s, x, y, key
    if case.far: big[row, m] = (s.double().median() + case.far * case.tau).to(case.dtype)
    return big, mask, Around(X, Y, K, case.d, case.k, case.descending), (row, at)


def picked(subject, out, row, at):
    "What belongs to the set."
    if subject.lay == "elements": return out[row, at]
    if subject.lay == "order": return out[row, :len(at)]
    return out[row]


def of_far(subject, v, case):
    "Without the place of the element that was added far away."
    return v[1:] if subject.lay == "order" and (case.far < 0) != case.descending else v


def wave(v, shift=1.0): return (torch.arange(v.numel(), dtype=torch.float64) * 0.7 + shift).cos().reshape(v.shape).to(v)


def outcome(subject, case, s=None, mask=None, around=None, where=None, tau=None, f=None):
    "Value and derivatives of the set in a case: a dictionary of tensors in double precision."
    if s is None: s, mask, around, where = laid_out(case)
    f = f or case.mode == "second" and subject.again or subject.f
    row, at = where
    tau = torch.tensor(case.tau, dtype=torch.float64).to(s.dtype) if tau is None else tau
    def total(s, tau, x, mask=mask, around=around, row=row):
        out = f(s, tau, mask, around._replace(x=x))
        v = picked(subject, out, row, at)
        if case.far: v = of_far(subject, v if subject.lay != "order" else out[row, :len(at) + 1], case)[:len(at)]
        return (v * wave(v)).sum(), v
    if case.mode == "value":
        with torch.no_grad(): return dict(value=total(s, tau, around.x)[1].double())
    leaves = s.clone().requires_grad_(), tau.clone().requires_grad_(), around.x.clone().requires_grad_()
    def told(value, grads, names="s tau x"):
        found = dict(value=value.detach().double())
        for name, g, leaf in zip(names.split(), grads, leaves):
            if g is None: g = torch.zeros_like(leaf)
            g = g.detach().double()
            if name[0] != "t":
                rest = g.clone()
                rest[row, at] = 0
                if g.shape[1] == len(at) + bool(case.far) and case.far: rest[row, len(at):] = 0
                found[f"leak {name}"] = rest.abs().max() if not rest.isnan().any() else torch.tensor(math.nan)
                g = g[row, at]
            if name[0] != "x" or subject.payload: found[name] = g
        return found
    if case.mode == "func":
        grads, (_, v) = torch.func.grad(lambda *a: (lambda t: (t[0], t))(total(*a)), argnums=(0, 1, 2), has_aux=True)(*(leaf.detach() for leaf in leaves))
        return told(v, grads)
    if case.mode == "vmap":
        def one(s, mask, x, y, key, tau):
            return torch.func.grad(lambda *a: (lambda t: (t[0], t[1]))(total(a[0][None], a[1], a[2][None], None if mask is None else mask[None], around._replace(y=y[None], key=key[None]), 0)),
                                   argnums=(0, 1, 2), has_aux=True)(s, tau, x)
        grads, v = torch.func.vmap(one, in_dims=(0, None if mask is None else 0, 0, 0, 0, None))(s, mask, around.x, around.y, around.key, tau)
        gs, gtau, gx = grads
        others = torch.ones(len(s), 1)
        others[row] = 0
        return told(v[row], (gs * (1 - others), gtau[row], gx * (1 - others)))
    value, v = total(*leaves)
    if not value.requires_grad: return dict(value=v.double())
    grads = torch.autograd.grad(value, leaves, create_graph=case.mode in ("create_graph", "second"), allow_unused=True)
    if case.mode != "second": return told(v, grads)
    if grads[0] is None or not grads[0].requires_grad: return told(v, grads)
    g = grads[0][row, at]
    more = torch.autograd.grad((g * wave(g, 2.0)).sum(), leaves, allow_unused=True)
    return {**told(v, grads), **{k: w for k, w in told(v, more, "s2 tau2 x2").items() if k != "value"}}


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


@lru_cache(4096)
def expected(name, regime, m, seed, dtype, tau, d, k, descending, mode, twin):
    "Outcome of the set alone in double precision, and the bounds of each of its entries."
    subject = SUBJECTS[name]
    case = Case(regime, m, mode=mode, dtype=dtype, tau=tau, d=d, k=k, descending=descending, seed=seed)
    s, _, around, where = laid_out(case)
    s, x, t = s.double(), around.x.double(), torch.tensor(tau, dtype=torch.float64).to(dtype).double()
    def at(s, x, t): return outcome(subject, case._replace(dtype=torch.float64), s[None], None, around._replace(x=x[None]), where, t, subject.twin if twin else None)
    right = at(s[0], x[0], t)
    rng = torch.Generator().manual_seed(7)
    moved = {key: torch.zeros_like(v) for key, v in right.items()}
    for _ in range(3):
        for key, v in at(*shaken(s[0], x[0], t, ROUNDING[dtype], rng, subject.mixes)).items():
            moved[key] = torch.maximum(moved[key], (v - right[key]).abs().nan_to_num(nan=math.inf))
    s, t = s[0], t.item()
    centred = (s - s.median()).abs()
    value = right["value"]
    unit = value.abs()
    if name.split(":")[0] in IN_SCORES: unit = unit.clamp(max=max(value.max() - value.min(), s.max() - s.min()))
    scale = dict(value=torch.maximum(unit, unit.median()) + 8 * torch.finfo(dtype).eps / RELATIVE[dtype] * value.abs())
    noise = torch.finfo(dtype).eps / RELATIVE[dtype] * unit.max() / t
    for n in ("", "2"):
        if f"s{n}" not in right: continue
        g = right[f"s{n}"].abs()
        scale[f"s{n}"] = g.max() + noise / (t if n else 1)
        scale[f"tau{n}"] = right[f"tau{n}"].abs() + (g * centred).sum() / t + noise / (t if n else 1)
        if f"x{n}" in right: scale[f"x{n}"] = right[f"x{n}"].abs().max() + torch.finfo(dtype).eps / RELATIVE[dtype] * (1 / t if n else 1)
    least = torch.finfo(dtype).tiny / RELATIVE[dtype]       # below it numbers end
    scale = {key: v + least * max(1, 1 / t ** (0 if key == 'value' else 2 if key[-1] == '2' else 1)) for key, v in scale.items()}
    return right, {key: RELATIVE[dtype] * math.sqrt(d) * scale[key] + SAFETY * moved[key].amax().expand(moved[key].shape) for key in scale}


def converges(f, *args, **kwargs):
    "The result, or None where a transport says that it has not converged."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", ConvergenceWarning)
        try: return f(*args, **kwargs)
        except ConvergenceWarning: return None


def reference(mode): return mode if mode in ("value", "second") else "autograd"


def against(subject, case, twin=False, times=1):
    "What differs in a case from the set alone by more than `times` the bound: lines of text."
    right, bound = expected(subject.name, case.regime, case.m, case.seed, case.dtype, case.tau, case.d, case.k, case.descending, reference(case.mode), twin)
    found = outcome(subject, case)
    wrong = []
    for key, v in found.items():
        if key.startswith("leak"):
            if not v == 0: wrong.append(f"{key} {v.item():.3g}")
            continue
        if key not in right: continue
        if v.shape != right[key].shape: wrong.append(f"{key} has shape {tuple(v.shape)}, not {tuple(right[key].shape)}"); continue
        off = (v - right[key]).abs()
        same = (v == right[key]) | (v.isnan() & right[key].isnan())
        beyond = right[key].abs() + bound[key] > torch.finfo(case.dtype).max        # no number of the dtype
        bad = ~same & ~beyond & ~(off <= times * bound[key])
        if bad.any():
            ratio = (off / bound[key]).masked_fill(same | beyond, 0).nan_to_num(nan=math.inf)
            i = ratio.flatten().argmax()
            wrong.append(f"{key} {v.flatten()[i].item():.6g} for {right[key].flatten()[i].item():.6g} (bound {bound[key].flatten()[i].item():.2g})")
    return wrong


SUBJECTS = subjects()
