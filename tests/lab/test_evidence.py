"""Statistics by hand, by scipy, and by brute force; tables whose gaps and mixtures show."""
import itertools
import math
import statistics

import pytest
from hypothesis import assume, given, settings, strategies as st

pytest.importorskip("scipy", reason="the experiments extra is not installed")

from softsortlib.lab import evidence
from softsortlib.lab.evidence import Comparison, caption, compare, figure, groups, paired, results_table, select, summarise, verdict

numbers = st.floats(-1e3, 1e3)


def record(EM=0.5, seed=0, operator="softsort", n=5, preset="quick", seconds=60.0, task="sort", **more):
    config = dict(data="mnist", operator=operator, n=n, steps=100, test_sets=2000, seed=seed, preset=preset, **more)
    return dict(task=task, config=config, test={"EM": EM, "EW": (1 + EM) / 2}, seconds=seconds)


# --- numbers ---

@given(st.lists(numbers, min_size=1, max_size=20))
def test_summary_is_that_of_the_standard_library(values):
    s = summarise(values)
    assert s.count == len(values) and s.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert s.sd is None if len(values) == 1 else s.sd == pytest.approx(statistics.stdev(values), abs=1e-9)


def test_summary_in_words():
    assert f"{summarise([1, 3])}" == "2.000±1.414 (2 runs)" and f"{summarise([2]):.1f}" == "2.0 (1 run)"
    with pytest.raises(ValueError, match="at least one run"): summarise([])


@settings(deadline=None)
@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=8), st.sampled_from([0.8, 0.95, 0.99]))
def test_the_interval_is_that_of_scipy(pairs, confidence):
    from scipy import stats
    a, b = zip(*pairs)
    d = [x - y for x, y in pairs]
    assume(statistics.stdev(d) > 1e-6)
    c, theirs = paired(a, b, confidence=confidence), stats.ttest_rel(a, b).confidence_interval(confidence)
    assert (c.low, c.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9, abs=1e-9) and c.pairs == len(pairs)


@settings(deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=2, max_size=7))
def test_p_counts_sign_patterns(d):
    far = sum(abs(sum(s * x for s, x in zip(signs, d))) >= abs(sum(d)) for signs in itertools.product((1, -1), repeat=len(d)))
    assert paired(d, [0] * len(d)).p == far / 2 ** len(d)


def test_p_of_many_pairs_is_drawn():
    d = [0.1 * k - 0.6 for k in range(20)]
    from scipy import stats
    theirs = stats.permutation_test((d,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", n_resamples=20_000, rng=0, vectorized=True).pvalue
    assert paired(d, [0] * 20).p == pytest.approx(theirs, abs=0.015) and paired(d, [0] * 20).p == paired(d, [0] * 20).p


@settings(deadline=None)
@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=8))
def test_swapping_the_operators_turns_the_sign(pairs):
    a, b = zip(*pairs)
    one, other = paired(a, b), paired(b, a)
    assert (one.difference, one.low, one.high, one.p) == pytest.approx((-other.difference, -other.high, -other.low, other.p), abs=1e-9)


def test_sharing_the_error_widens_the_interval():
    a, b = [0.9, 0.92, 0.95], [0.8, 0.85, 0.9]
    wide, narrow = paired(a, b, comparisons=10), paired(a, b)
    assert wide.low < narrow.low and narrow.high < wide.high and wide.difference == narrow.difference
    assert (wide.low, wide.high) == pytest.approx(paired(a, b, confidence=0.995)[1:3])


@pytest.mark.parametrize("arguments,message", [(dict(first=[1], second=[1, 2]), "equal length"), (dict(first=[1, 2], second=[1, 2], confidence=95), "confidence must be in"),
                                               (dict(first=[1, 2], second=[1, 2], comparisons=0), "comparisons at least 1")])
def test_what_does_not_pair(arguments, message):
    with pytest.raises(ValueError, match=message): paired(**arguments)


# --- words ---

