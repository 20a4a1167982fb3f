"""NeuralSort: fast and plain paths against an oracle in extended precision, dtypes, transforms, masks, speed."""
import math
import statistics
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from softsortlib.core.permutation import is_unimodal_row_stochastic
from softsortlib.rowwise.neuralsort import NeuralSort, neuralsort_published, neuralsort_quadratic
from softsortlib.rowwise.products import _pull, row_answer
from softsortlib.rowwise.reference import row_sums
from softsortlib.rowwise.rows import Asked, window

L = np.longdouble


def oracle(s, tau, G):
    "P, log P, the gradient of (G * P).sum() to s and to tau, in extended precision and without cancellation."
    s, n = np.asarray(s, dtype=L), len(s)
    order = np.argsort(-s, kind="stable")
    t, k, i = s[order], np.arange(n - 1), np.arange(n)
    gap, step = t[:-1] - t[1:], 2 * (k[None] - i[:, None]) + 1
    fall = np.zeros((n, n), L)
    fall[:, 1:] += np.cumsum(gap * np.clip(step, 0, None), 1)
    fall[:, :-1] += np.cumsum((gap * np.clip(-step, 0, None))[:, ::-1], 1)[:, ::-1]
    E = np.exp(-fall / L(tau))
    Z = E.sum(1, keepdims=True)
    P, G = E / Z, np.asarray(G, L)[:, order]
    G = G - np.diag(G)[:, None]
    e, sign = P * (G - (P * G).sum(1, keepdims=True)), np.sign(t[:, None] - t[None])
    gs = ((e * ((n - 1 - 2 * i)[:, None] - sign.sum(1)[None])).sum(0) + (e.sum(0)[:, None] * sign).sum(0)) / L(tau)
    back = np.argsort(order)
    return P[:, back], (-fall / L(tau) - np.log(Z))[:, back], gs[back], (e * fall).sum() / L(tau) ** 2


def cases(n, rng):
    u = torch.rand(n, generator=rng, dtype=torch.float64)
    return {"uniform": u, "ties": (u * 8).floor() / 8, "clusters": torch.where(torch.arange(n) % 2 == 0, u * 1e-5, 1 - u * 1e-5),
            "heavy": (u - 0.5) / (1 - (2 * u - 1).abs() + 1e-3), "offset": u + 1000}


def off(got, want, least=0.0):
    "Error relative to the norm of what is wanted, or to `least` where that is larger."
    return float(np.linalg.norm(np.asarray(got.detach().double().numpy(), L) - want) / max(np.linalg.norm(want), L(least), L(1e-300)))


