"""Top-k classification: the losses against their definitions, the batches, the networks, and runs that resume."""
import dataclasses
import math
import os
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("sklearn", reason="the experiments extra is not installed")

from softsortlib.lab import embedding, topk
from softsortlib.lab.data import ImageBank, optional, seeded
from softsortlib.lab.grid import run_name
from softsortlib.lab.topk import CONTENDERS, LOSSES, TOPK_TAUS, PlainCNN, TopkAccuracy, TopkConfig, TopkData, class_loss, topk_search, topk_table
from softsortlib.lab.voting import small_resnet18


# --- losses ---

@pytest.mark.parametrize("classes", [2, 10, 100])
def test_top1_by_softsort_is_cross_entropy(rng, classes):
    logits = torch.randn(20, classes, generator=rng, dtype=torch.float64, requires_grad=True)
    target = torch.randint(classes, (20,), generator=rng)
    ce, top = class_loss(logits, target), class_loss(logits, target, "topk", 1, topk._operator("softsort", 1.0))
    torch.testing.assert_close(ce, top)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in (ce, top)))


@pytest.mark.parametrize("loss,k,operator", [("topk", 1, "odd_even"), ("topk", 3, "neuralsort"), ("topk", 5, "softsort"), ("mixture", 5, "softsort"), ("mixture", 3, "bitonic")])
def test_losses_on_rows_by_definition(rng, loss, k, operator):
    logits, target = torch.randn(6, 10, generator=rng, dtype=torch.float64), torch.randint(10, (6,), generator=rng)
    op = topk._operator(operator, 0.5)
    columns = op(logits).to_dense()[torch.arange(6), :, target]
    among = columns.cumsum(-1)[:, :k]
    p = among[:, -1] if loss == "topk" else among.mean(-1)
    torch.testing.assert_close(class_loss(logits, target, loss, k, op), -p.clamp(max=1).log().mean())


@pytest.mark.parametrize("loss", ["hinge", "ramp"])
@pytest.mark.parametrize("operator", ["softsort", "sinkhorn", "permutahedron", "odd_even"])
def test_losses_on_ranks_are_the_error_in_the_limit(rng, loss, operator):
    logits, target = torch.randn(40, 10, generator=rng, dtype=torch.float64), torch.randint(10, (40,), generator=rng)
    rank = (logits > logits.gather(-1, target[:, None])).sum(-1) + 1
    for k in (1, 3):
        excess = (rank - k).clamp(min=0, max=1 if loss == "ramp" else None).double()
        found = class_loss(logits, target, loss, k, topk._operator(operator, 1e-4))
        assert abs(found - excess.mean()) < 0.05, (found, excess.mean())


@pytest.mark.parametrize("contender", CONTENDERS)
def test_every_contender_has_gradients_and_prefers_the_truth(rng, contender):
    c = TopkConfig(**CONTENDERS[contender])
    op = None if c.loss == "ce" else topk._operator(c.operator, c.tau)
    logits, target = torch.randn(8, 10, generator=rng, requires_grad=True), torch.randint(10, (8,), generator=rng)
    loss = class_loss(logits, target, c.loss, c.k, op)
    g, = torch.autograd.grad(loss, logits)
    assert g.isfinite().all() and g.abs().sum() > 0
    raised = logits.detach() + 3 * nn.functional.one_hot(target, 10)
    assert class_loss(raised, target, c.loss, c.k, op) < loss


def test_unknown_loss():
    with pytest.raises(ValueError, match="'ce', 'topk', 'mixture', 'hinge' or 'ramp'"): class_loss(torch.zeros(2, 3), torch.zeros(2).long(), "focal")


# --- accuracy ---

@pytest.mark.parametrize("classes", [3, 5, 10, 100])
def test_accuracy_against_torch(rng, classes):
    logits, target, metric = torch.randn(300, classes, generator=rng), torch.randint(classes, (300,), generator=rng), TopkAccuracy()
    for a, b in zip(logits.split(70), target.split(70)): metric.update(a, b)
    found = logits.topk(min(5, classes)).indices == target[:, None]
    assert metric.compute() == {"top1": found[:, 0].float().mean(), "top5": found.any(-1).float().mean()}


# --- data ---

def test_a_pass_shows_every_image_once(monkeypatch):
    labels = torch.arange(200) % 10
    bank = ImageBank(torch.arange(200, dtype=torch.uint8)[:, None, None].expand(-1, 4, 4), labels)
    monkeypatch.setattr(embedding, "load_images", lambda *a: {s: bank for s in ("train", "val", "test")})
    data = TopkData(TopkConfig(batch=30, val_images=70))
    data.setup()
    def shown(split, ks): return [tuple(x[:, 0, 0, 0].tolist()) for x in (data.draw(split, k)[0] for k in ks)]
    passes = [sum(shown("train", range(6 * e, 6 * e + 6)), ()) for e in range(3)]
    assert all(len(set(p)) == 180 for p in passes) and len(set(passes)) == 3
    assert [len(b) for b in shown("val", range(data.held_out("val")))] == [70]
    assert sorted(sum(shown("test", range(data.held_out("test"))), ())) == sorted((torch.arange(200) / 255 * 2 - 1).tolist())
    x, y = data.draw("train", 3)
    assert torch.equal(((x[:, 0, 0, 0] + 1) * 127.5).round().long() % 10, y)


def test_other_losses_see_the_same_batches_and_weights():
    nets, batches = [], []
    for c in CONTENDERS.values():
        torch.manual_seed(5)
        data, task = TopkConfig(seed=5, augment=True, width=2, **c).parts()
        nets.append(task.net.state_dict()); batches.append(data.draw("train", 3))
    for net, batch in zip(nets[1:], batches[1:]):
        assert all(torch.equal(v, net[k]) for k, v in nets[0].items()) and all(torch.equal(a, b) for a, b in zip(batches[0], batch))


