"""What every operator, function and loss of tests/tables.py keeps at random scores: any dtype, shape, strides and mask, ties, outliers up to
the largest number, temperatures over 24 decades.

In the usual run a small share, the same one each time. To explore, `HYPOTHESIS_PROFILE=explore EXAMPLES=2000 pytest tests/test_properties.py`:
that many cases for each entry, and each failure shrunk to its smallest.
"""
import math
import os
import warnings
from contextlib import suppress
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tables import FUNCTIONS, HOST_FUNCTIONS, HOST_LOSSES, LOSSES, OPERATORS, RANKS

from softsortlib.transport import ConvergenceWarning

EXPLORES = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
EXAMPLES = int(os.environ.get("EXAMPLES", 1000)) if EXPLORES else 8
FAR = 1.0 if EXPLORES else 0.4      # in the usual run an outlier divided by the smallest tau is still a number of the dtype
share = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
EPS = {torch.float64: 1e-7, torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 2e-2}     # what a result in [0, 1] may be off by


class Case(NamedTuple):
    "Random scores (b, n), drawn again from the seed, so that a failing case prints as one line."
    seed: int
    b: int
    n: int
    dtype: torch.dtype
    values: str
    strides: str
    masked: bool
    exponent: float         # of tau, and
    outlier: float          # of the outlier, as a share of the largest exponent of the dtype
    descending: bool

    @property
    def tau(self): return 10.0 ** self.exponent

    def scores(self):
        rng = torch.Generator().manual_seed(self.seed)
        s = torch.randn(self.b, self.n, generator=rng, dtype=torch.float64)
        if self.values == "ties": s = s.round()
        if self.values == "equal": s = s[:, :1].expand(s.shape).clone()
        if self.values == "sorted": s = s.sort(-1).values
        far = math.exp(self.outlier * math.log(0.999 * torch.finfo(self.dtype).max))
        if self.values in ("high and low", "all far"): far /= 2        # a difference of two scores is a number of the dtype
        if "high" in self.values: s[:, -1] = far
        if "low" in self.values: s[:, 0] = -far
        if self.values == "all far": s = (s / s.abs().max() * far)
        return laid(s.to(self.dtype), self.strides)

    def mask(self):
        if not self.masked: return None
        mask = torch.rand(self.b, self.n, generator=torch.Generator().manual_seed(self.seed + 1)) < 0.7
        mask[:, 0] = True
        return mask

    def relevance(self): return torch.randint(0, 3, (self.b, self.n), generator=torch.Generator().manual_seed(self.seed + 2))

    def permutation(self): return torch.randperm(self.n, generator=torch.Generator().manual_seed(self.seed + 3))


def laid(s, strides):
    "The same numbers, laid otherwise in memory."
    if strides == "transposed": return s.mT.contiguous().mT
    if strides == "every second": return s.repeat_interleave(2, -1)[:, ::2]
    return s


cases = st.builds(
    Case, seed=st.integers(0, 10**6), b=st.integers(1, 3), n=st.sampled_from([1, 2, 3, 4, 5, 8, 13, 70]), dtype=st.sampled_from(list(EPS)),
    values=st.sampled_from(["normal", "ties", "equal", "sorted", "high", "low", "high and low", "all far"]),
    strides=st.sampled_from(["usual", "transposed", "every second"]), masked=st.booleans(),
    exponent=st.floats(-12, 12), outlier=st.floats(0.05, FAR), descending=st.booleans())


@pytest.fixture(autouse=True)
def quietly():
    "A transport that has not converged says so; what it promises holds all the same."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def close(a, b, dtype, scale=1.0, why=""):
    assert not a.isnan().any() and (a.isfinite().all() or dtype.itemsize == 2), f"{why}: {a}"
    assert torch.allclose(a.double(), b.double(), rtol=EPS[dtype], atol=EPS[dtype] * scale), f"{why}: {a} and {b}"


def gradient(out, *leaves):
    "Of a weighted mean of what came out, which is a number where that is."
    w = torch.arange(out.numel(), dtype=torch.float64).cos().reshape(out.shape).to(out.dtype) / out.numel()
    return torch.autograd.grad((out * w).sum(), leaves)


def is_number(grad, case, why):
    "Not NaN; and finite where the slope, of the size of 1/tau, is a number of the dtype."
    assert not grad.isnan().any(), f"{why}: {grad}"
    if case.dtype.itemsize > 2: assert grad.isfinite().all(), f"{why}: {grad}"


def check_half(out, of, s):
    "`out` is what `of` makes of s of a half type: it is computed in single precision and rounded once, infinite only where the number is beyond the type."
    dtype = s.dtype
    if dtype.itemsize > 2: return
    wide = of(s.float()).to(dtype)
    beyond = wide.isinf() & (out == wide)
    close(out.masked_fill(beyond, 0), wide.masked_fill(beyond, 0), dtype, why="not what single precision says")


def tame(case):
    "Whether two ways to the same number may be compared: no outlier swallows the digits of the others, and no temperature their differences."
    return not any(far in case.values for far in ("high", "low", "far")) and case.exponent < (5 if case.dtype == torch.float64 else 3)