@pytest.mark.parametrize("dtype, tol", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("kind", ["uniform", "ties", "clusters", "heavy", "offset"])
@pytest.mark.parametrize("n, backend", [(5, None), (40, "numba"), (40, "torch"), (90, None), (140, None)])
def test_right_at_every_temperature(n, backend, kind, dtype, tol, rng):
    "Norm of the error against the norm, or for a gradient that vanishes against a thousandth of its scale |G| / tau."
    s = cases(n, rng)[kind].to(dtype)
    G, x = (torch.randn(n, k, generator=rng, dtype=torch.float64).to(dtype) for k in (n, 2))
    X = x.double().numpy().astype(L)
    spread = float(s.double().max() - s.double().min())
    for exponent in (-6, -4, -2, -1, 0, 1, 3, 6):
        tau = spread * 10.0**exponent
        P, log_P, gs, gtau = oracle(s.double().numpy(), tau, G.double().numpy())
        z, temperature = s.clone().requires_grad_(), torch.tensor(tau, dtype=torch.float64, requires_grad=True)
        Q = NeuralSort(tau, descending=True, backend=backend)(z)
        D, here = Q.to_dense(), tau if dtype == torch.float64 else float(np.float32(tau))
        scale = float(G.double().norm()) / tau * 1e-3
        [g] = torch.autograd.grad((D * G).sum(), z, retain_graph=True)
        y = Q @ x
        [gx] = torch.autograd.grad((y * x).sum(), z)
        errors = dict(P=off(D, P), gradient=off(g, gs, scale), Px=off(y, P @ X), PTx=off(Q.mT @ x, P.T @ X),
                      Px_gradient=off(gx, oracle(s.double().numpy(), tau, X @ X.T)[2], float((X @ X.T).std()) * n / tau * 1e-3))
        for target in (s.argsort(descending=True), s.argsort()):
            want = log_P[np.arange(n), target.numpy()]
            errors[f"log_prob {target[0]}"] = off(Q.log_prob(target), want, math.sqrt(n))
        learnt = NeuralSort(torch.nn.Parameter(torch.tensor(here, dtype=torch.float64)), descending=True, backend=backend)
        [gt] = torch.autograd.grad((learnt(s).to_dense() * G).sum(), learnt.tau)
        errors["tau"] = off(gt, gtau, float(G.double().norm()) / tau * 1e-2)
        bad = {k: v for k, v in errors.items() if not v <= tol * (1 if k != "tau" else 10)}
        assert not bad, (exponent, bad)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 33, 100])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_forms_and_backends_agree(dtype, n, rng):
    s = torch.randn(2, 3, n, generator=rng, dtype=torch.float64).to(dtype)
    want = neuralsort_quadratic(s.double(), 2.0)
    assert_close(neuralsort_published(s.double().flatten(0, 1), 2.0).view(want.shape), want)
    for backend in (None, "torch", "numba"):
        for descending in (True, False):
            P = NeuralSort(2.0, descending, backend)(s)
            got = P.to_dense()
            assert got.dtype == dtype
            assert_close(got.double(), want if descending else want.flip(-2), **({"rtol": 1e-5, "atol": 1e-6} if dtype.itemsize > 2 else {"rtol": 1e-2, "atol": 1e-3}))
            assert_close(P[..., n // 2 :, :].to_dense(), got[..., n // 2 :, :], rtol=1e-4 if dtype.itemsize > 2 else 1e-2, atol=1e-5)


def test_row_sums_are_the_sums_of_all_distances(rng):
    t = torch.randint(5, (4, 9), generator=rng).double().sort(-1, descending=True).values.requires_grad_()
    size, real = torch.tensor([9, 7, 1, 0]), torch.arange(9) < torch.tensor([9, 7, 1, 0])[:, None]
    want = ((t[..., :, None] - t[..., None, :]).abs() * real[:, None]).sum(-1)
    padded = torch.where(real, t, t.gather(-1, (size[:, None] - 1).clamp(min=0)))
    got = row_sums(padded, size)
    assert_close(got[real], want[real])
    weights = torch.randn(4, 9, generator=rng, dtype=torch.float64) * real
    for a, b in zip(torch.autograd.grad((got * weights).sum(), t), torch.autograd.grad((want * weights).sum(), t)): assert_close(a, b)


@given(st.lists(st.integers(-6, 6), min_size=1, max_size=12), st.floats(0.05, 50), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_scores_give_rows_that_fall_from_the_diagonal(values, tau, descending):
    s = torch.tensor(values, dtype=torch.float64)
    P = NeuralSort(tau, descending, "numba")(s)
    D = P.to_dense().gather(-1, P.hard().expand(len(values), -1))
    for i in range(len(values)):
        assert (D[i, i:].diff() <= 1e-12).all() and (D[i, : i + 1].diff() >= -1e-12).all()
    assert_close(D.sum(-1), torch.ones(len(values), dtype=torch.float64))
    if len(set(values)) == len(values): assert is_unimodal_row_stochastic(P)


@pytest.mark.parametrize("asked", [Asked.MATRIX, Asked.LIKELIHOOD, Asked.PRODUCT, Asked.BACK_PRODUCT])
def test_operators_keep_torchs_contracts(asked, rng):
    leaf = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64).requires_grad_()
    s, tau, size = leaf(2, 6), torch.tensor([0.8, 3.0], dtype=torch.float64).requires_grad_(), torch.tensor([6, 4])
    x, order = leaf(2, *((0, 0) if asked in (Asked.MATRIX, Asked.LIKELIHOOD) else (6, 3))), s.detach().argsort(-1, descending=True)
    args = s, order, size, tau, x, order[:, :6 if asked == Asked.LIKELIHOOD else 0], None, int(asked), 0.0, True
    torch.library.opcheck(row_answer.op, (*args, ""), test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))
    g = torch.randn_like(row_answer(*args, "").detach())
    torch.library.opcheck(_pull.op, (g, *args, True, True, ""), test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_twice(backend, masked, rng):
    s, x = torch.randn(2, 5, generator=rng, dtype=torch.float64), torch.randn(2, 5, 2, generator=rng, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 1, 1]]).bool() if masked else None
    target = torch.tensor([[0, 1, 3, 4, 2], [4, 0, 1, 3, 2]])
    tau = torch.tensor([0.7, 2.0], dtype=torch.float64)

    def f(s, x, tau):
        op = NeuralSort(1.0, backend=backend)
        op.tau = tau
        P = op(s, mask)
        return P @ x, P.mT @ x, P.log_prob(target).masked_fill(P.row_mask.logical_not() if masked else torch.zeros(2, 5).bool(), 0), P.to_dense()

    inputs = [a.clone().requires_grad_() for a in (s, x, tau)]
    assert torch.autograd.gradcheck(f, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, inputs, fast_mode=True)