@settings(deadline=None)
@given(st.lists(st.tuples(numbers, numbers), max_size=6), st.booleans())
def test_better_is_said_only_when_the_interval_excludes_zero(pairs, higher):
    c = paired([a for a, _ in pairs], [b for _, b in pairs], ("A", "B"), higher)
    text = verdict(c)
    if " is better than " not in text: assert text.startswith("undecided")
    else:
        assert len(pairs) >= 3 and c.low < c.high and (c.low > 0 or c.high < 0)
        assert text.startswith("A is better than B" if (c.difference > 0) == higher else "B is better than A")


@pytest.mark.parametrize("a,b,words", [
    ([], [], "no seed in common"), ([0.9], [0.1], "one run of each decides nothing"), ([0.9, 0.8], [0.8, 0.7], "all 2 differences are .*no spread"),
    ([0.5, 0.75, 1.0], [0.25, 0.5, 0.75], "all 3 differences are"), ([0.5] * 3, [0.5] * 3, "undecided"),
    ([0.93, 0.90], [0.90, 0.869], "undecided between A and B: two pairs are too few"), ([0.9, 0.5], [0.8, 0.8], "the interval contains 0"),
    ([0.9, 0.91, 0.92, 0.9], [0.8, 0.82, 0.81, 0.8], "A is better than B"), ([0.9, 0.8, 0.95], [0.8, 0.9, 0.9], "undecided between A and B")])
def test_verdicts(a, b, words):
    text = verdict(paired(a, b, ("A", "B")))
    assert __import__("re").search(words, text), text


# --- records ---

def test_runs_are_paired_by_seed_in_any_order():
    first = [record(0.1 * k, seed=k) for k in (3, 1, 2, 7)]
    second = [record(0.05 * k, seed=k, operator="neuralsort", tau=2.0) for k in (1, 2, 3, 4)]
    c = compare(first, second)
    assert c.pairs == 3 and c[:4] == pytest.approx(paired([0.1, 0.2, 0.3], [0.05, 0.1, 0.15])[:4])
    assert compare(first, second, "seconds").difference == 0 and compare(first, []).pairs == 0


@pytest.mark.parametrize("more,message", [(dict(n=7), "differ in n"), (dict(preset="paper"), "differ in preset"), (dict(data="digits", test_sets=3), "differ in .*data")])
def test_runs_that_were_not_tested_alike_are_not_compared(more, message):
    with pytest.raises(ValueError, match=message):
        compare([record(seed=k) for k in range(3)], [{**r, "config": {**r["config"], **more}} for r in (record(seed=k, operator="neuralsort") for k in range(3))])


def test_a_side_with_two_runs_of_a_seed_is_ambiguous():
    with pytest.raises(ValueError, match="several runs with the same seed, which differ in tau"): compare([record(tau=1.0), record(tau=2.0)], [record()])
    with pytest.raises(ValueError, match="differ in nothing"): compare([record(), record()], [record()])


def test_a_figure_that_is_not_there():
    with pytest.raises(ValueError, match="no figure 'MSE': there are EM, EW"): figure(record(), "MSE")


def test_select():
    records = [record(seed=k, n=n) for k in range(2) for n in (3, 5)]
    assert len(select(records)) == 4 and len(select(records, n=3)) == 2 and len(select(records, task="sort", seed=0, n=5)) == 1 and not select(records, task="median")


# --- tables ---

def cells(text): return [[c.strip() for c in line.strip("|").split("|")] for line in text.split("\n\n")[0].splitlines()]


def test_a_table_by_hand():
    records = [record(0.5, 0), record(0.7, 1), record(0.4, 0, n=9), record(0.3, 0, "neuralsort")]
    text = results_table(records, spec=".2f")
    assert cells(text) == [["", "n = 5", "n = 9"], ["---"] * 3, ["neuralsort", "0.30 (1 run)", "not run"], ["softsort", "0.60±0.14 (2 runs)", "0.40 (1 run)"]]
    assert all(w in text.split("\n\n")[1] for w in ("preset quick", "100 steps", "seeds 0, 1", "60 seconds"))


