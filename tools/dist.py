"""The release, made and tried: sdist and wheel, checked, and installed alone into empty environments.

    make dist                                   build, check, and try the wheel under every Python that is here
    python tools/dist.py --quick                try it under this Python only (CI)
    python tools/dist.py --pins torch==2.13.0   constrain what the environments install, e.g. to a build without CUDA
    python tools/dist.py --notes                the changelog's section of this version: the notes of a release
    python tools/dist.py --tag v0.1.0           fail unless this is the tag of settings.ini's version

In each environment, from an empty folder, run: the README's first example, `softsortlib --help`, and the example of every
public name. An example that imports something of an extra is left out and counted. With uv on the PATH, uv installs.
"""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

import repo
from repo import ROOT, settings

PYTHONS = [f"3.{minor}" for minor in range(10, 15)]
EXTRAS = {"sklearn", "scipy", "matplotlib", "torchvision", "torchmetrics", "pytorch_lightning", "typer", "rich", "h5py", "distributed", "submitit", "dask"}


def notes(version):
    "The changelog's section of a version, without its heading."
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(version)}(?![\w.])[^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if not found or not found[1].strip(): sys.exit(f"CHANGELOG.md has no section `## {version}`: write what changes for a user")
    return found[1].strip()


def check_tag(tag):
    "Whether a tag is that of the version in settings.ini, whose section of the changelog is dated."
    version = settings()["version"]
    if tag != f"v{version}": sys.exit(f"the tag is {tag} and settings.ini says version = {version}: the tag of this version is v{version}")
    notes(version)
    heading = re.search(rf"^## {re.escape(version)}(?![\w.]).*$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[0]
    if "unreleased" in heading.lower(): sys.exit(f"CHANGELOG.md still says `{heading}`: put the date in place of the word")


def run(*command, **how):
    "Run a command; leave with what it said where it fails."
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **how)
    if done.returncode: sys.exit(f"{' '.join(map(str, command[:6]))} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def build(out):
    "An sdist of the tracked files, and the wheel that is made from it: (sdist, wheel)"
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / "source"
        hide = shutil.ignore_patterns(".git", ".venv*", "_docs", "_proc", ".cache", "demo", "nbs", "tests", "__pycache__", "*.egg-info", "build", "dist")
        shutil.copytree(ROOT, clean, ignore=hide)
        run(sys.executable, "-m", "build", *(["--no-isolation"] if find_spec("setuptools") and find_spec("wheel") else []), "--outdir", out, clean)
    [sdist], [wheel] = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def files(folder, pattern):
    "{name: bytes} of the files below a folder."
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.glob(pattern)}


def check(sdist, wheel):
    "Both hold the package and the licence and nothing else of the repository; the index will show what they say of themselves."
    modules = files(ROOT, "softsortlib/**/*.py").keys() | {"softsortlib/py.typed", "softsortlib_command.py"}
    with zipfile.ZipFile(wheel) as z: inside = set(z.namelist())
    own = {n for n in inside if ".dist-info/" not in n}
    if own != modules: sys.exit(f"the wheel and the package differ: {sorted(own ^ modules)}")
    if not any(n.endswith("LICENSE") for n in inside): sys.exit("the wheel has no LICENSE")
    with tarfile.open(sdist) as t: source = {n.partition("/")[2] for n in t.getnames()}
    missing = (modules | {"settings.ini", "setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"}) - source
    if missing: sys.exit(f"the sdist lacks {sorted(missing)}")
    if find_spec("twine"): print(run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel).strip())
    else: print("twine is not installed: its check was left out")


def pythons():
    "The interpreters that are here: {version: path}; on the PATH, or installed by pyenv."
    home, found = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions", {}
    for version in PYTHONS:
        for place in filter(None, [shutil.which(f"python{version}"), *map(str, sorted(home.glob(f"{version}.*/bin/python")))]):
            asked = subprocess.run([place, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True)
            if asked.stdout.strip() == version: found.setdefault(version, place)
    return found


def first_example():
    "The README's first block of Python."
    return re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)[1]


def examples():
    "The examples of the API pages that need no GPU: [(name, code)]"
    found = [(repo.directives(source), source) for page in repo.notebooks(repo.NBS / "api") for source in repo.sources(page)]
    return [(marks["api"], source) for marks, source in found if "api" in marks and not marks.keys() & {"cuda", "slow"}]