@pytest.mark.parametrize("n", [6, 60])
def test_compile_and_transforms(n, rng):
    s, x = torch.randn(3, n, generator=rng, dtype=torch.float64), torch.randn(3, n, 2, generator=rng, dtype=torch.float64)
    op = NeuralSort(5.0)

    def f(s, x):
        P = op(s)
        return P @ x, P.mT @ x, P.log_prob(s.detach().argsort()), P.to_dense()

    for a, b in zip(torch.compile(f, fullgraph=True, backend="aot_eager")(s, x), f(s, x)): assert_close(a, b)
    loss = lambda s, x: sum((y * y).sum() for y in f(s, x))
    z = s.clone().requires_grad_()
    [want] = torch.autograd.grad(loss(z, x), z)
    assert_close(torch.func.grad(loss)(s, x), want)
    assert_close(torch.func.vmap(torch.func.grad(loss))(s, x), want)
    assert_close(torch.func.vmap(lambda x: op(s[0]) @ x)(x), op(s[0]) @ x)


def test_autocast_and_half_types(rng):
    s = torch.rand(2, 80, generator=rng)
    want = NeuralSort(3.0)(s.bfloat16().float()).to_dense()
    with torch.autocast("cpu", torch.bfloat16): got = NeuralSort(3.0)(s.bfloat16()).to_dense()
    assert got.dtype == torch.bfloat16
    assert_close(got.float(), want, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("n", [6, 70])
@pytest.mark.parametrize("backend", [None, "torch", "numba"])
def test_masks_nan_and_ties(n, backend, rng):
    s, mask = torch.randn(4, n, generator=rng, dtype=torch.float64), torch.rand(4, n, generator=rng) < 0.6
    mask[2], mask[3, 0] = False, True
    s[0, mask[0].nonzero()[:3, 0]] = 0.25
    wild = s.masked_fill(~mask, math.inf).requires_grad_()
    op, x = NeuralSort(4.0, backend=backend), torch.randn(4, n, 2, generator=rng, dtype=torch.float64)
    P = op(wild, mask)
    [g] = torch.autograd.grad((P @ x).square().sum() + (P.mT @ x).square().sum() + P.to_dense().pow(3).sum() + P.log_prob(P.hard()).sum(), wild)
    assert g.isfinite().all() and not g[~mask].any() and not (P @ x)[2].any() and not P.log_prob(P.hard())[2].any()
    tied = mask[0].nonzero()[:3, 0]
    symmetric = torch.autograd.grad((op(wild, mask) @ wild.detach().masked_fill(~mask, 0)).square().sum(), wild)[0][0, tied]
    assert_close(symmetric, symmetric[:1].expand(3))
    for b in (0, 1, 3):
        short = op(s[b, mask[b]])
        assert_close((P @ x)[b, : int(mask[b].sum())], short @ x[b, mask[b]])
        assert_close(P.to_dense()[b, : int(mask[b].sum())][:, mask[b]], short.to_dense())
    s[1, 3] = math.nan
    for out in (op(s) @ x, op(s).to_dense(), op(s).mT @ x):
        assert out[[0, 2, 3]].isfinite().all() and out[1].isnan().any()


@pytest.mark.parametrize("dtype, n", [(torch.float32, 20), (torch.float32, 200), (torch.float64, 60)])
def test_tiles_of_plain_torch_have_gradients(dtype, n, rng, monkeypatch):
    "What the first tile keeps must not be missing when it is recomputed: every call first on a fresh map, in tiles and at once."
    s, x = torch.randn(2, n, generator=rng, dtype=torch.float64).to(dtype).requires_grad_(), torch.randn(2, n, 3, generator=rng, dtype=torch.float64).to(dtype)
    for call in (lambda P: P @ x, lambda P: P.mT @ x, lambda P: P.log_prob(s.detach().argsort(-1)), lambda P: P[..., 2:, :] @ x):
        grads = []
        for tile in (1 << 22, 5 * n):
            monkeypatch.setattr("softsortlib.core.permutation._TILE", tile)
            out = call(NeuralSort(2.0, backend="torch")(s))
            grads.append(torch.autograd.grad(out, s, torch.ones_like(out).cumsum(-1)))
        assert_close(*grads)


def test_a_map_first_used_without_gradients_has_them_later(rng):
    s, x = torch.randn(60, generator=rng, dtype=torch.float64).requires_grad_(), torch.randn(60, generator=rng, dtype=torch.float64)
    for backend in ("torch", "numba"):
        P = NeuralSort(2.0, descending=True, backend=backend)(s)
        with torch.no_grad(): P.hard()
        assert_close(torch.autograd.grad((P @ x).square().sum(), s), torch.autograd.grad((NeuralSort(2.0, descending=True)(s) @ x).square().sum(), s))


def test_backend_must_be_known():
    with pytest.raises(ValueError, match="backend"): NeuralSort(backend="cuda")


def test_products_keep_no_matrix(rng):
    "40,000 scores: the matrix would take 6.4 GB."
    s = torch.rand(40_000, generator=rng).requires_grad_()
    y = NeuralSort(1e-3, descending=True)(s) @ s
    [g] = torch.autograd.grad(y.sum(), s)
    assert_close(y, s.detach().sort(descending=True).values, atol=1e-2, rtol=0)
    assert g.isfinite().all()


@pytest.mark.parametrize("kind", ["uniform", "ties", "clusters", "heavy"])
@pytest.mark.parametrize("cut", [87.0, 708.0])
def test_only_the_window_is_computed(kind, cut, rng):
    "A row touches the columns that do not underflow and no others, at any temperature; a tile those of its first and its last row."
    n = 300
    t = cases(n, rng)[kind].sort(descending=True).values
    t, b = (t - t.min()).numpy(), row_sums(t - t.min(), torch.tensor(n)).numpy()
    fall = (t[:, None] - t) * (n - 1 - 2 * np.arange(n))[:, None] - (b[:, None] - b)
    for tau in (1e-4, 1e-2, 1.0, 100.0, 1e4):
        for i in range(0, n - 3, 7):
            lo, hi = window(i, i + 3, True, cut * tau, t, np.empty((2, n)))
            first, last = np.flatnonzero(fall[i] <= cut * tau)[0], np.flatnonzero(fall[i + 3] <= cut * tau)[-1]
            assert abs(lo - first) + abs(hi - 1 - last) == 0


@pytest.mark.parametrize("spread", [200.0, 1e4, 1e6])
@pytest.mark.parametrize("kind", ["uniform", "ties", "clusters", "heavy", "geometric"])
def test_rows_of_a_large_matrix_sum_to_one(kind, spread, rng):
    "10,000 scores at a temperature of 100 in single precision: the sum and the diagonal of some rows."
    n, rows = 10_000, torch.tensor([0, 5, 31, 32, 4992, 4993, 4999, 9984, 9999])
    s = {**cases(n, rng), "geometric": 0.5 ** (torch.arange(n, dtype=torch.float64) / n * 60)}[kind]
    s = ((s - s.min()) / (s.max() - s.min()) * spread).float()
    t = s.double().sort(descending=True).values
    b = row_sums(t, torch.tensor(n))
    P = NeuralSort(100.0, descending=True)(s)
    for i, row in zip(rows.tolist(), P[rows, :].to_dense()):
        row = row[P.hard()].double().numpy()
        m = ((n - 1 - 2 * i) * (t - t[i]) - (b - b[i])).clamp(max=0).numpy() / 100
        assert abs(row.sum() - 1) < 3e-6 and row[i] > (1 - 1e-5) * row.max()
        np.testing.assert_allclose(row, np.exp(m) / np.exp(m).sum(), rtol=3e-5, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_some_rows_by_the_kernel(dtype, rng):
    "A few rows, on the CPU by the kernel, with a mask and a broader payload; values and gradients."
    s, x = torch.randn(2, 80, generator=rng, dtype=torch.float64).to(dtype).requires_grad_(), torch.randn(3, 2, 80, 2, generator=rng, dtype=torch.float64).to(dtype).requires_grad_()
    mask = torch.rand(2, 80, generator=rng) < 0.8
    for m in (None, mask):
        fast, plain = (NeuralSort(9.0, backend=backend)(s, m)[..., [40, 3, 3], :] for backend in ("numba", "torch"))
        for call in (lambda P: P @ x, lambda P: P.mT @ x[..., :3, :], lambda P: P.log_prob(P.hard().flip(-1)), lambda P: P.to_dense()):
            a, c = call(fast), call(plain)
            assert_close(a, c, rtol=1e-5, atol=1e-6)
            G = torch.randn(a.shape, generator=rng, dtype=torch.float64).to(dtype)
            for g, h in zip(*(torch.autograd.grad(o, (s, x), G, allow_unused=True, retain_graph=True) for o in (a, c))):
                assert (g is None) == (h is None) and (g is None or torch.allclose(g, h, rtol=1e-4, atol=1e-5))


def interleaved(repeats, **calls):
    "Median seconds of processor time of each call, taken in turns."
    times = {k: [] for k in calls}
    for _ in range(repeats + 1):
        for k, call in calls.items():
            start = time.process_time()
            call()
            times[k].append(time.process_time() - start)
    return {k: statistics.median(v[1:]) for k, v in times.items()}


def test_dense_matrix_is_several_times_faster_than_the_quadratic_form(rng):
    "A smoke test of the benchmark's figure, far from it on purpose: machines that test are busy."
    s, G = torch.rand(4, 1000, generator=rng), torch.randn(4, 1000, 1000, generator=rng)
    def run(f):
        z = s.clone().requires_grad_()
        f(z).backward(G)
    t = interleaved(3, fast=lambda: run(lambda z: NeuralSort(100.0, descending=True)(z).to_dense()), quadratic=lambda: run(lambda z: neuralsort_quadratic(z, 100.0)))
    assert t["quadratic"] > 2 * t["fast"], t


def test_many_rows_in_plain_torch_have_a_gradient():
    "More entries than a tile holds are made in tiles, which the backward pass makes again with the same tensors."
    s = torch.rand(2100, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = NeuralSort(1000.0, backend="torch")(s) @ s.detach()
    exact = NeuralSort(1000.0)(s) @ s.detach()
    [a], [b] = (torch.autograd.grad(v.square().sum(), s) for v in (y, exact))
    assert (a - b).norm() <= 1e-4 * b.norm()
