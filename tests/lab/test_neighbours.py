"""Differentiable nearest neighbours: search, vote, data, tasks and baselines."""
import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

for extra in ("pytorch_lightning", "sklearn", "torchvision"):
    if not __import__("importlib").util.find_spec(extra): pytest.skip("the experiments extra is not installed", allow_module_level=True)

from softsortlib.lab.data import ImageBank
from softsortlib.lab.embedding import PointData, shift_and_mirror
from softsortlib.lab.neighbours import K_TAU, BaselineConfig, KnnConfig, chosen, knn_grid, knn_search, papers_network, search_choice
from softsortlib.lab.voting import EmbeddingCNN, VoteAccuracy, majority, nearest, small_resnet18

TINY = KnnConfig(steps=4, epoch=2, width=4, batch=20, candidates=30, k=3, tau=0.1, lr=0.05, search=100, val_queries=40, test_queries=60)
BASE = BaselineConfig(steps=4, epoch=2, width=4, batch=20, hidden=20, components=5, lr=0.05, search=100, val_queries=40, test_queries=60)


def numbers(result): return [{k: v for k, v in point.items() if "seconds" not in k} for point in result.get("curve", [])], result["test"]


# --- search and vote ---

@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 6), st.integers(1, 9), st.integers(1, 7), st.integers(0, 1 << 30))
def test_the_search_is_exact(q, N, d, k, block, seed):
    g = torch.Generator().manual_seed(seed)
    queries, points = torch.randn(q, d, generator=g, dtype=torch.float64), torch.randn(N, d, generator=g, dtype=torch.float64)
    near = nearest(queries, points, k, block)
    distance = torch.cdist(queries, points)
    assert near.shape == (q, min(k, N))
    torch.testing.assert_close(distance.gather(1, near), distance.sort(-1).values[:, :k], atol=1e-7, rtol=0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=20))
def test_majority(ballot):
    most = max(ballot.count(c) for c in ballot)
    assert majority(torch.tensor(ballot)).item() == next(c for c in ballot if ballot.count(c) == most)


def test_the_vote_is_scikit_learns_where_nothing_ties():
    from sklearn.neighbors import KNeighborsClassifier
    g = torch.Generator().manual_seed(0)
    x, q = torch.randn(200, 3, generator=g, dtype=torch.float64), torch.randn(50, 3, generator=g, dtype=torch.float64)
    y = (x[:, 0] > 0).long()                                          # two classes and an odd k: no ties
    for k in (1, 3, 9):
        theirs = KNeighborsClassifier(k, algorithm="brute").fit(x, y).predict(q)
        assert majority(y[nearest(q, x, k)], 2).tolist() == theirs.tolist()


def test_the_accuracy_of_the_k_in_use_and_of_the_best():
    predicted, y = torch.tensor([[0, 1], [1, 1], [0, 1]]), torch.tensor([1, 1, 1])
    for k, accuracy, of in ((None, 1.0, 3.0), (1, 1 / 3, 1.0)):
        score = VoteAccuracy((1, 3), k)
        score.update(predicted[:2], y[:2]); score.update(predicted[2:], y[2:])
        assert score.compute()["accuracy"].item() == pytest.approx(accuracy) and score.compute()["k"].item() == of


# --- data and networks ---

def test_embeddings_keep_their_precision_beside_bfloat16_convolutions():
    data, task = KnnConfig.from_preset("smoke").parts()
    images, _ = data.pictures("test", torch.arange(4))
    with torch.autocast("cpu", torch.bfloat16): rough = task.net(images)
    assert rough.dtype == torch.float32 and not torch.equal(rough, rough.bfloat16().float())
    assert (rough - task(images)).abs().max() < 0.05 * task(images).abs().max()
    _, coder = BaselineConfig.from_preset("smoke", method="autoencoder").parts()
    with torch.autocast("cpu", torch.bfloat16): assert torch.equal(coder.net(images), coder(images))       # it has no convolutions


def test_networks_fit_the_pictures():
    for shape, flat in (((1, 28, 28), 800), ((3, 32, 32), 1250), ((1, 8, 8), 200)):
        assert EmbeddingCNN(shape)[7][0].in_features == flat
    net = small_resnet18(3).train()
    x = torch.rand(2, 3, 32, 32, requires_grad=True)
    assert net(x).shape == (2, 512) and [m.shape[-1] for m in [net.layer1(torch.rand(1, 64, 32, 32))]] == [32]
    net(x).sum().backward()
    assert x.grad.isfinite().all()


def test_shift_and_mirror_keeps_each_picture_in_its_place():
    x = torch.rand(7, 3, 6, 5, generator=torch.Generator().manual_seed(0)) + 1
    moved = shift_and_mirror(x, torch.Generator().manual_seed(1), by=0)
    assert all(torch.equal(m, o) or torch.equal(m, o.flip(-1)) for m, o in zip(moved, x))
    far = shift_and_mirror(x, torch.Generator().manual_seed(1), by=4)
    for m, o in zip(far, x): assert set(m.flatten().tolist()) - {0.0} <= set(o.flatten().tolist())
    assert torch.equal(far, shift_and_mirror(x, torch.Generator().manual_seed(1), by=4))


