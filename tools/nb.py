"""Export the given notebooks, run each top to bottom in a fresh process, keep their cleaned outputs.

    python tools/nb.py nbs/00_core.ipynb ...
"""
import hashlib, subprocess, sys
from pathlib import Path

from execnb.nbio import read_nb, write_nb
from nbdev.clean import clean_nb
from nbdev.export import nb_export

root = Path(__file__).resolve().parent.parent

def stable_ids(nb):
    "Name each cell by its text, so that a notebook written anew exports the same module"
    seen = set()
    for cell in nb.cells:
        text = cell.source if isinstance(cell.source, str) else "".join(cell.source)
        cell["id"] = next(i for k in range(len(nb.cells)) if (i := hashlib.sha1(f"{text}{k or ''}".encode()).hexdigest()[:8]) not in seen)
        seen.add(cell["id"])

for path in map(Path, sys.argv[1:]):
    nb = read_nb(path)
    clean_nb(nb); stable_ids(nb)
    write_nb(nb, path)
    nb_export(path.resolve(), lib_path=root / "softsortlib")
    if code := subprocess.run([sys.executable, str(root / "tools/run_notebooks.py"), str(path)]).returncode: sys.exit(code)
