"""Play each kind of recorded run again, for twenty steps, and compare with its certificate (nbs/lab/18_certificates.ipynb says what that is).

    python tools/certify.py                          tells which kinds train differently now, and certifies those without a certificate
    python tools/certify.py lapsum                   only kinds with that word in their names
    python tools/certify.py --why "We mended ..."    certifies what trains differently; CHANGELOG.md must have that sentence too
"""
import importlib, os, sys, time

from softsortlib.lab.certificates import RESULTS, certificate, certify, kind
from softsortlib.lab.images import DataError
from softsortlib.lab.records import read_records
from softsortlib.lab.runs import RunConfig

import repo

EXPERIMENTS = ("baselines", "large_sets", "median", "neighbours", "sorting", "topk")    # those that train
MEASURED = ("memory", "speed")                                                          # tasks whose records hold times and bytes
DATA = repo.ROOT.parent / "shared" / "data"

for name in EXPERIMENTS: importlib.import_module(f"softsortlib.lab.{name}")


def records():
    "The records of runs that train, those without steps among them."
    tasks = sorted(set(RunConfig.tasks) - set(MEASURED))
    return [r for task in tasks for pattern in (f"{task}/*.json", f"*/{task}/*.json") for r in read_records(RESULTS, pattern)]


def config_of(record):
    "The configuration of a record, or of a certificate."
    return RunConfig.tasks[record["task"]](**record["config"])


def folder():
    "Where the data sets lie: as the environment says, or beside the checkout; None where load_images shall look."
    return str(DATA) if DATA.exists() and not os.environ.get("SOFTSORTLIB_DATA") else None


def main():
    ap = repo.arguments(__doc__)
    ap.add_argument("word", nargs="?", default="")
    ap.add_argument("--why", default="")
    args, kinds, bad, start = ap.parse_args(), {kind(r): r for r in records()}, 0, time.time()
    chosen = [name for name in sorted(kinds) if args.word in name]
    for name in chosen:
        before = certificate(kinds[name])
        try: after = certify(config_of(before or kinds[name]), folder=folder(), why=args.why)
        except DataError as e: print(f"{name}: not played, {e}")
        except ValueError as e:
            bad += 1
            print(e)
        else:
            if after != before: print(f"{name}: certified")
    print(f"{len(chosen)} kinds in {time.time() - start:.0f} s, {bad} train differently")
    return int(bool(bad))


if __name__ == "__main__": sys.exit(main())