@pytest.mark.parametrize("row", OPERATORS, ids=lambda row: row.name)
@share
@given(case=cases)
def test_operators(row, case):
    s, mask, dtype = case.scores().requires_grad_(), case.mask(), case.dtype
    def of(s, mask=None): return row.make(tau=case.tau, descending=case.descending)(s, mask)
    P = of(s, mask)
    x = torch.arange(case.n, dtype=torch.float64).sin().to(dtype).expand(case.b, case.n).clone().requires_grad_()
    D, soft, hard = P.to_dense(), P @ x, P.hard()
    size = torch.full((case.b,), case.n) if mask is None else mask.sum(-1)
    real = torch.arange(case.n) < size[:, None]
    wide = 1 if row.promise("fixed_steps") else 1000       # a transport sums to one as far as it has converged
    close(D.double().sum(-1), real.double().expand(D.shape[:-1]), dtype, wide, why="a row does not sum to one")
    assert (D >= 0).all() and (soft.double().abs() <= 1 + EPS[dtype]).all()
    assert torch.equal(hard.sort(-1).values, torch.arange(case.n).expand(hard.shape)), f"hard() is no permutation: {hard}"
    for g, why in zip(gradient(soft, s, x), ("to the scores", "to the payload")): is_number(g, case, f"the gradient {why}")
    if row.promise("repeats"): check_half(soft, lambda s: of(s, mask) @ x.to(s.dtype), s)
    if not row.promise("repeats") or not tame(case): return
    with warnings.catch_warnings(), suppress(ConvergenceWarning):       # what has not converged cannot be compared
        warnings.simplefilter("error", ConvergenceWarning)
        if mask is not None:
            for b in range(case.b): close((of(s, mask) @ x)[b, :size[b]], of(s[b, mask[b]]) @ x[b, mask[b]], dtype, wide, why="masked is not shorter")
        elif row.promise("equivariant"):
            at = case.permutation()
            close(of(s[:, at]) @ x[:, at], of(s) @ x, dtype, wide, why="not the same after a permutation")


@pytest.mark.parametrize("row", RANKS, ids=lambda row: row.name)
@share
@given(case=cases)
def test_ranks(row, case):
    s, mask, dtype = case.scores().requires_grad_(), case.mask(), case.dtype
    def of(s, mask=None): return row.make(tau=case.tau, descending=case.descending)(s, mask)
    r = of(s, mask)
    size = torch.full((case.b, 1), case.n) if mask is None else mask.sum(-1, keepdim=True)
    kept = torch.ones_like(s, dtype=torch.bool) if mask is None else mask
    slack = EPS[dtype] * case.n
    assert r.isfinite().all() and (r.double() >= 1 - slack)[kept].all() and (r.double() <= size + slack)[kept].all(), f"not within 1..n: {r}"
    is_number(gradient(r, s)[0], case, "the gradient")
    check_half(r, lambda s: of(s, mask), s)
    if not tame(case): return
    if mask is not None:
        for b in range(case.b): close(r[b, mask[b]], of(s[b, mask[b]]), dtype, case.n, why="masked is not shorter")
    else: close(of(s[:, case.permutation()]), r[:, case.permutation()], dtype, case.n, why="not the same after a permutation")


def check_call(call, case, of):
    "What functions and losses keep; `of(s, mask, at)` calls at the columns `at`."
    s, mask, dtype = case.scores().requires_grad_(), case.mask() if call.masked else None, case.dtype
    everything = torch.arange(case.n)
    out = of(s, mask, everything)
    assert not out.isnan().any(), f"{out}"
    if call.within:
        low, high = call.within
        kept = out.double() if mask is None or out.shape != s.shape else out.double()[mask]
        assert (kept >= low - EPS[dtype]).all() and (high is None or (kept <= high + EPS[dtype]).all()), f"not within {call.within}: {out}"
    if call.direct: check_half(out, lambda s: of(s, mask, everything), s)
    if not out.isfinite().all():
        assert dtype.itemsize == 2 or s.detach().double().abs().max().item() / case.tau > 1e30, f"{out}"
        return          # larger than the largest number
    if out.requires_grad: is_number(gradient(out, s)[0], case, "the gradient")
    if not tame(case): return
    scale = max(1, case.n, out.detach().double().abs().max().item())
    if mask is not None:
        for b in range(case.b):
            alone = of(s[b:b + 1, mask[b]], None, mask[b].nonzero()[:, 0], b)[0]
            whole = out[b] if out.shape != s.shape else out[b, mask[b]] if call.equivariant else out[b, :len(alone)]
            close(whole, alone, dtype, scale, why="masked is not shorter")
    elif call.equivariant or call.invariant:
        at = case.permutation()
        close(of(s[:, at], None, at), out[:, at] if call.equivariant else out, dtype, scale, why="not the same after a permutation")


@pytest.mark.parametrize("call", FUNCTIONS + HOST_FUNCTIONS, ids=lambda call: call.name)
@share
@given(case=cases)
def test_functions(call, case):
    check_call(call, case, lambda s, mask, at, b=None: call.f(s, case.tau, mask))


@pytest.mark.parametrize("call", LOSSES + HOST_LOSSES, ids=lambda call: call.name)
@share
@given(case=cases.filter(lambda case: case.n > 1))
def test_losses(call, case):
    y = case.relevance()
    check_call(call, case, lambda s, mask, at, b=None: call.f(s, (y if b is None else y[b:b + 1])[:, at], case.tau, mask))