def test_a_pass_sees_each_image_once_and_never_the_same_order():
    data = PointData(replace(TINY, batch=100)); data.setup()
    first, second = ([data.part("queries", k, 100) for k in ks] for ks in (range(11), range(11, 22)))
    assert torch.cat(first).unique().numel() == 1100 and not torch.equal(first[0], second[0])
    again = PointData(replace(TINY, batch=100)); again.setup()
    assert torch.equal(again.part("queries", 13, 100), second[2])         # a function of the step alone
    other = PointData(replace(TINY, batch=100, seed=1)); other.setup()
    assert not torch.equal(other.part("queries", 0, 100), first[0])
    assert torch.equal(other.held_out_part("val"), data.held_out_part("val"))   # held-out pictures are everybody's


def test_colour_is_standardised_by_channel(monkeypatch):
    import softsortlib.lab.embedding as module
    g = torch.Generator().manual_seed(0)
    bank = lambda N: ImageBank(torch.randint(0, 256, (N, 3, 12, 12), generator=g, dtype=torch.uint8) // torch.tensor([1, 2, 4], dtype=torch.uint8)[:, None, None], torch.arange(N) % 10)
    monkeypatch.setattr(module, "load_images", lambda *a: {"train": bank(400), "val": bank(40), "test": bank(40)})
    data = PointData(replace(TINY, data="cifar10_jpeg", augment=True)); data.setup()
    x, _ = data.pictures("train", torch.arange(400))
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=0.05, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(3), atol=0.05, rtol=0)
    assert [t.shape[0] for t in data.draw("train", 0)] == [20, 20, 30, 30] and data.draw("train", 0)[0].shape == (20, 3, 12, 12)


# --- runs ---

@pytest.mark.parametrize("changes", [dict(), dict(operator="neuralsort", k=1), dict(samples=2), dict(operator="neuralsort", samples=2), dict(augment=True)])
def test_a_run_repeats_itself(changes, tmp_path):
    config = replace(TINY, **changes)
    first = config.run(tmp_path / "a", threads=1)
    assert numbers(first) == numbers(config.run(tmp_path / "b", threads=1)) and -1 < first["curve"][0]["loss"] < 0
    assert first["test"]["k"] == config.k


def test_training_gathers_the_classes(tmp_path):
    result = replace(TINY, steps=40, epoch=40, batch=50, candidates=50, search=0, val_queries=0, test_queries=0, width=8, lr=0.1).run(tmp_path, threads=1)
    assert result["curve"][-1]["loss"] < -0.2 and result["test"]["accuracy"] > 0.85      # from -0.1, the share of a class


@pytest.mark.parametrize("method", ["pixels", "pca", "autoencoder", "cnn"])
def test_baselines(method, tmp_path):
    config = replace(BASE, method=method)
    first = config.run(tmp_path / "a", threads=1)
    assert numbers(first) == numbers(config.run(tmp_path / "b", threads=1))
    assert json.loads((tmp_path / "a" / "result.json").read_text())["task"] == "knn_baseline" and 0 < first["test"]["accuracy"] <= 1
    with pytest.raises(ValueError, match="holds another run"): replace(config, seed=5).run(tmp_path / "a")


def test_k_is_chosen_in_validation_and_travels_with_the_weights(tmp_path):
    result = replace(BASE, method="autoencoder").run(tmp_path, threads=1)
    best = max(result["curve"], key=lambda p: p["accuracy"])
    assert result["test"]["k"] == best["k"] in (1, 3, 5, 9)


@pytest.mark.parametrize("make,message", [
    (lambda: replace(TINY, k=31), "k must be at most 30"), (lambda: replace(TINY, net="vgg"), "net must be 'cnn' or 'resnet18'"), (lambda: replace(TINY, operator="softsrt"), "did you mean 'softsort'"),
    (lambda: replace(BASE, method="umap"), "method must be 'pixels'"), (lambda: replace(TINY, lr=0.0), "lr must be positive"), (lambda: replace(TINY, search=-1), "search must be at least 0"),
])
def test_configuration_errors(make, message):
    with pytest.raises(ValueError, match=message): make()


# --- tables ---

def test_the_papers_grid():
    configs = knn_search("paper")
    assert {(c.k, c.tau, c.lr) for c in configs if c.data == "mnist" and c.operator == "softsort" and not c.samples} == {(k, tau, lr) for k in (1, 3, 5, 9) for tau in (1, 4, 16, 64, 128, 512) for lr in (1e-3, 1e-4, 1e-5)}
    assert all(c.net == ("cnn" if c.data == "mnist" else "resnet18") and c.augment == (c.data == "cifar10") for c in [*configs, *knn_grid("paper")])
    assert papers_network("cifar10")["steps"] == 90_000


def test_quick_tables_use_the_re_encoding_under_its_own_name_and_the_small_network():
    configs = knn_grid("quick")
    assert {c.data for c in configs} == {"mnist", "fashion", "cifar10_jpeg"} and {c.net for c in configs} == {"cnn"}


