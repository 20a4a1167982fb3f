"""Runs of no time, for tests of grids: they wait, fail or die when told to. In a module of its own, so that workers import it quickly."""
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from softsortlib.lab.records import write_json


def wait_for(condition, seconds=300):
    "Wait until `condition()` is true."
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


@dataclass(frozen=True)
class ToyConfig:
    "Does nothing, in the way that `kind` says; files beside the run's folder give the signs."
    kind: str = "quick"  # "quick", "wait" (for a file `go`), "fail" and "die" (both until there is a file `cured`), "forget" (to write the result)
    steps: int = 1  # told in the result
    seed: int = 0  # tells runs apart
    preset: str = "custom"  # the preset it came from
    task: ClassVar[str] = "toy"
    PRESETS: ClassVar[dict] = {"quick": {"steps": 7}}

    def uses(self): return ("threads", "trainer")

    def run(self, out, threads=None, **options):
        out = Path(out)
        signs, resumed = out.parent, (out / "half").exists()
        write_json(out / "config.json", asdict(self))
        with open(out / "tries", "a") as f: f.write(f"{os.getpid()}\n")
        (out / "half").touch()
        if self.kind == "wait": wait_for((signs / "go").exists)
        if self.kind == "fail" and not (signs / "cured").exists(): raise ArithmeticError("not today")
        if self.kind == "die" and not (signs / "cured").exists(): os.kill(os.getpid(), signal.SIGKILL)
        result = {"task": "toy", "config": asdict(self), "test": {"EM": self.seed / 10}, "seconds": 0.0, "resumed": resumed, "threads": threads, "options": options}
        if self.kind != "forget": write_json(out / "result.json", result)
        return result
