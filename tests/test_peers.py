"""What other libraries give, recorded (tests/peers/record_peers.py), against what this one gives: values, and gradients where they were recorded.

Where a peer is wrong the group says why (`wrong`), and the test holds that ours is the derivative, or the definition, and theirs is not:
a note that is no longer true fails.
"""
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from softsortlib import LapSum, LaplaceRank, NeuralSort, Permutahedron, SinkhornSort, SoftSort, SortingNetwork
from softsortlib.losses import (
    approx_ndcg_loss, kendall_loss, lambda_loss, listmle_loss, listnet_loss, topk_loss,
)
from softsortlib.ranks import lapsum_topk

FOLDER = Path(__file__).resolve().parent / "peers"
sys.path.insert(0, str(FOLDER))
from record_peers import cotangent, grades  # noqa: E402
CONVERGED = dict(squash=None, tolerance=1e-9, max_iterations=5000)


def groups():
    "Every recorded group: (name, what was called, its arrays)."
    for path in sorted(FOLDER.glob("*.npz")):
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        for i, group in enumerate(json.loads(str(arrays["groups"]))["groups"]):
            yield f"{path.stem}-{i}-{group['call']}", group, {k: torch.from_numpy(arrays[f"{i}/{k}"]) for k in ("s", "out", "grad") if f"{i}/{k}" in arrays}


def network(s, kind, sigmoid, tau, descending=False):
    name, art = ("logistic", 0.25) if sigmoid == "logistic_phi" else (sigmoid, 0 if sigmoid == "logistic" else 0.25)
    return SortingNetwork(kind, name, art, tau, descending)(s)


def loss(s, k, tau, scale=1):
    "Row i of the batch has class i modulo n, as it was recorded."
    return topk_loss(scale * s, torch.arange(len(s)) % s.shape[-1], k=tuple(k), tau=tau, reduction="none")


def summed(s):
    "A softmax loss with grades as weights: theirs is not divided by their sum."
    y = grades(s)
    return listnet_loss(s, y, target="share", reduction="none") * y.sum(-1)


def summed_pairs(s):
    "The pairwise logistic loss in natural logarithms, as a mean over pairs."
    return kendall_loss(s, grades(s), reduction="none") * math.log(2)


def transport(s, tau, power=2, a=None, b=None, y=None, **options):
    weights = {name: torch.tensor(w, dtype=s.dtype) for name, w in (("a", a), ("b", b), ("milestones", y)) if w}
    return SinkhornSort(tau, power, **weights, **CONVERGED, **options)(s)


OURS = {
    "rank": lambda s, kind, tau, descending=False: Permutahedron(tau, kind, descending)(s),
    "sort": lambda s, kind, tau, descending=False: Permutahedron(tau, kind, descending).sort(s),
    "network_sort": lambda s, **options: network(s, **options) @ s,
    "network_matrix": lambda s, **options: network(s, **options).to_dense().mT,     # their rows are inputs
    "softsort_matrix": lambda s, tau, power=1, descending=False: SoftSort(tau, power, descending=descending)(s).to_dense(),
    "softsort_ranks": lambda s, tau, descending: (lambda P: P.softmax(-1) @ torch.arange(1.0, s.shape[-1] + 1, dtype=s.dtype))(
        -(s[..., :, None] - s.sort(-1, descending=descending).values[..., None, :]).abs() / tau),
    "neuralsort_matrix": lambda s, tau, descending=False: NeuralSort(tau, descending)(s).to_dense(),
    "topk_loss": loss,
    "listnet": lambda s: listnet_loss(s, grades(s), reduction="none"),
    "listmle": lambda s: listmle_loss(s, (s * 5).sin().argsort(-1), reduction="none") * s.shape[-1],     # theirs is a sum over places
    "lambda": lambda s, weights, tau: lambda_loss(s, grades(s), weights=weights, tau=tau, reduction="none"),
    "softmax_loss": summed,
    "pairwise_logistic": summed_pairs,
    "approx_ndcg": lambda s, tau: approx_ndcg_loss(s, grades(s), tau=tau, reduction="none"),
    "lapsum_rank": lambda s, tau: LaplaceRank(tau)(s) - 1,                          # theirs begin at zero
    "lapsum_topk": lambda s, tau, k, largest: lapsum_topk(s, k, tau, largest),
    "plan": lambda s, b, **options: transport(s, b=b, **options).to_dense().mT * torch.tensor(b, dtype=s.dtype),
    "cost": lambda s, power: (s.sort(-1).values - torch.linspace(-1, 1, s.shape[-1], dtype=s.dtype)).abs().pow(power).mean(-1, keepdim=True),
    "transport_sort": lambda s, tau: transport(s, tau) @ s,
    "transport_rank": lambda s, tau: transport(s, tau).ranks() - 1,
    "transport_matrix": lambda s, tau, descending: transport(s, tau, descending=descending).to_dense(),
}
REMARKS = ("call", "rows", "tolerance", "wrong", "no_gradient")


def value_and_gradient(f, s):
    s = s.clone().requires_grad_()
    out = f(s)
    return out.detach(), torch.autograd.grad((out * cotangent(out.shape)).sum(), s)[0] if out.requires_grad else None


def slope(f, s, h=1e-5):
    "The gradient of value_and_gradient by central differences, one element at a time."
    def energy(z): return (f(z) * cotangent(f(z).shape)).sum()
    found = torch.zeros_like(s)
    for at in np.ndindex(*s.shape):
        step = torch.zeros_like(s)
        step[at] = h
        found[at] = (energy(s + step) - energy(s - step)) / (2 * h)
    return found


@pytest.mark.parametrize("name, group, arrays", [pytest.param(*case, id=case[0]) for case in groups()])
def test_recorded(name, group, arrays):
    options = {k: v for k, v in group.items() if k not in REMARKS}
    def f(s): return OURS[group["call"]](s, **options)
    s, tolerance = arrays["s"].double(), group.get("tolerance", 1e-9)
    value, gradient = value_and_gradient(f, s)
    if "wrong" not in group:
        assert_close(value, arrays["out"], rtol=tolerance, atol=tolerance)
        if gradient is not None: assert gradient.isfinite().all()
        if "grad" in arrays: assert_close(gradient, arrays["grad"], rtol=10 * tolerance, atol=10 * tolerance)
        return
    assert_close(gradient, slope(f, s), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(arrays["grad"], gradient, rtol=1e-2, atol=1e-2), f"the note of {name} is no longer true: {group['wrong']}"


def test_thousands_of_cases_of_every_peer():
    rows = {}
    for name, group, _ in groups(): rows[name.split("-")[0]] = rows.get(name.split("-")[0], 0) + group["rows"]
    assert sum(rows.values()) >= 2500 and min(rows.values()) >= 50, rows
    assert sum(path.stat().st_size for path in FOLDER.glob("*.npz")) < 640_000
