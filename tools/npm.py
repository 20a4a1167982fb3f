"""Fetch a package from the npm registry once, check it against the digest that its publisher signed, and keep what is needed of it."""
import base64, hashlib, shutil, subprocess, sys, tarfile, tempfile
from pathlib import Path

KATEX = ("katex", "0.16.11", "RQrI8rlHY92OLf3rho/Ts8i/XvjgguEjOkO1BEXcU3N8BqPpSzBNwV/G0Ukr+P/l3ivvJUE/Fa/CwbS6HesGNQ==", "package/dist")
AXE = ("axe-core", "4.10.3", "Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg==", "package")

def fetch(package, cache):
    "The folder in `cache` that holds a folder of the package, filled once"
    name, version, digest, inside = package
    folder = Path(cache) / f"{name}-{version}"
    if folder.exists(): return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as tmp:       # two processes may do this at once
        archive = Path(tmp) / f"{name}-{version}.tgz"
        if shutil.which("npm"): subprocess.run(["npm", "pack", "--silent", f"{name}@{version}"], cwd=tmp, check=False, capture_output=True)
        if not archive.exists(): sys.exit(f"{name} {version} is not in {folder} and npm did not fetch it: unpack {inside}/ of the npm package {name}@{version} there")
        if base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() != digest: sys.exit(f"the download of {name} {version} is not the file its publisher signed: try again")
        how = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}                     # Python 3.10.12, 3.11.4 and later want one; the digest is checked
        with tarfile.open(archive) as tar: tar.extractall(tmp, **how)
        try: (Path(tmp) / inside).rename(folder)
        except OSError: pass                                                                    # the other one was first
    return folder
