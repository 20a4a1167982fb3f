"""Count what every operator, function and loss would launch on a GPU, and record it; no GPU is needed.

    python tools/record_launches.py           # writes nbs/results/launches.json, which nbs/benchmarks/launches.ipynb shows
"""
import sys
from pathlib import Path

root = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(root), str(root / "tests")]

from pretend import cases  # noqa: E402

import torch  # noqa: E402

from softsortlib.lab.records import origin, write_json  # noqa: E402

rows = [dict(call=case.name, **case.run()) for case in cases()]
write_json(root / "nbs/results/launches.json", dict(**origin(), rows=rows))
print(f"{len(rows)} calls, {sum(bool(row['waits']) for row in rows)} of which make the host wait")
