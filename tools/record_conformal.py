"""Record the tutorial on conformal training, on MNIST and Fashion-MNIST: nbs/results/conformal.json.

    python tools/record_conformal.py [--folder DATA] [--seconds 500]        some five minutes on one thread; goes on where it was stopped
"""
import argparse
import copy
import itertools
import json
import time
from pathlib import Path

import torch
from torch.nn import Linear, ReLU, Sequential
from torch.nn.functional import cross_entropy


root = Path(__file__).resolve().parent.parent
cells = json.loads((root / "nbs/tutorials/conformal_training.ipynb").read_text(encoding="utf-8"))["cells"]
code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
for name, end in (("threshold", "\nscores = "), ("conformal_loss", "\n\n\n"), ("train", "\ndigits = ")):           # the tutorial's own functions
    exec(next(text for text in code if f"def {name}(" in text).split(end)[0])

ALPHA, SEEDS, TUNING, BATCH, HELD_OUT, DECAY = 0.01, range(5), range(100, 102), 500, 15_000, 1e-3
RATES, DECAYS, WEIGHTS, TAUS = (3e-4, 1e-3, 3e-3), (1e-3, 1e-2), (0.0, 0.3), (1.0, 2.0)
TASKS = {"MNIST, linear": ("mnist", 600), "Fashion-MNIST, two hidden layers": ("fashion", 1200), "Fashion-MNIST, linear": ("fashion", 600)}
LOSSES = ("cross-entropy", "conformal")


def fresh(task, inputs=784):
    "A network that has learned nothing."
    if task.endswith("linear"): return Linear(inputs, 10)
    return Sequential(Linear(inputs, 64), ReLU(), Linear(64, 64), ReLU(), Linear(64, 10))


def pictures(name, folder):
    "Pictures as rows and their labels, for training and test, with the mean and the deviation of the training pictures taken out; and the test pictures."
    banks = load_images(name, folder)
    rows = {split: (bank.images.flatten(1) / bank.scale, bank.labels.long()) for split, bank in banks.items()}
    X, y = (torch.cat(pair) for pair in zip(rows["train"], rows["val"]))
    mean, deviation = X.mean(), X.std()
    return ((X - mean) / deviation, y), ((rows["test"][0] - mean) / deviation, rows["test"][1]), banks["test"].images


def start(task, X, y, seed):
    "The network after 1,500 steps of cross-entropy."
    torch.manual_seed(seed)
    return train(fresh(task, X.shape[1]), X, y, cross_entropy, 1500, BATCH, 3e-3, seed)


def go_on(task, net, X, y, choice, seed):
    "The second half of the training, from the same network and with the same batches for every loss."
    def conformal(z, labels): return conformal_loss(z, labels, ALPHA, weight=choice["weight"], tau=choice["tau"])
    loss = cross_entropy if choice["loss"] == "cross-entropy" else conformal
    return train(copy.deepcopy(net), X, y, loss, TASKS[task][1], BATCH, choice["rate"], seed + 1000, choice["decay"])


def figures(net, X, y):
    "Size, coverage, accuracy and the share of sets of each size; and the sets."
    size, coverage = judge(net, X, y, ALPHA)
    with torch.no_grad(): scores = net(X).log_softmax(-1)
    inside = sets(scores, threshold(scores, y, ALPHA))
    share = torch.bincount(inside.sum(-1), minlength=11) / len(X)
    accuracy = (scores.argmax(-1) == y).float().mean().item()
    return dict(size=round(size, 4), coverage=round(coverage, 5), accuracy=round(accuracy, 4), histogram=[round(h, 5) for h in share.tolist()]), inside


def choices():
    "Six for one loss and six for the other."
    for rate, decay in itertools.product(RATES, DECAYS): yield dict(loss="cross-entropy", rate=rate, decay=decay)
    for rate, (weight, tau) in itertools.product(RATES[:2], ((0.0, 2.0), (0.3, 2.0), (0.3, 1.0))): yield dict(loss="conformal", rate=rate, decay=DECAY, weight=weight, tau=tau)


def split(data, seed):
    "The training images without those that are held out, and those."
    held, kept = torch.randperm(len(data[1]), generator=torch.Generator().manual_seed(seed)).split([HELD_OUT, len(data[1]) - HELD_OUT])
    return [[a[i] for a in data] for i in (kept, held)]


def try_out(task, data, seed):
    "All choices of one tuning seed: the sizes on images that were held out."
    kept, held = split(data, seed)
    net = start(task, *kept, seed)
    return [dict(c, seed=seed, size=figures(go_on(task, net, *kept, c, seed), *held)[0]["size"]) for c in choices()]


def best(tuning, loss):
    "The choice with the smallest mean size."
    def size(choice): return sum(t["size"] for t in tuning if all(t.get(k) == v for k, v in choice.items()))
    return min((c for c in choices() if c["loss"] == loss), key=size)


def compare(task, chosen, data, test, seed):
    "Both trainings of one seed on test images, and the sets of each."
    net, run, inside = start(task, *data, seed), dict(seed=seed), {}
    run["start"] = figures(net, *test)[0]
    for loss in LOSSES: run[loss], inside[loss] = figures(go_on(task, net, *data, chosen[loss], seed), *test)
    return run, inside


def gallery(images, inside):
    "The pictures with the largest sets of the plain network, with both sets."
    hardest = inside["cross-entropy"].sum(-1).argsort(descending=True, stable=True)[:12].tolist()
    return [{"image": images[i].tolist(), **{name: sets_of[i].nonzero()[:, 0].tolist() for name, sets_of in inside.items()}} for i in hardest]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing new after so long")
    args = parser.parse_args()
    torch.set_num_threads(1)
    place, stop = root / "nbs/results/conformal.json", time.monotonic() + args.seconds
    protocol = dict(alpha=ALPHA, batch=BATCH, seeds=list(SEEDS), tuning_seeds=list(TUNING), held_out=HELD_OUT, start_steps=1500, threads=1)
    record = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    if {k: record.get(k) for k in protocol} != protocol:
        record = dict(command="python tools/record_conformal.py", **origin(), **protocol, seconds=0.0, tasks={})
    began = time.process_time()

    def keep(task, part, found):
        "Record a piece, and the time it took."
        nonlocal began
        record["tasks"][task][part].extend(found)
        record["seconds"], began = round(record["seconds"] + time.process_time() - began, 1), time.process_time()
        place.write_text(json.dumps(record).replace('{"image"', '\n{"image"').replace('{"seed"', '\n{"seed"').replace('{"loss"', '\n{"loss"') + "\n", encoding="utf-8")
        print(task, part, [{k: v for k, v in f.items() if k != "histogram"} for f in found], flush=True)

    for task, (name, steps) in TASKS.items():
        here = record["tasks"].setdefault(task, dict(steps=steps, tuning=[], chosen={}, runs=[]))
        if len(here["runs"]) == len(SEEDS): continue
        data, test, images = pictures(name, args.folder)
        for seed in TUNING:
            if time.monotonic() > stop: return
            if not any(t["seed"] == seed for t in here["tuning"]): keep(task, "tuning", try_out(task, data, seed))
        here["chosen"] = {loss: best(here["tuning"], loss) for loss in LOSSES}
        for seed in SEEDS:
            if any(run["seed"] == seed for run in here["runs"]): continue
            if time.monotonic() > stop: return
            run, inside = compare(task, here["chosen"], data, test, seed)
            if seed == 0 and task == next(iter(TASKS)): record["gallery"] = gallery(images, inside)
            keep(task, "runs", [run])


if __name__ == "__main__": main()
