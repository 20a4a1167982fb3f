"""The benchmark's choice of cases: an empty or a wrong one is an error that shows the way."""
import pytest

from softsortlib.lab.bench import cases, run_benchmark, run_case


@pytest.mark.parametrize("names, error, says", [
    ((), ValueError, "at least one case"), ([], ValueError, "leave it out for all"), (("rank",), ValueError, "did you mean 'ranks'"),
    (("dense", "logprob"), ValueError, "did you mean 'log_prob'"), (("zzz",), ValueError, "There are values"), ("ranks", TypeError, r"write \('ranks',\)")])
def test_a_choice_that_makes_no_sense_runs_nothing(names, error, says, tmp_path):
    with pytest.raises(error, match=says): run_benchmark(tmp_path / "bench.json", names)
    assert not list(tmp_path.iterdir())


def test_a_case_by_its_name():
    with pytest.raises(ValueError, match="did you mean 'dense'"): run_case("dens", (5,))
    rows = run_case("ranks", (20,), rounds=3)
    assert {row["case"] for row in rows} == {"ranks"} and {row["n"] for row in rows} == {20}
    assert "LaplaceRank" in {row["contender"] for row in rows} and set(cases()) == {"values", "log_prob", "ranks", "dense"}
