"""The benchmark: a choice of cases, contenders that agree, records that are made in pieces and say whose they are."""
import json
import shutil

import pytest
import torch

import softsortlib.lab.bench as bench
from softsortlib.lab.bench import run_benchmark, run_case
from softsortlib.lab.cases import Contender, How, bench_rows, cases, comparisons, pieces
from softsortlib.lab.records import merge_rows, pieces_done


@pytest.mark.parametrize("only, error, says", [
    ((), ValueError, "at least one case"), ([], ValueError, "leave it out for all"), (("rank",), ValueError, "did you mean 'ranks'"),
    (("dense", "logprob"), ValueError, "did you mean 'log_prob'"), (("zzz",), ValueError, "There are values"), (("ranks/7/1",), ValueError, "case/n/batch"),
    ("ranks", TypeError, r"write \('ranks',\)")])
def test_a_choice_that_makes_no_sense_runs_nothing(only, error, says, tmp_path):
    with pytest.raises(error, match=says): run_benchmark(tmp_path / "bench.json", only)
    assert not list(tmp_path.iterdir())


def test_a_case_by_its_name():
    with pytest.raises(ValueError, match="did you mean 'dense'"): run_case("dens", (5,))
    rows = run_case("ranks", (20,), rounds=3)
    assert {row["case"] for row in rows} == {"ranks"} and {row["n"] for row in rows} == {20}
    assert "LaplaceRank" in {row["contender"] for row in rows}


def test_pieces_by_patterns():
    assert pieces("dense/5/20") == pieces("dense/5/*") == [("dense", 5, 20)]
    assert {(n, batch) for _, n, batch in pieces("small_ranks")} == {(n, b) for n in (5, 10, 20, 32, 100) for b in (1, 20, 256)}
    alone = [name for name, case in cases().items() if case.how is How.ALONE]
    assert alone and not {name for name, _, _ in pieces()} & set(alone) and pieces(alone[0])
    assert {case.tau for name, case in cases().items() if name.startswith("sums_")} == {0.001, 0.1, 10.0}


@pytest.mark.parametrize("name", ["small_values", "small_log_prob", "small_matrix", "small_ranks", "sums_0.001", "sums_0.1", "sums_10"])
def test_a_listing_answers_what_we_answer(name, rng):
    "Whoever is asked the same and belongs to this package says the same: a comparison of times is one of equals."
    s = torch.rand(3, 32, generator=rng)
    case, compared = cases()[name], 0
    for label, c in case.contenders.items():
        if c.here or "softtorch" in label: continue
        [ours] = [o for o in case.contenders.values() if o.here and o.asked == c.asked]
        torch.testing.assert_close(c.answer(s), ours.answer(s), rtol=1e-3, atol=1e-4)
        compared += 1
    assert compared >= 3


def test_what_would_take_too_long_is_left_out_and_says_so(monkeypatch):
    import time
    slow = Contender(lambda s: s * (time.sleep(0.05 * (s.shape[1] / 1000) ** 2) or 1))
    monkeypatch.setattr(bench, "_LONGEST", 1.0)
    assert bench._too_long(slow, 2000, 1, "cpu") is None                        # nothing to go by: it is tried
    assert "would take up to" in bench._too_long(slow, 10_000, 1, "cpu")
    assert bench._too_long(slow._replace(answer=torch.sigmoid), 10_000, 1, "cpu") is None


def row(case, label, **figures): return dict(case=case, n=5, batch=1, contender=label, **figures)


def test_a_record_grows_by_pieces_and_knows_whose_each_is():
    first, second = dict(commit="a", date="2026-01-01"), dict(commit="b", date="2026-01-02")
    record = merge_rows(dict(runs=[], rows=[]), [row("ranks", "LaplaceRank", median=2.0), row("dense", "NeuralSort", median=3.0)], first)
    assert pieces_done(record, dict(first, date="later")) == {("ranks", 5, 1), ("dense", 5, 1)} and not pieces_done(record, second)
    record = merge_rows(record, [row("ranks", "LaplaceRank", median=1.0)], second)
    assert [(r["median"], record["runs"][r["run"]]["commit"]) for r in bench_rows(record)] == [(3.0, "a"), (1.0, "b")]
    record = merge_rows(record, [row("dense", "NeuralSort", median=1.0)], dict(second, date="2026-01-03"))
    assert len(record["runs"]) == 1


def test_a_column_of_times_has_one_machine():
    rows = [row("ranks", "LaplaceRank", median=1.0, run=0), row("ranks", "torchsort", median=1.0, run=1), row("dense", "NeuralSort", median=1.0, run=1)]
    runs = [dict(environment=dict(processor=name, cores=2)) for name in ("abacus", "slide rule")]
    assert [r["machine"] for r in bench_rows(dict(runs=runs, rows=rows[1:]))] == ["slide rule, 2 cores"] * 2
    assert len(bench_rows(dict(runs=runs, rows=[rows[0], rows[2]]))) == 2               # two machines, but not in one column
    with pytest.raises(ValueError, match="'ranks, n = 5' mixes times of abacus, 2 cores and slide rule, 2 cores"): bench_rows(dict(runs=runs, rows=rows))
    assert {r["machine"] for r in bench_rows(dict(rows=[dict(rows[0], run=0)]))} == {"machine not noted"}


def test_only_those_who_were_asked_the_same_in_the_same_run_are_compared():
    rows = [row("ranks", "Permutahedron", median=1.0), row("ranks", "LaplaceRank", median=9.0), row("ranks", "torchsort", median=3.0), row("ranks", "torchpsort", median=2.0)]
    [only] = comparisons(dict(rows=rows))
    assert (only.here["contender"], only.best["contender"], only.times) == ("Permutahedron", "torchpsort", 2.0)
    assert not comparisons(dict(runs=[{}, {}], rows=[dict(rows[0], run=0), dict(rows[2], run=1)]))


def test_a_stopped_benchmark_goes_on(tmp_path, monkeypatch):
    out, asked = tmp_path / "bench.json", []

    def fake(name, sizes, rounds, memory, device, batch):
        if len(asked) == 2: raise KeyboardInterrupt
        asked.append((name, *sizes, batch))
        return [dict(case=name, n=sizes[0], batch=batch, contender="LaplaceRank", median=1.0)]

    monkeypatch.setattr(bench, "run_case", fake)
    with pytest.raises(KeyboardInterrupt): run_benchmark(out, ("ranks",))
    assert len(json.loads(out.read_text())["rows"]) == 2
    before, asked = asked, []
    with pytest.raises(KeyboardInterrupt): run_benchmark(out, ("ranks",))
    assert len(asked) == 2 and not set(asked) & set(before)
    asked = [None]
    record = run_benchmark(out, ("ranks",), minutes=-1)
    assert asked == [None] and len(record["rows"]) == 4                         # no time: nothing is begun
    out.write_text(json.dumps(record | dict(device="cuda")))
    with pytest.raises(ValueError, match="name another file"): run_benchmark(out, ("ranks",))


def test_first_calls_are_those_of_a_fresh_process():
    [imported, took] = bench.in_a_fresh_process("first_call", "ranks", 64, 2, "LaplaceRank", "cpu")
    assert imported > 0 and took > 0
    assert bench.in_a_fresh_process("first_call", "ranks", 64, 2, "nobody", "cpu") is None


@pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_listing_is_a_contender_like_any_other():
    [found] = [r for r in run_case("log_prob", (8,), rounds=1) if r["contender"].endswith("compiled")]
    assert found.get("absent") is None
    assert found["difference"] < 1e-5 and found["first"] > 5 * found["median"]