def test_rows_columns_and_published_figures_by_hand():
    text = results_table([record(0.5)], {"SoftSort": dict(operator="softsort"), "networks": dict(operator="odd_even")}, {"n = 5": dict(n=5), "n = 7": dict(n=7)}, ("EM", "EW"), ".1f",
                         published={"networks": {"n = 7": "75.4 / 91.2"}})
    assert cells(text)[2:] == [["SoftSort", "0.5 / 0.8 (1 run)", "not run"], ["networks", "not run", "not run"], ["networks, published", "", "75.4 / 91.2"]]


def test_nothing_was_run():
    text = results_table([], {"SoftSort": dict(operator="softsort")}, {"n = 5": dict(n=5)})
    assert cells(text)[2] == ["SoftSort", "not run"] and "Nothing was run yet" in text and groups([]) == {}


def test_a_table_without_a_form():
    records = [record(0.5 + 0.1 * s, s, operator, tau=tau) for s in range(2) for operator, tau in (("softsort", 1.0), ("neuralsort", 2.0), ("softsort", 2.0))]
    assert list(groups(records)) == ["softsort, tau 1.0", "neuralsort, tau 2.0", "softsort, tau 2.0"]
    assert cells(results_table(records, groups(records), None, ("EM", "EW"), ".2f"))[2] == ["softsort, tau 1.0", "0.55±0.07 (2 runs)", "0.78±0.04 (2 runs)"]
    assert list(groups(records[:1])) == ["sort"]


@pytest.mark.parametrize("records,message", [
    ([record(), record(seed=1, lr=0.1)], "differ in more than the seed: in lr"), ([record(), record()], "same run twice"),
    ([record(), record(operator="neuralsort", preset="paper")], "mixes the presets paper, quick")])
def test_mixtures_are_refused(records, message):
    with pytest.raises(ValueError, match=message): results_table(records)


def test_captions():
    assert caption([record(seconds=5.4), record(seed=1, seconds=99.8)], ("EM",)) == "*EM: mean±sample standard deviation (runs); preset quick; 100 steps; seeds 0, 1; 5.4 to 100 seconds a run.*"
    now = dict(trainer={"precision": "bf16-mixed"})
    assert caption([dict(record(), **now)]).endswith("; convolutions in bfloat16.*")
    assert "1 of 2 runs with convolutions in bfloat16" in caption([dict(record(), **now), record(seed=1)])
    assert "60 seconds a run (12 seconds of processor time)" in caption([dict(record(), cpu_seconds=12.3)])
    two = [dict(record(seed=k), environment=dict(processor=f"P{k}", cores=2)) for k in range(2)]
    assert "seeds 0, 1; on 2 machines" in caption(two) and "seconds" not in caption(two) and "seconds" in caption(two[:1])


def test_times_of_two_machines_do_not_share_a_column():
    here, there = (dict(record(operator=name), environment=dict(processor=what, cores=2)) for name, what in (("softsort", "abacus"), ("neuralsort", "slide rule")))
    assert "0.5" in results_table([here, there], value="EM", spec=".1f")
    with pytest.raises(ValueError, match="'n = 5' mixes times of abacus, 2 cores and slide rule, 2 cores"): results_table([here, there], value="seconds")
    with pytest.raises(ValueError, match="'seconds' mixes times"): results_table([here, there], columns=None, value=("EM", "seconds"))


def test_a_caption_names_what_does_not_hold_and_what_was_left_out(monkeypatch):
    monkeypatch.setattr(evidence, "doubts", lambda records: ["1 of 1 runs not certified: no data"])
    monkeypatch.setitem(evidence.left_out, "half.json", "empty or cut off")
    assert caption([record()]).endswith("; 1 of 1 runs not certified: no data; left out: half.json (empty or cut off).*")


def test_nan_is_never_better():
    assert "has no number" in verdict(paired([math.nan, 1.0], [0.0, 0.0]))
    assert "better" not in verdict(paired([math.nan, 1.0, 2.0], [0.0, 0.0, 0.0]))
    assert "better" not in verdict(Comparison(1.0, math.nan, math.nan, 3, 0.1))
