"""Every record says what made it, and the code of today trains as it did, or the pages and the changelog say since when it does not.

Each kind of run is played again for twenty steps and compared with its certificate (nbs/lab/18_certificates.ipynb). Where that fails, either mend the code; or, if
training is meant to change, write a sentence into CHANGELOG.md and give it to `python tools/certify.py --why "THE SENTENCE"`: the pages will show it.
"""
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="the experiments extra is not installed")

from softsortlib.lab import runs  # noqa: E402
from softsortlib.lab.certificates import certificate, certify, difference, doubt, doubts, kind, replay  # noqa: E402
from softsortlib.lab.images import DataError  # noqa: E402
from softsortlib.lab.records import left_out, read_records, write_json  # noqa: E402
from softsortlib.lab.sorting import SortConfig  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "nbs" / "results"
sys.path.insert(0, str(ROOT / "tools"))
import certify as tool  # noqa: E402

RECORDS = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.rglob("*.json")) if not {"history", "certificates"} & set(path.parts)}
RUNS = [r for r in RECORDS.values() if "config" in r and r["task"] not in tool.MEASURED]
CERTIFICATES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((RESULTS / "certificates").glob("*.json"))}
SMALL = SortConfig(n=3, width=4)

pytestmark = pytest.mark.usefixtures("pictures_once")


def played(found): return [r for r in found["replays"] if "failed" not in r]


def check(found, folder=None):
    "Compare a certificate with the code of today."
    new = replay(tool.config_of(found), folder)
    changed = difference(played(found)[-1], new)
    assert not changed, (f"{found['kind']} trains differently: {changed}. Mend it; or, if it is meant, write into CHANGELOG.md what changed, "
                         f"and run: python tools/certify.py {found['kind']} --why 'THAT SENTENCE'")


@pytest.mark.parametrize("name", CERTIFICATES)
def test_the_code_of_today_trains_as_certified(name):
    if not played(CERTIFICATES[name]): pytest.skip(CERTIFICATES[name]["replays"][-1]["failed"])
    try: check(CERTIFICATES[name], tool.folder())
    except DataError as e: pytest.skip(f"not played: {e}")


def test_every_record_says_what_made_it():
    for path, record in RECORDS.items():
        if path.name == "versions.json": continue
        for origin in record["runs"] if "device" in record else [record]:
            assert {"version", "commit", "date"} <= origin.keys() and origin["version"] and origin["date"] and "code" not in origin, path.name


def test_every_kind_of_run_has_a_certificate_and_no_other():
    assert {kind(r) for r in RUNS} == CERTIFICATES.keys()
    assert all(kind(found) == found["kind"] == name for name, found in CERTIFICATES.items())


def test_every_change_of_training_stands_in_the_changelog():
    log = " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
    for name, found in CERTIFICATES.items():
        for old, new in zip(played(found), played(found)[1:]):
            changed = difference(old, new)
            assert bool(changed) == ("why" in new), f"{name}: {changed or 'nothing has changed'}, and the reason is {new.get('why')!r}"
            assert new.get("why", "") in log, f"CHANGELOG.md must have the sentence {new['why']!r}"


def test_records_hold_or_say_why_not(capsys):
    said = doubts(RUNS)
    with capsys.disabled():
        print(f"\n{len(RUNS)} runs of {len(CERTIFICATES)} kinds", *said, sep="\n  ")
    assert not [r for r in RUNS if r["date"] > played(certificate(r))[-1]["date"] and doubt(r)]


# --- that it can fail ---

@pytest.fixture()
def certified(tmp_path):
    return certify(SMALL, tmp_path)


@pytest.mark.parametrize("factor, fails", [(1.0, False), (1.01, True), (-1.0, False), (float("nan"), True)])
def test_a_wrong_gradient_fails(certified, monkeypatch, factor, fails):
    "A tenth of what a factor of 1.1 changes is seen; a flipped sign has the same size at the first step, and other weights at the second."
    whole = runs.Task.backward
    monkeypatch.setattr(runs.Task, "backward", lambda self, loss, *args: whole(self, factor * loss, *args))
    if not fails and factor == 1: return check(certified)
    with pytest.raises((AssertionError, ValueError), match="trains differently.*CHANGELOG.md") if factor != -1 else pytest.raises(AssertionError): check(certified)


def test_a_change_needs_a_reason_and_then_tells_of_older_records(certified, tmp_path, monkeypatch):
    record = {"task": "sort", "config": certified["config"], "version": "0.1.0", "date": "2026-01-01 12:00"}
    assert certify(SMALL, tmp_path) == certified and doubt(record, tmp_path) == ""
    whole = runs.Task.backward
    monkeypatch.setattr(runs.Task, "backward", lambda self, loss, *args: whole(self, 2 * loss, *args))
    with pytest.raises(ValueError, match="sort-.* trains differently: gradient .* at step 1"): certify(SMALL, tmp_path)
    certify(SMALL, tmp_path, why="We doubled it.")
    assert len(certificate(record, tmp_path)["replays"]) == 2
    assert doubt(record, tmp_path).startswith("recorded with version 0.1.0; today's code trains differently (gradient") and doubt(record, tmp_path).endswith("We doubled it.")
    assert doubt({**record, "date": "2999-01-01 12:00"}, tmp_path) == ""
    assert doubts([record, record, {**record, "date": "2999-01-01 12:00"}], tmp_path)[0].startswith("2 of 3 runs recorded")


def test_what_could_not_be_played_is_not_certified(tmp_path):
    record = {"task": "sort", "config": {"operator": "softsort"}, "version": "0.1.0", "date": "2026-01-01 12:00"}
    replays = [{"date": "2026-02-01 12:00", "failed": "its code is lost"}]
    write_json(tmp_path / "certificates" / f"{kind(record)}.json", {**record, "kind": kind(record), "replays": replays})
    assert doubts([record], tmp_path) == ["1 of 1 runs not certified: its code is lost"] and doubt({**record, "date": "2026-03-01 12:00"}, tmp_path) == ""


@pytest.mark.parametrize("old, new, word", [
    ([1.0, 2.0], [1.0, 2.0], ""), ([1.0, 2.0], [1.0, 2.0005], ""), ([1.0, 2.0], [1.0, 2.005], "step 2"), ([1.0, 2.0], [1.0], "step 2"), ([1.0], [1.0, 2.0], "step 2"),
    ([float("nan")], [float("nan")], ""), ([1.0], [float("nan")], "step 1"), ([1.0, 1e-9], [1.0, 2e-9], ""), ([], [], ""), ([0.0], [1e-3], "step 1")])
def test_differences(old, new, word):
    found = difference({"loss": old}, {"loss": new})
    assert word in found and bool(found) == bool(word)


# --- files that are no records ---

def test_a_file_that_is_no_record_breaks_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("softsortlib.lab.records.left_out", {})
    folder = tmp_path / "sort"
    write_json(folder / "a.json", {"task": "sort", "config": {}})
    write_json(folder / "b.json", {"task": "knn", "config": {}})
    write_json(folder / "c.json", [1, 2])
    (folder / "d.json").write_text('{"task": ')
    (folder / "e.json").write_bytes(b"\xff\xfe")
    assert [r["file"] for r in read_records(folder)] == ["a.json"]
    from softsortlib.lab import records
    assert records.left_out == {"b.json": "a record of knn", "c.json": "no record", "d.json": "empty or cut off", "e.json": "empty or cut off"} and not left_out