def test_held_out_images_do_not_depend_on_the_seed_and_are_not_moved():
    a, b = (TopkData(TopkConfig(seed=s, augment=True, val_images=50)) for s in (0, 1))
    for d in (a, b): d.setup()
    assert torch.equal(a.draw("val", 0)[0], b.draw("val", 0)[0]) and not torch.equal(a.draw("train", 0)[1], b.draw("train", 0)[1])


def test_a_batch_larger_than_the_data():
    data = TopkData(TopkConfig(batch=5000))
    with pytest.raises(ValueError, match="batch must be at most 1197"): data.setup()


def test_moved_images_are_mirrored_or_shifted_copies(rng):
    x = torch.rand(50, 3, 16, 16, generator=rng)
    moved = topk._moved(x, seeded("here"))
    assert torch.equal(moved, topk._moved(x, seeded("here"))) and moved.shape == x.shape
    middle = moved[:, :, 4:12, 4:12]
    for i in range(50):
        assert any(torch.equal(middle[i], (x[i].flip(-1) if m else x[i])[:, 4 + dy:12 + dy, 4 + dx:12 + dx]) for m in (0, 1) for dy in range(-2, 3) for dx in range(-2, 3))


# --- networks ---

@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 16, 16)])
def test_the_plain_network(shape):
    net = PlainCNN(shape, 7, 4)
    assert net(torch.zeros(2, *shape)).shape == (2, 7)
    assert sum(isinstance(m, nn.Conv2d) for m in net.modules()) == 4 and sum(isinstance(m, nn.Linear) for m in net.modules()) == 2


def test_resnet18_for_small_images():
    net = small_resnet18(1, 10).eval()
    with torch.no_grad(): assert net(torch.zeros(1, 1, 28, 28)).shape == (1, 10)
    seen = []
    net.layer1.register_forward_hook(lambda m, i, o: seen.append(o.shape[-2:]))
    with torch.no_grad(): net(torch.zeros(1, 1, 28, 28))
    assert seen == [(28, 28)]                                              # nothing was shrunk before the first block


# --- runs ---

@pytest.mark.parametrize("changes,message", [(dict(loss="focal"), "loss must be"), (dict(net="vgg"), "'cnn' or 'resnet18'"), (dict(k=0), "k must be"), (dict(lr=0.0), "lr must be positive"), (dict(tau=0.0), "tau must be positive"),
                                             (dict(loss="mixture", operator="permutahedron"), "ranks only.*needs a matrix"), (dict(operator="softsrot"), "softsort")])
def test_wrong_settings(changes, message):
    with pytest.raises(ValueError, match=message): TopkConfig(**changes)


def test_a_run_that_is_cut_in_two_is_the_same_run(tmp_path):
    config = TopkConfig(steps=8, epoch=4, batch=20, width=2, loss="topk", k=2, augment=True, val_images=40, test_images=40)
    whole = config.run(tmp_path / "whole", threads=1)

    class Kill(optional("pytorch_lightning").Callback):
        def on_train_epoch_start(self, trainer, task):
            if trainer.current_epoch == 1: raise RuntimeError("killed")
    with pytest.raises(RuntimeError, match="killed"): config.run(tmp_path / "cut", threads=1, callbacks=(Kill(),))
    cut = config.run(tmp_path / "cut", threads=1)
    assert cut["test"] == whole["test"] and [p["loss"] for p in cut["curve"]] == [p["loss"] for p in whole["curve"]]


def test_the_table():
    runs = topk_table("quick")
    assert len({run_name(c) for c in runs}) == len(runs) == 25 and all(isinstance(v, (int, float, str, bool, type(None))) for c in runs for v in dataclasses.asdict(c).values())
    paper = topk_table("paper")
    assert {(c.data, c.net) for c in paper} == {(d, n) for d in ("cifar10", "cifar100") for n in ("cnn", "resnet18")} and {c.seed for c in paper} == set(range(10))


def test_the_search_uses_no_seed_of_the_table():
    quick, long = topk_search("quick"), topk_search("long")
    assert len(set(quick)) == 3 * len(TOPK_TAUS) and {c.loss for c in quick} == {"topk", "mixture", "hinge"} and {c.operator for c in long} == {"odd_even"}
    assert {c.seed for c in quick + long}.isdisjoint(c.seed for preset in ("quick", "long", "paper") for c in topk_table(preset))


def test_the_smoke_table_runs(tmp_path):
    for config in topk_table("smoke")[:2]: assert math.isfinite(config.run(tmp_path / run_name(config), threads=1)["curve"][-1]["loss"])


def test_photographs_in_colour(tmp_path):
    real = os.environ.get("SOFTSORTLIB_DATA")
    if not real or not (Path(real) / "CIFAR10-jpeg/train.npz").is_file(): pytest.skip("SOFTSORTLIB_DATA does not name a folder with CIFAR10-jpeg")
    data, task = TopkConfig.from_preset("quick").parts()
    images, labels = data.draw("train", 0)
    assert images.shape == (64, 3, 16, 16) and task(images).shape == (64, 10) and -1 <= images.min() < images.max() <= 1


@pytest.mark.parametrize("net", [PlainCNN((3, 8, 8), width=4), small_resnet18(3, 10)], ids=["cnn", "resnet18"])
def test_logits_keep_full_precision_under_autocast(net):
    with torch.autocast("cpu", torch.bfloat16): logits = net(torch.rand(2, 3, 8, 8))
    assert logits.dtype == torch.float32 and not torch.equal(logits, logits.bfloat16().float())
