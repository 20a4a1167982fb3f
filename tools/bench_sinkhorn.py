"""Measure optimal-transport sorting beside other libraries, all in one process and in turns, and record it.

    python tools/bench_sinkhorn.py speed|large|grid [nbs/results]

`speed` needs POT and softtorch (Python 3.12) for its other columns and leaves them out where they are not installed.
"""
import statistics, sys, time, tracemalloc, warnings
from pathlib import Path

import torch

from softsortlib.lab.records import origin, write_json
from softsortlib.transport.sinkhorn_sort import SinkhornSort

rng = torch.Generator().manual_seed(0)

def ours(s, tau, power=2): return (SinkhornSort(tau, power)(s) @ s).square().sum()

def softtorch_ot(s, tau):
    from softtorch import sort
    values = sort(s, softness=tau, method="ot", ot_kwargs=dict(sinkhorn_tol=1e-6, sinkhorn_max_iter=10_000))
    return values.values.square().sum()

def pot_log(s, tau):
    import ot
    n, total = s.shape[-1], 0
    for row in s:
        x = ((row - row.mean()) / (row - row.mean()).square().mean().sqrt()).sigmoid().double()
        w, y = torch.full((n,), 1 / n, dtype=torch.float64), torch.linspace(0, 1, n, dtype=torch.float64)
        P = ot.bregman.sinkhorn_log(w, w, (x[:, None] - y) ** 2, tau, numItermax=10_000, stopThr=1e-6, warn=False)
        total = total + (n * P.mT @ row.double()).square().sum()
    return total

def seconds(f, s):
    s = s.clone().requires_grad_()
    start = time.perf_counter()
    f(s).backward()
    return time.perf_counter() - start, s.grad

def speed(rounds=3):
    "Batch 20, n = 1000, forward and backward of the sorted values; the others loop over the batch, so a share of it is timed and scaled."
    s, rows = torch.randn(20, 1000, generator=rng), []
    for tau, share in ((0.1, 4), (0.01, 1)):
        methods = {"softsortlib": (ours, 20), "softtorch ot": (softtorch_ot, share), "POT sinkhorn_log, autograd": (pot_log, share)}
        times, grads = {name: [] for name in methods}, {}
        for k in range(rounds + 1):
            for name, (f, batch) in list(methods.items()):
                try: t, grad = seconds(lambda x: f(x, tau), s[:batch] if k else s[:1, :50])
                except ImportError as error:
                    print(f"{name} is not here: {error}"); methods.pop(name); times.pop(name); continue
                if k: times[name].append(t * 20 / batch); grads[name] = grad[:1]
                print(tau, name, f"{t * 20 / batch:.3f}", flush=True)
        own = grads["softsortlib"]
        for name in methods:
            rows.append(dict(tau=tau, n=1000, batch=20, timed=methods[name][1], method=name, seconds=times[name], median=statistics.median(times[name]),
                             gradient_difference=((grads[name] - own).norm() / own.norm()).item()))
    return dict(task="sorted values, forward and backward, float32 in, marginal tolerance 1e-6 (ours: sum of absolute errors; the others: root of the sum of squares)", rows=rows)

def large(rounds=3):
    rows, s, q = [], torch.randn(100_000, generator=rng), torch.rand(16, generator=rng)
    tasks = {"16 quantiles, squared": lambda x, tau: (SinkhornSort(tau).quantiles(x, q) @ x).square().sum(),
             "sorted values, absolute": lambda x, tau: ours(x, tau, 1), "sorted values, squared": ours}
    for tau in (0.1, 0.01):
        for name, f in tasks.items():
            seconds(lambda x: f(x, tau), s[:2000])
            times = [seconds(lambda x: f(x, tau), s)[0] for _ in range(rounds)]
            rows.append(dict(tau=tau, n=100_000, task=name, seconds=times, median=statistics.median(times)))
            print(tau, name, f"{rows[-1]['median']:.3f}", flush=True)
    return dict(task="n = 100,000, forward and backward", rows=rows)

DATA = {"normal": lambda n: torch.randn(n, generator=rng), "wide (spread 1e6)": lambda n: 1e6 * torch.randn(n, generator=rng), "heavy tails": lambda n: torch.randn(n, generator=rng) / torch.rand(n, generator=rng) ** 2,
        "ties": lambda n: torch.randn(n, generator=rng).round(), "all equal": torch.ones, "two clusters": lambda n: 1e-3 * torch.randn(n, generator=rng) + (torch.arange(n) % 2)}

def grid():
    rows = []
    for power in (1, 2):
        for n in (5, 100, 1000):
            for tau in (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e2, 1e4):
                for kind, make in DATA.items():
                    s = torch.stack([make(n) for _ in range(4)]).requires_grad_()
                    with warnings.catch_warnings(record=True) as caught:
                        warnings.simplefilter("always")
                        P = SinkhornSort(tau, power)(s)
                        y, R = P @ s, P.ranks()
                        (y.sin().sum() + R.sin().sum()).backward()
                    columns = (P.mT @ torch.ones(4, n)).double()
                    finite = all(t.isfinite().all().item() for t in (y, R, s.grad))
                    rows.append(dict(power=power, n=n, tau=tau, data=kind, residual=P.residual.max().item(), columns=(columns - 1).abs().mean(-1).max().item(), iterations=P.iterations.max().item(), failures=int((P.residual > 1e-6).sum()), finite=finite, warned=len(caught)))
            print(power, n, "done", flush=True)
    return dict(task="float32, batch of 4, tolerance 1e-6, max_iterations 1000; residual = sum of absolute marginal errors", rows=rows)

if __name__ == "__main__":
    what, folder = sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "nbs/results")
    record = dict(globals()[what](), **origin())
    print(write_json(folder / f"sinkhorn_{what}.json", record))
