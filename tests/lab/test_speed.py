"""The papers' speed experiment and the one on large sets: configurations, records, limits of memory, and that everything runs."""
import json
import math
import sys

import pytest
import torch

from softsortlib.lab.contenders import softsort_listing
from softsortlib.lab.grid import GRIDS, run_name
from softsortlib.lab.large_sets import TAU, LargeConfig, OrderFigures, draw_sets, make_loss, order_figures, utility
from softsortlib.lab.records import small_record
from softsortlib.lab.speed import METHODS, Contender, MemoryConfig, SpeedConfig, _next, is_out_of_memory, log_diagonal, memory_end, memory_limit, min_max, spearman

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of memory are set on Linux")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_scores_span_one_unit_and_the_ends_are_constants(rng):
    theta = (3 * torch.randn(4, 9, dtype=torch.float64, generator=rng)).requires_grad_()
    s = min_max(theta)
    assert (s.amin(-1) == 0).all() and (s.amax(-1) == 1).all()
    [gradient] = torch.autograd.grad(s.sum(), theta)
    width = theta.detach().amax(-1, keepdim=True) - theta.detach().amin(-1, keepdim=True)
    torch.testing.assert_close(gradient, (1 / width).expand_as(theta))


def test_spearman_is_that_of_scipy(rng):
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    theta = torch.randn(5, 40, generator=rng)
    expected = [stats.spearmanr(row.numpy(), -torch.arange(40).numpy()).statistic for row in theta]
    torch.testing.assert_close(spearman(theta), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("n", [12, 60])
def test_every_method_takes_a_step(name, n):
    racer = Contender(name, SpeedConfig(batch=3), n)
    before = racer.theta.detach().clone()
    racer.epoch()
    assert racer.theta.isfinite().all() and not torch.equal(before, racer.theta) and racer.loss.item() > 1
    assert len(racer.times) == 1


@pytest.mark.parametrize("family", ["softsort2", "softsort1", "neuralsort"])
def test_all_forms_of_an_operator_have_one_gradient(family, rng):
    s, config, found = torch.rand(2, 70, dtype=torch.float64, generator=rng), SpeedConfig(), {}
    for name, method in METHODS.items():
        if not name.startswith(family): continue
        x = s.clone().requires_grad_()
        log_diagonal(method.permutation(x, config)).mean().backward()
        found[name] = x.grad
    assert len(found) >= 3
    for gradient in found.values(): torch.testing.assert_close(gradient, found[f"{family}-lazy"], rtol=1e-6, atol=1e-9)


def test_the_loss_is_the_papers():
    "One step by hand: the listing, the mean of 1 - log of the diagonal, SGD with weight decay."
    config = SpeedConfig(n=25, batch=2)
    racer = Contender("softsort2-lazy", config)
    theta = racer.theta.detach().clone().requires_grad_()
    loss = (1 - softsort_listing(min_max(theta), 0.03, 2).diagonal(dim1=1, dim2=2).log()).mean()
    [gradient] = torch.autograd.grad(loss, theta)
    racer.step()
    torch.testing.assert_close(racer.loss, loss.detach())
    torch.testing.assert_close(racer.theta.detach(), theta.detach() - 10 * (gradient + 0.01 * theta.detach()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["softsort2-lazy", "neuralsort-dense"])
def test_two_of_twenty_rows_learn_as_among_all(name):
    step = {k: getattr(next(c for c in GRIDS["speed"]("quick") if c.n == 4000), k) for k in ("batch", "lr", "weight_decay")}
    twenty, two = Contender(name, SpeedConfig(n=30)), Contender(name, SpeedConfig(n=30, **step))
    with torch.no_grad(): two.theta.copy_(twenty.theta[:2])
    for _ in range(5): twenty.step(); two.step()
    torch.testing.assert_close(two.theta, twenty.theta[:2], rtol=1e-3, atol=1e-4)


def test_rows_in_the_opposite_order():
    rows = {start: Contender("softsort1-lazy", SpeedConfig(n=20, start=start)).theta.detach() for start in ("random", "opposite")}
    assert (spearman(rows["opposite"]) == -1).all() and torch.equal(rows["random"].sort(-1).values, rows["opposite"])
    with pytest.raises(ValueError, match="start must be 'random' or 'opposite', got 'sorted'"): SpeedConfig(start="sorted")


def test_the_papers_largest_size_is_in_both_presets():
    for preset in ("paper", "quick"):
        runs = [c for c in GRIDS["speed"](preset) if c.n == 4000 and c.task == "speed"]
        assert {c.start for c in runs} == {"random", "opposite"} and max(c.steps for c in runs) >= 99


def test_all_contenders_start_alike_and_the_seed_decides():
    a, b = (Contender(name, SpeedConfig(n=20)).theta for name in ("softsort1-lazy", "bitonic-dense"))
    assert torch.equal(a, b) and a.abs().max() <= 1
    assert not torch.equal(a, Contender("softsort1-lazy", SpeedConfig(n=20, seed=1)).theta)


@pytest.mark.parametrize("wrong, words", [(dict(methods="quicksort"), "quicksort"), (dict(n=1), "n must be"), (dict(limit=-1.0), "limit"), (dict(batch=0), "batch")])
def test_a_wrong_configuration_says_what_is_wrong(wrong, words):
    with pytest.raises(ValueError, match=words): SpeedConfig(**wrong)


def test_a_record_is_small_complete_and_read_again(tmp_path):
    config = SpeedConfig(n=20, steps=30, batch=2)
    record = config.run(tmp_path / "a", threads=1)
    assert set(record["methods"]) == set(METHODS) and not record["absent"]
    assert {"task", "config", "test", "seconds", "cpu_seconds", "version", "commit", "date", "environment"} <= set(record)
    assert record["curve"][0]["step"] == 1 and record["curve"][-1]["step"] == 31
    kept = small_record(record)
    assert len(json.dumps(kept, indent=1)) <= 15_000 and kept["curve"]
    (tmp_path / "a" / "result.json").write_text(json.dumps(dict(record, marked=True)))
    assert config.run(tmp_path / "a")["marked"]
    with pytest.raises(ValueError, match="another run"): SpeedConfig(n=21).run(tmp_path / "a")
    with pytest.raises(ValueError, match="accelerator"): config.run(tmp_path / "b", accelerator="cuda")


def test_large_networks_are_left_out_with_a_reason(tmp_path):
    record = SpeedConfig(n=401, steps=1, batch=1, methods="odd_even-dense, softsort1-lazy").run(tmp_path, threads=1)
    assert list(record["methods"]) == ["softsort1-lazy"] and "400" in record["absent"]["odd_even-dense"]


@linux
def test_running_out_of_memory_is_recorded_not_raised(tmp_path):
    record = SpeedConfig(n=1500, steps=1, limit=0.1, methods="softsort1-published, softsort1-lazy").run(tmp_path, threads=1)
    assert record["absent"] == {"softsort1-published": "out of memory"} and list(record["methods"]) == ["softsort1-lazy"]


@linux
def test_a_limit_ends_with_its_context_and_says_no_inside():
    import resource
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(RuntimeError) as caught, memory_limit(0.1): torch.empty(2**28)
    assert is_out_of_memory(caught.value) and resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize("boundary", [0, 90, 400, 777, 1600, 5000, 10**6])
def test_the_search_brackets_the_boundary(boundary):
    config = MemoryConfig(n=400, resolution=100, largest=6400)
    fits, fails, tries = 0, None, 0
    while n := _next(config, "neuralsort-cubic", fits, fails):
        tries += 1
        assert fits < n and (fails is None or n < fails)
        if n <= boundary: fits = n
        else: fails = n
    assert fits <= boundary and tries < 15
    if boundary >= 6400: assert (fits, fails) == (6400, None)
    else: assert boundary < fails <= fits + max(100, fits / 20) + 100


@linux
def test_the_end_of_memory_is_where_arithmetic_puts_it():
    "A listing holds at least two matrices; under 32 MiB it must fail below sqrt(32 MiB / 160), and fit where eight would."
    end = memory_end(MemoryConfig(n=200, limit=1 / 32, resolution=50, largest=1600), "softsort1-published")
    assert end["fails"] <= math.sqrt(2**25 / 160) + 50 and end["fits"] >= math.sqrt(2**25 / 640) - 100
    assert [n for n, _ in end["peaks"]] == sorted(n for n, _ in end["peaks"])


@pytest.mark.parametrize("table", ["speed", "speed_cuda", "large_sets"])
def test_tables_name_each_run_once(table):
    for preset in ("paper", "quick", "smoke"):
        configs = GRIDS[table](preset)
        assert len({run_name(c) for c in configs}) == len(configs) and {c.preset for c in configs} == {preset}


def test_order_figures_of_right_reversed_and_random_orders(rng):
    y = torch.randn(3, 2000, generator=rng)
    for scores, spearman_is, share in ((y.exp(), 1, 1), (-y, -1, 0)):
        figures = order_figures(scores, y)
        torch.testing.assert_close(figures["spearman"], torch.full((3,), float(spearman_is), dtype=torch.float64))
        assert (figures["adjacent"] == share).all() and (figures["percent"] == share).all()
    assert all((v - at).abs().max() < 0.1 for v, at in zip(order_figures(torch.randn(3, 2000, generator=rng), y).values(), (0, 0.5, 0.5)))
    metric = OrderFigures()
    for k in range(3): metric.update(y[k:k + 1], -y[k:k + 1])
    assert metric.compute()["spearman"] == -1


def test_sets_have_centres_of_their_own(rng):
    x, y, u = draw_sets(50, 200, 16, 0.1, rng)
    torch.testing.assert_close(utility(x), u)
    assert u.mean(-1).std() > 0.5 and 0.08 < (y - u).std() < 0.12


@pytest.mark.parametrize("method", [*TAU, "regression", "pairs"])
def test_a_loss_has_finite_gradients_that_point_to_the_order(method, rng):
    y = torch.randn(2, 150, generator=rng)
    s = torch.randn(2, 150, generator=rng).requires_grad_()
    tau = 0.02 if method == "permutahedron" else None       # its temperatures are for 10,000 items: with 150 all blocks are single ones
    loss = make_loss(LargeConfig(method=method, n=150, tau=tau))(s, y)
    [gradient] = torch.autograd.grad(loss, s)
    assert gradient.isfinite().all()
    assert torch.corrcoef(torch.stack([-gradient.flatten(), y.flatten()]))[0, 1] > 0.1


def test_a_large_run_learns_from_order_and_resumes(tmp_path):
    config = LargeConfig.from_preset("smoke", n=300, steps=40, epoch=20)
    record = config.run(tmp_path, threads=1, accelerator="cpu")
    assert record["test"]["spearman"] > record["before"]["spearman"] + 0.2
    assert record["test"]["spearman"] < record["ceiling"]["spearman"] and record["loss_seconds"] > 0
    assert config.run(tmp_path, threads=1) == record