SMOKE = """
import ast, json, sys, warnings
extras, failed, ran, left = set(json.loads(sys.argv[1])), [], 0, []
for name, code in json.load(sys.stdin):
    try:
        exec(compile(ast.parse(code), name, "exec"), {"__name__": "example"})
        ran += 1
    except ImportError as error:
        if any(extra in str(error) for extra in extras): left.append(name)
        else: failed.append(f"{name}: {type(error).__name__}: {error}")
    except Exception as error: failed.append(f"{name}: {type(error).__name__}: {error}")
import softsortlib
failed += [f"softsortlib.{name} is missing" for name in softsortlib.__all__ if not hasattr(softsortlib, name)]
where = softsortlib.__file__
print("SMOKE " + json.dumps(dict(ran=ran, left=left, failed=failed, where=where)))
"""


def environment(base, folder):
    "A new, empty environment: its Python, and the command that installs into it; by uv where it is."
    python, uv = folder / "bin" / "python", shutil.which("uv")
    run(*([uv, "venv", "-q", "-p", base, folder] if uv else [base, "-m", "venv", folder]))
    return python, [uv, "pip", "install", "-q", "-p", python] if uv else [python, "-m", "pip", "install", "-q"]


def attempt(version, base, wheel, sdist, pins):
    "Install the wheel alone under one Python and use it: what came of it, with the seconds from nothing to the first example."
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "empty").mkdir()
        start = time.time()
        python, install = environment(base, folder / "env")
        run(*install, wheel, *pins)
        installed = time.time() - start
        how = dict(cwd=folder / "empty", env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")} | {"NUMBA_CACHE_DIR": str(folder / "cache")})
        run(python, "-W", "error::UserWarning", "-c", first_example(), **how)
        first = time.time() - start
        usage = run(python.parent / "softsortlib", "--help", **how)
        if "demo" not in usage: sys.exit(f"softsortlib --help does not name its commands:\n{usage}")
        done = run(python, "-W", "error::UserWarning", "-c", SMOKE, json.dumps(sorted(EXTRAS)), input=json.dumps(examples()), **how)
        smoke = json.loads(re.search(r"^SMOKE (.*)$", done, re.M)[1])
        if smoke["failed"]: sys.exit(f"Python {version}:\n" + "\n".join(smoke["failed"]))
        if str(ROOT) in smoke["where"]: sys.exit("the checkout was imported, not the wheel")
        run(*install, "--no-deps", "--target", folder / "from_sdist", sdist)
        if files(Path(smoke["where"]).parent, "**/*.py") != files(folder / "from_sdist" / "softsortlib", "**/*.py"): sys.exit("the sdist installs other files than the wheel")
        torch = run(python, "-c", "import torch; print(torch.__version__)", **how).strip()
        return dict(python=version, torch=torch, installed=round(installed, 1), first=round(first, 1), ran=smoke["ran"], left=len(smoke["left"]))


def main():
    ap = repo.arguments(__doc__)
    ap.add_argument("--out", type=Path, default=ROOT / "dist", help="where sdist and wheel go")
    ap.add_argument("--quick", action="store_true", help="try them under this Python only")
    ap.add_argument("--build-only", action="store_true", help="build and check, try nothing")
    ap.add_argument("--python", nargs="*", help="only these versions, e.g. 3.10 3.13")
    ap.add_argument("--pins", nargs="*", default=[], help="what else the environments install, e.g. torch==2.13.0")
    ap.add_argument("--notes", action="store_true", help="print the changelog's section of this version")
    ap.add_argument("--tag", help="fail unless this is the tag of settings.ini's version")
    args = ap.parse_args()
    if args.tag: check_tag(args.tag)
    if args.notes: print(notes(settings()["version"]))
    if args.tag or args.notes: return
    shutil.rmtree(args.out, ignore_errors=True)
    sdist, wheel = build(args.out.resolve())
    check(sdist, wheel)
    for made in (sdist, wheel): print(f"{made.name}  {made.stat().st_size // 1024} kB  sha256 {hashlib.sha256(made.read_bytes()).hexdigest()}", flush=True)
    if args.build_only: return
    this = "%d.%d" % sys.version_info[:2]
    places = {this: sys.executable} if args.quick else pythons()
    if args.python: places = {version: place for version, place in places.items() if version in args.python}
    for version in args.python or ([] if args.quick else PYTHONS):
        if version not in places: print(f"Python {version} is not here", flush=True)
    for version, place in places.items():
        r = attempt(version, place, wheel, sdist, args.pins)
        print(f"Python {version}, torch {r['torch']}: installed in {r['installed']} s, first example after {r['first']} s, "
              f"{r['ran']} examples of public names ran, {r['left']} need an extra", flush=True)


if __name__ == "__main__": main()