def test_hyper_parameters_are_chosen_by_validation_only():
    record = lambda k, val, test: {"config": {"data": "mnist", "k": k, "tau": 1.0, "lr": 0.1}, "curve": [{"accuracy": val}], "test": {"accuracy": test}}
    assert chosen([record(1, 0.8, 0.99), record(9, 0.9, 0.5)], data="mnist")["k"] == 9
    with pytest.raises(ValueError, match="there is none"): chosen([record(1, 0.8, 0.9)], data="fashion")


def searched(k, tau, lr, accuracy, **more):
    fields = dict(preset="quick", seed=0, data="mnist", operator="softsort", samples=0, steps=200, logarithm=False)
    return {"config": {**fields, "k": k, "tau": tau, "lr": lr, **more}, "curve": [{"accuracy": accuracy - 0.1}, {"accuracy": accuracy}]}


def test_the_comparison_takes_what_the_search_found():
    first = [searched(1, 16.0, 0.1, 0.9), searched(9, 1.0, 0.1, 0.8)]
    rates = [searched(1, 16.0, 0.02, 0.95), searched(9, 1.0, 0.05, 0.99), searched(1, 16.0, 0.02, 0.5, data="fashion", steps=1000)]
    assert search_choice("quick", "mnist", "softsort", first) == dict(k=1, tau=16.0, lr=0.1)
    assert search_choice("quick", "mnist", "softsort", first + rates) == dict(k=1, tau=16.0, lr=0.02)      # k and tau of the first step stay
    assert search_choice("quick", "fashion", "softsort", first + rates) == dict(k=1, tau=16.0, lr=0.02, steps=1000, epoch=250)
    assert search_choice("quick", "mnist", "softsort", []) == K_TAU["softsort"] and search_choice("quick", "mnist", "pca", first) == {}


def test_every_row_of_the_photographs_is_searched():
    runs = [c for c in knn_search("quick") if c.data == "cifar10_jpeg"]
    rows = {(c.operator, c.samples) for c in runs if c.task == "knn"}
    assert rows == {(operator, samples) for operator in K_TAU for samples in (0, 5)}
    for row in rows:
        some = [c for c in runs if c.task == "knn" and (c.operator, c.samples) == row]
        assert len({(c.k, c.tau) for c in some}) == 6 and len({c.lr for c in some}) == 4
    assert len({c.lr for c in runs if c.task != "knn" and c.method == "cnn"}) == 4
    assert len({c.adam_lr for c in runs if c.task != "knn" and c.method == "autoencoder"}) == 3


def test_with_and_without_noise_each_take_their_own():
    found = [searched(9, 1.0, 0.1, 0.9), searched(1, 128.0, 0.1, 0.9, samples=5)]
    choice = lambda samples: search_choice("quick", "mnist", "softsort", found, samples)
    assert choice(0) == dict(k=9, tau=1.0, lr=0.1) and choice(5) == dict(k=1, tau=128.0, lr=0.1)


def test_the_autoencoder_takes_the_rate_that_the_search_found():
    def found(rate, accuracy):
        return {"config": dict(data="mnist", method="autoencoder", steps=2750, adam_lr=rate, lr=0.1), "curve": [{"accuracy": accuracy}]}
    assert search_choice("quick", "mnist", "autoencoder", [found(0.003, 0.9), found(0.0003, 0.8)]) == dict(adam_lr=0.003, steps=2750, epoch=550)
    with pytest.raises(ValueError, match="adam_lr must be positive, got 0"): replace(BASE, adam_lr=0.0)


def test_the_papers_comparison_takes_what_the_papers_search_found(monkeypatch):
    import softsortlib.lab.neighbours as module
    found = [searched(k, tau, lr, accuracy, preset="paper", steps=110_000, samples=samples)
             for k, tau, lr, accuracy, samples in ((3, 64.0, 1e-4, 0.9, 0), (5, 4.0, 1e-3, 0.8, 0), (1, 16.0, 1e-3, 0.9, 5))]
    monkeypatch.setattr(module, "search_records", lambda preset: found if preset == "paper" else [])
    runs = [c for c in knn_grid("paper") if c.task == "knn" and c.data == "mnist" and c.operator == "softsort"]
    assert {(c.k, c.tau, c.lr, c.steps) for c in runs} == {(3, 64.0, 1e-4, 110_000), (1, 16.0, 1e-3, 110_000)}


def test_the_papers_choose_by_the_loss_in_validation(tmp_path):
    assert KnnConfig.from_preset("paper").best == ("soft_error", "min") and TINY.best == ("accuracy", "max")
    result = replace(TINY, steps=12, epoch=2, select="soft_error").run(tmp_path, threads=1)
    assert result["best_step"] == min(result["curve"], key=lambda p: p["soft_error"])["step"] and 0 < result["test"]["soft_error"] < 1
    with pytest.raises(ValueError, match="select must be 'accuracy' or 'soft_error', got 'loss'"): replace(TINY, select="loss")
