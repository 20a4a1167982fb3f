"""Time and memory of a soft sort of scores in parts, on this machine: nbs/results/distributed.json.

    python tools/record_distributed.py                 weak and strong scaling
    python tools/record_distributed.py --large 100000000      one large sort on 4 processes, and on one, added to the record
"""
import argparse
import datetime
import json
import os
import tempfile
import time
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "nbs/results/distributed.json"
TAU = 1e-3


def work(rank, P, sizes, rounds, store, queue):
    "Sort random scores that lie on P processes, forward and backward, some numbers of them; seconds of each round and bytes."
    os.environ.update(OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1")
    import torch
    import torch.distributed as dist

    import softsortlib
    from softsortlib.lab.bench import peak_memory
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=P, timeout=datetime.timedelta(seconds=600))
    g = torch.Generator().manual_seed(rank)
    warm = torch.randn(1000, requires_grad=True)
    softsortlib.soft_sort(warm, tau=TAU, group=dist.group.WORLD).square().sum().backward()
    softsortlib.soft_sort(warm, tau=TAU).square().sum().backward()
    for n in sizes:
        x, seconds = torch.randn(n // P, generator=g), []

        def sort_them():
            for _ in range(rounds):
                own = x.clone().requires_grad_()
                dist.barrier()
                start = time.perf_counter()
                y = softsortlib.soft_sort(own, tau=TAU, group=dist.group.WORLD if P > 1 else None)
                y.square().sum().backward()
                dist.barrier()
                seconds.append(time.perf_counter() - start)

        extra = peak_memory(sort_them)
        queue.put((n, seconds, extra))
    dist.destroy_process_group()


def measure(P, sizes, rounds):
    "For each size, in rising order: seconds (the shortest round) and bytes (of the largest process)."
    import torch.multiprocessing as mp
    context = mp.get_context("spawn")
    queue, store = context.Queue(), tempfile.mktemp()
    processes = [context.Process(target=work, args=(rank, P, sizes, rounds, store, queue)) for rank in range(P)]
    for process in processes: process.start()
    got = [queue.get(timeout=900) for _ in range(P * len(sizes))]
    for process in processes: process.join()
    of = {n: [(s, b) for m, s, b in got if m == n] for n in sizes}
    return [dict(P=P, n=n, seconds=min(max(s[i] for s, _ in some) for i in range(rounds)), bytes=max(b for _, b in some)) for n, some in of.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=int)
    args = parser.parse_args()
    from softsortlib.lab.records import origin, write_json  # not above: a process that computes sets its threads before torch is loaded
    record = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    record.update(origin(), cores=os.cpu_count())
    record["tau"] = TAU
    if args.large: record["large"] = [measure(P, [args.large], 1)[0] for P in (4, 1)]
    else:
        runs = {P: measure(P, sorted({P << 17, 1 << 19}), 3) for P in (1, 2, 4)}
        record["strong"] = [runs[P][-1] for P in (1, 2, 4)]
        record["weak"] = [next(r for r in runs[P] if r["n"] == P << 17) for P in (1, 2, 4)]
    write_json(RESULTS, record)


if __name__ == "__main__": main()
