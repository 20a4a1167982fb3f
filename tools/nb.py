"""Export notebooks, run each top to bottom in a fresh process, keep their cleaned outputs.

    python tools/nb.py                        every notebook
    python tools/nb.py nbs/core/01_permutation.ipynb ...  these
"""
import base64, hashlib, io, os, subprocess, sys, time
from pathlib import Path

from execnb.nbio import read_nb, write_nb
from nbdev.clean import clean_nb
from nbdev.config import get_config, update_version
from nbdev.export import nb_export
from nbdev.process import extract_directives
from PIL import Image

from fresh import Emptying
from repo import ROOT, notebooks

def stable_ids(nb):
    "Name each cell by its text, so that a notebook written anew exports the same module"
    seen = set()
    for cell in nb.cells:
        text = cell.source if isinstance(cell.source, str) else "".join(cell.source)
        cell["id"] = next(i for k in range(len(nb.cells)) if (i := hashlib.sha1(f"{text}{k or ''}".encode()).hexdigest()[:8]) not in seen)
        seen.add(cell["id"])

def lighten(nb):
    "Give the pictures a palette of 128 colours: a plot needs no more, and weighs a third. They keep their size in inches"
    for cell in nb.cells:
        for data in (o["data"] for o in cell.get("outputs", []) if "image/png" in o.get("data", {})):
            picture, light = Image.open(io.BytesIO(base64.b64decode("".join(data["image/png"])))), io.BytesIO()
            if picture.mode == "P": continue
            picture.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(light, "PNG", optimize=True, dpi=picture.info.get("dpi", (144, 144)))
            data["image/png"] = base64.b64encode(light.getvalue()).decode()

def prepare(path):
    "Clean the notebook and export its module"
    nb = read_nb(path)
    nb["metadata"] = {"kernelspec": {"display_name": "python3", "language": "python", "name": "python3"}}
    clean_nb(nb); stable_ids(nb)
    write_nb(nb, path)
    nb_export(path.resolve(), lib_path=ROOT / "softsortlib")
    if path.name == "package.ipynb": update_version(ROOT / "softsortlib")  # it exports __init__, which has just been written anew

def run(path):
    "Run the notebook in this process and keep its outputs; cells flagged slow or cuda, or `eval: false`, are left as they are"
    os.environ["IN_TEST"] = "1"  # `nbdev_export()` inside a notebook becomes a no-op
    nb, flags = read_nb(path), set(get_config().tst_flags.split())
    if "skip_exec: true" in str(nb.cells[0].source): return
    def skip(cell):
        if cell.cell_type != "code": return True
        directives = extract_directives(cell, remove=False)
        return directives.get("eval:", [""])[0].lower() == "false" or bool(flags & directives.keys())
    shell, start = Emptying(path), time.time()
    os.chdir(path.parent)
    try: shell.run_all(nb, exc_stop=True, preproc=skip)
    except Exception: sys.exit(shell.prettytb(fname=path))
    clean_nb(nb); lighten(nb)
    write_nb(nb, path)
    print(f"{time.time() - start:6.2f}s {path.relative_to(ROOT)}")

if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]: run(Path(sys.argv[2]).resolve()); sys.exit()
    for path in [Path(p).resolve() for p in sys.argv[1:]] or notebooks():
        prepare(path)
        env = {**os.environ, "MATPLOTLIBRC": str(ROOT / "nbs" / "matplotlibrc")}     # the look of all pictures
        if code := subprocess.run([sys.executable, __file__, "--run", str(path)], env=env).returncode: sys.exit(code)
