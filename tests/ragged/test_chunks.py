"""Scores in files and in Dask: what the functions in memory give, whatever the chunks; under a limit of memory that the whole does not fit into."""
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from softsortlib.functional import soft_quantile, soft_rank, soft_sort
from softsortlib.ragged import ChunkedRank, chunked_quantile, chunked_threshold
from softsortlib.ragged.chunks import order_statistics

LAWS = {"normal": lambda rng, n: rng.standard_normal(n), "cauchy": lambda rng, n: rng.standard_cauchy(n), "tied": lambda rng, n: rng.integers(0, 3, n).astype(float), "one value": lambda rng, n: np.full(n, 2.5),
        "tiny": lambda rng, n: rng.standard_normal(n) * 1e-38, "large": lambda rng, n: 1e30 * rng.standard_normal(n)}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_order_statistics(law, dtype):
    x = LAWS[law](np.random.default_rng(0), 5003).astype(dtype)
    at = [0, 1, 17, 2501, 5001, 5002]
    for chunk in (1, 700, 10_000)[(len(x) > 999):]: assert (order_statistics(x, at, chunk) == np.sort(x)[at]).all()


@pytest.mark.parametrize("law", ("normal", "tied", "large"))
def test_quantiles_are_those_in_memory(law, tmp_path):
    dask_array = pytest.importorskip("dask.array")
    x = LAWS[law](np.random.default_rng(1), 20_011)
    q, tau = [0.0, 0.1, 1 / 3, 0.5, 1.0], 0.05 * float(np.std(x))
    x.tofile(tmp_path / "x")
    want = soft_quantile(torch.tensor(x), torch.tensor(q, dtype=torch.float64), tau=tau)
    for source in (x, np.memmap(tmp_path / "x", np.float64, "r"), torch.tensor(x), dask_array.from_array(x, chunks=3001)):
        got = chunked_quantile(source, q, tau=tau, chunk=4096)
        assert_close(got, want, rtol=1e-12, atol=1e-12 * float(np.abs(x).max()))
    single = chunked_quantile(x.astype(np.float32), 0.5, tau=tau)
    assert single.dtype == torch.float32 and single.shape == ()
    assert_close(single.double(), want[3], rtol=1e-5, atol=1e-6)


def test_a_threshold_covers():
    "Over many draws the next score is below the threshold as often as it must be, and not much more often."
    rng, alpha, n = np.random.default_rng(2), 0.2, 39
    draws = rng.standard_normal((400, n + 1))
    inside = [row[-1] <= chunked_threshold(row[:-1], alpha, chunk=16).hard for row in draws]
    assert abs(np.mean(inside) - math.ceil((n + 1) * (1 - alpha)) / (n + 1)) < 0.06
    x = rng.standard_normal(999)
    got = chunked_threshold(x, 0.43, tau=0.2)
    k = 570                                                  # (999 + 1) * 0.57, which rounds up in double precision
    assert got.hard == np.sort(x)[k - 1]
    assert_close(got.soft, soft_sort(torch.tensor(x), tau=0.2)[k - 1].item())
    assert chunked_threshold(x[:9], 0.05).hard == math.inf


@pytest.mark.parametrize("method", ("sigmoid", "gaussian"))
@pytest.mark.parametrize("tau", (1e-3, 0.2, 50.0))
def test_ranks_are_those_in_memory(method, tau):
    x = torch.randn(6000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rank = ChunkedRank(x, tau=tau, method=method, chunk=1111)
    assert_close(rank(x), soft_rank(x, method=method, tau=tau), rtol=1e-11, atol=1e-8)
    assert_close(rank(x.float()), soft_rank(x, method=method, tau=tau).float(), rtol=1e-3 if tau < 0.01 else 1e-5, atol=0.02)
    u = torch.linspace(-9, 9, 40, dtype=torch.float64, requires_grad=True)
    assert (rank(u).diff() >= -1e-8).all() and 0.5 - 1e-6 <= rank(u).min() and rank(u).max() <= 6000.5 + 1e-6
    if tau == 0.2: assert torch.autograd.gradcheck(rank, u[:7] + 4)


@pytest.mark.parametrize("f", (lambda x: chunked_quantile(x, 0.5), lambda x: chunked_threshold(x, 0.1), ChunkedRank), ids=("quantile", "threshold", "rank"))
def test_wrong_sources(f):
    for x, kind, words in (([1.0], TypeError, "got list"), (np.arange(3), TypeError, "got int64"), (np.zeros((2, 2)), ValueError, "got \\(2, 2\\)"), (np.zeros(0), ValueError, "at least one"),
                           (np.array([1.0, np.nan]), ValueError, "got 1 scores that are infinite or no number"), (np.array([np.inf] * 2), ValueError, "got 2 scores")):
        with pytest.raises(kind, match=words): f(x)
    with pytest.raises(ValueError, match="tau must be positive"): chunked_quantile(np.ones(3), 0.5, tau=0.0)
    with pytest.raises(ValueError, match="q must be in"): chunked_quantile(np.ones(3), [0.5, 2.0])
    with pytest.raises(ValueError, match="alpha must be between"): chunked_threshold(np.ones(3), 1.0)
    with pytest.raises(ValueError, match="chunk must be"): chunked_quantile(np.ones(3), 0.5, chunk=0)
    with pytest.raises(ValueError, match="tau must be at least"): ChunkedRank(np.array([0.0, 1.0]), tau=1e-9)


LIMITED = """
import resource, sys
import numpy as np, torch
from softsortlib.ragged import ChunkedRank, chunked_quantile, chunked_threshold
x = np.memmap(sys.argv[1], np.float32, "r")
small = x[:200_000]
chunked_quantile(small, 0.9, tau=0.1, chunk=1 << 16), ChunkedRank(small, tau=0.1, chunk=1 << 16)
used = 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1])
resource.setrlimit(resource.RLIMIT_DATA, (used + 24 * 2 ** 20,) * 2)
try: np.sort(x)
except MemoryError: print("too large for memory")
print(chunked_quantile(x, 0.9, tau=0.1, chunk=1 << 16).item(), chunked_threshold(x, 0.1, tau=0.1, chunk=1 << 16).hard, ChunkedRank(x, tau=0.1, chunk=1 << 16)(x[:2])[0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_a_file_that_does_not_fit_into_memory(tmp_path):
    "32 MB of scores in a process that may take 24 MB more than it has."
    n = 8_000_000
    x = np.random.default_rng(4).standard_normal(n, dtype=np.float32)
    x.tofile(tmp_path / "x")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", LIMITED, tmp_path / "x"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said, numbers = done.stdout.strip().split("\n")
    assert said == "too large for memory"
    quantile, threshold, rank = map(float, numbers.split())
    assert threshold == np.partition(x, math.ceil((n + 1) * 0.9) - 1)[math.ceil((n + 1) * 0.9) - 1]
    weight = np.exp(-np.abs(x.astype(float) - threshold) / 0.1)
    assert abs(quantile - weight @ x / weight.sum()) < 1e-5
    assert abs(rank / n - torch.sigmoid((x[0] - torch.from_numpy(x[:1_000_000])) / 0.1).mean().item()) < 3e-3
