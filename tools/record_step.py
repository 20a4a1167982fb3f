"""What a training step of the papers' network costs, in single precision and with convolutions in bfloat16, and where the time goes.

    python tools/record_step.py nbs/results/step.json

Twenty sets of n pictures, 112 x 28, SoftSort, Adam; forward, backward and step on one thread, the forms in turns within one run.
The last form is timed in a process of its own, because glibc reads its settings when a process starts.
"""
import json
import os
import subprocess
import sys

import torch
from torch.profiler import profile

from softsortlib.lab.bench import measure
from softsortlib.lab.records import origin, write_json
from softsortlib.lab.scoring import NumberCNN, sorting_loss
from softsortlib.lab.sorting import SortConfig, build_operator

SIZES = (3, 5, 9, 15)
FORMS = {                                                                        # name -> channels last, bfloat16
    "single precision": (False, False),
    "single precision, channels last": (True, False),
    "bfloat16 convolutions, channels last": (True, True),
}
KEPT = dict(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="8000000000")          # glibc: take no block from the system by itself, return none
KINDS = {"convolutions": "conv", "pooling": "pool", "matrices": "mm"}           # what stands in the name of a profiled operator


def training_step(n, channels_last, bfloat16):
    "A function that makes one step of training."
    config = SortConfig.from_preset("paper", n=n)
    torch.manual_seed(0)
    net, operator = NumberCNN((112, 28)), build_operator(config)
    net.features.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    adam = torch.optim.Adam(net.parameters(), lr=config.lr)
    images, values = torch.rand(config.batch, n, 1, 112, 28), torch.rand(config.batch, n)

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            scores = net(images).float()
        adam.zero_grad()
        sorting_loss(operator(scores), values).backward()
        adam.step()

    return step


def shares(step):
    "Kind of work -> its share of the processor time of a step."
    step()
    with profile() as p:
        for _ in range(3): step()
    spent = dict.fromkeys([*KINDS, "the rest"], 0.0)
    for event in p.key_averages():
        kind = next((kind for kind, word in KINDS.items() if word in event.key), "the rest")
        spent[kind] += event.self_cpu_time_total
    return {kind: t / sum(spent.values()) for kind, t in spent.items()}


def times(forms):
    "Rows of the table: the median seconds of each form at each size."
    rows = []
    for n in SIZES:
        medians = {name: t["median"] for name, t in measure({name: training_step(n, *form) for name, form in forms.items()}, 5, least=0.5).items()}
        rows += [dict(n=n, form=name, seconds=seconds) for name, seconds in medians.items()]
        print(n, {name: round(seconds, 4) for name, seconds in medians.items()}, file=sys.stderr, flush=True)
    return rows


def times_with_kept_memory():
    "The rows of the last form where freed memory stays with the process."
    child = subprocess.run([sys.executable, __file__, "kept"], env={**os.environ, **KEPT}, stdout=subprocess.PIPE, check=True)
    return json.loads(child.stdout)


def main(out):
    torch.set_num_threads(1)
    *_, last = FORMS
    if out == "kept": return print(json.dumps(times({f"{last}, freed memory kept": FORMS[last]})))
    rows = sorted(times(FORMS) + times_with_kept_memory(), key=lambda row: row["n"])
    where = {name: shares(training_step(5, *form)) for name, form in FORMS.items()}
    write_json(out, dict(rows=rows, shares=where, kept=KEPT, **origin()))


if __name__ == "__main__": main(sys.argv[1])
