"""Time and memory of lists end to end beside the same lists padded, forward and backward: nbs/benchmarks/ragged.ipynb shows the record.

    python tools/record_ragged.py nbs/results/ragged.json

Lists have Zipf lengths. Each contender runs in a process of its own, after a rehearsal on a few lists; the seconds are the median of the repeats (the largest padded ones run once),
the bytes the peak of the process less what it held before. A contender that does not fit into the memory of the machine has no row.
"""
import json, os, subprocess, sys, time

import torch

from softsortlib.lab.bench import peak_memory
from softsortlib.lab.records import origin, write_json

SIZES = [(1_000, 200), (10_000, 2_000), (100_000, 20_000)]          # lists, and the items of the longest
PADDED = 4 << 30                                                     # no padded run whose single tensor takes more than a 64th of this
TASKS = ("softsort ranks", "laplace ranks", "ApproxNDCG", "ListMLE")


def zipf(lists, longest):
    "Lengths longest / r ** a with ten items a list on average."
    r, low, high = torch.arange(1, lists + 1, dtype=torch.float64), 0.1, 3.0
    while high - low > 1e-6:
        a = (low + high) / 2
        n = (longest * r ** -a).long().clamp(min=1)
        low, high = (a, high) if n.sum() > 10 * lists else (low, a)
    return n[torch.randperm(lists, generator=torch.Generator().manual_seed(0))]


def step(task, s, y, mask=None, offsets=None):
    from softsortlib.functional import soft_rank
    from softsortlib.losses import approx_ndcg_loss, listmle_loss
    if task in ("ApproxNDCG", "ListMLE"): loss = (approx_ndcg_loss if task == "ApproxNDCG" else listmle_loss)(s, y, mask, offsets=offsets)
    else: loss = soft_rank(s, method=task.split()[0], tau=0.1, mask=mask, offsets=offsets).square().mean()
    return torch.autograd.grad(loss, s)


def data(task, lists, longest, padded):
    "The arguments of `step` for one size."
    n, rng = zipf(lists, longest), torch.Generator().manual_seed(1)
    offsets = torch.nn.functional.pad(n.cumsum(0), (1, 0))
    s, y = torch.randn(int(n.sum()), generator=rng), torch.randint(0, 5, (int(n.sum()),), generator=rng).float()
    if not padded: return dict(task=task, s=s.requires_grad_(), y=y, offsets=offsets)
    mask = torch.arange(int(n.max())) < n[:, None]
    return dict(task=task, s=torch.zeros(mask.shape).masked_scatter_(mask, s).requires_grad_(), y=torch.zeros(mask.shape).masked_scatter_(mask, y), mask=mask)


def run(task, lists, longest, padded, repeats):
    "One contender: a row."
    for k in (30, 300): step(**data(task, k, 1000, padded))
    given = data(task, lists, longest, padded)
    times = []

    def timed():
        for _ in range(repeats):
            start = time.perf_counter(); step(**given); times.append(time.perf_counter() - start)

    extra, n = peak_memory(timed), zipf(lists, longest)
    return dict(task=task, lists=lists, longest=int(n.max()), items=int(n.sum()), lengths=len(n.unique()), slots=lists * int(n.max()) if padded else int(n.sum()), padded=padded,
                seconds=sorted(times)[len(times) // 2], peak_extra_bytes=extra, repeats=repeats)


def main(path):
    rows = []
    for lists, longest in SIZES:
        for task in TASKS:
            for padded in (False, True):
                if padded and 4 * lists * longest > PADDED // 16: continue
                repeats = 1 if padded and lists > 1000 else 3
                done = subprocess.run([sys.executable, "-W", "ignore", __file__, "--one", json.dumps([task, lists, longest, padded, repeats])], capture_output=True, text=True)
                if done.returncode: print(task, lists, padded, done.stderr[-300:]); continue
                rows.append(json.loads(done.stdout)); print({k: rows[-1][k] for k in ("task", "items", "padded", "seconds", "peak_extra_bytes")}, flush=True)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    made = origin()
    write_json(path, dict(made, environment=dict(made["environment"], memory=memory, dtype="float32", date=made["date"].split()[0]), rows=rows))


if __name__ == "__main__":
    if sys.argv[1] == "--one": print(json.dumps(run(*json.loads(sys.argv[2]))))
    else: main(sys.argv[1])
