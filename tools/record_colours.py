"""Record the tutorial on arranging colours at full size: nbs/results/colours.json and nbs/images/colours.png.

    python tools/record_colours.py            102,400 colours, and a tenth of them; some minutes on one core
"""
import json
import resource
import time
from pathlib import Path

import torch
from PIL import Image

root = Path(__file__).resolve().parent.parent
cells = json.loads((root / "nbs/tutorials/arrange_colours.ipynb").read_text(encoding="utf-8"))["cells"]
code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code" and "def " in "".join(c["source"])]
for text in code: exec(text)                                # the tutorial's own functions: exchange, arrange, quality ...
torch.set_num_threads(1)

def memory(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def record(side, rounds):
    "Arrange side * side random colours; seconds of one core, quality, and how far the peak of memory rose."
    colours = torch.rand(side * side, 3, generator=torch.Generator().manual_seed(0))
    arrange(torch.rand(64, 3), 8, 3)                        # compiled before the clock starts
    before, began = memory(), time.process_time()
    grid = arrange(colours, side, rounds)
    seconds, extra = time.process_time() - began, memory() - before
    run = dict(side=side, rounds=rounds, seconds=round(seconds, 1), extra_mib=round(extra, 1), bytes_each=round(extra * 2**20 / side**2, 1),
               dpq16=round(quality(grid, side, cells=128), 4), random=round(quality(colours, side, cells=128), 4), threads=1)
    return run, grid

def main():
    runs = [record(100, 600), record(320, 600)]
    picture = (runs[-1][1].view(320, 320, 3).clamp(0, 1) * 255).round().byte().numpy()
    Image.fromarray(picture).quantize(192, dither=Image.Dither.NONE).save(root / "nbs/images/colours.png", optimize=True)
    record_of = dict(command="python tools/record_colours.py", **origin(), runs=[run for run, _ in runs])
    (root / "nbs/results/colours.json").write_text(json.dumps(record_of, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record_of, indent=1))

if __name__ == "__main__": main()
