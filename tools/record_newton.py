"""Record the comparison of Newton losses with the plain loss on the sorting task: nbs/results/newton.json.

    python tools/record_newton.py [--steps 200] [--folder DATA]         a few minutes on one thread; goes on where it was stopped
"""
import argparse
import json
import time
from pathlib import Path

import torch

from softsortlib.lab.data import NumberSets, load_images, seeded
from softsortlib.lab.newton import newton_loss
from softsortlib.lab.records import origin
from softsortlib.lab.scoring import NumberCNN, is_right
from softsortlib.lab.images import ImageBank
from softsortlib.lab.sorting import SortConfig, build_operator

root = Path(__file__).resolve().parent.parent
FORMS, DAMPINGS, SEEDS, TUNING = ("plain", "fisher", "hessian"), (0.1, 1.0, 10.0), (0, 1, 2), 100
OPERATORS, TEST_SETS = ("neuralsort",), 1000

def shrunk(bank):
    "The bank with pictures of half the size."
    small = torch.nn.functional.avg_pool2d(bank.images[:, None].float(), 2)[:, 0]
    return ImageBank(small.round().to(torch.uint8), bank.labels, bank.scale)

def accuracy(net, sets, split, count):
    "EM and EW on `count` sets of a split."
    with torch.no_grad():
        ok = [is_right(net(x), values) for x, values in (sets[split].draw(20, seeded("newton", split, k)) for k in range(count // 20))]
    ok = torch.cat(ok)
    return ok.all(-1).double().mean().item(), ok.double().mean().item()

def train(sets, operator, form, damping, seed, steps):
    "One run: the same weights and the same sets for each form."
    config = SortConfig.from_preset("quick", operator=operator)
    torch.manual_seed(seed)
    net, sort = NumberCNN(sets["train"].shape, width=config.width), build_operator(config)
    adam, curve, began = torch.optim.Adam(net.parameters(), lr=config.lr), [], time.perf_counter()
    for k in range(steps):
        x, values = sets["train"].draw(config.batch, seeded("newton", seed, k))
        order = values.argsort(dim=-1, descending=True, stable=True)
        def loss(y): return -sort(y).log_prob(order).mean(-1)
        target = loss(net(x)).mean() if form == "plain" else newton_loss(loss, net(x), form, damping)
        adam.zero_grad(); target.backward(); adam.step()
        if (k + 1) % (steps // 6) == 0: curve.append([k + 1, round(accuracy(net, sets, "val", 60)[0], 4)])
    seconds = time.perf_counter() - began
    (em, ew), (_, val) = (accuracy(net, sets, split, count) for split, count in (("test", TEST_SETS), ("val", 200)))
    return dict(operator=operator, form=form, damping=damping, seed=seed, EM=round(em, 4), EW=round(ew, 4), val_EW=round(val, 4), seconds=round(seconds, 1), curve=curve)

def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--folder")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sets = {split: NumberSets(shrunk(bank), 5) for split, bank in load_images("mnist", args.folder).items()}
    place = root / "nbs/results/newton.json"
    protocol = dict(n=5, steps=args.steps, seeds=SEEDS, dampings=DAMPINGS, tuning_seed=TUNING, tuning_steps=args.steps // 2, test_sets=TEST_SETS, operators=OPERATORS, threads=1)
    protocol = json.loads(json.dumps(protocol))                                      # tuples as lists, as they are read again
    record = json.loads(place.read_text()) if place.exists() else {}
    if record.get("protocol") != protocol: record = dict(command="python tools/record_newton.py", **origin(), protocol=protocol, chosen={}, tuning=[], runs=[])

    def once(part, **what):
        "The run of that description: out of the record, or trained now and recorded."
        found = next((r for r in record[part] if all(r[k] == v for k, v in what.items())), None)
        if found is None:
            found = train(sets, steps=args.steps // (1 if part == "runs" else 2), **what)
            record[part].append(found)
            place.write_text(json.dumps(record).replace('{"operator"', '\n{"operator"') + "\n", encoding="utf-8")
            print(json.dumps(found), flush=True)
        return found

    for operator in OPERATORS:
        for form in FORMS:
            trials = [once("tuning", operator=operator, form=form, damping=damping, seed=TUNING) for damping in (DAMPINGS if form != "plain" else ())]
            damping = max(trials, key=lambda r: r["val_EW"])["damping"] if trials else None
            if trials: record["chosen"][f"{operator} {form}"] = damping
            for seed in SEEDS: once("runs", operator=operator, form=form, damping=damping, seed=seed)

if __name__ == "__main__": main()
