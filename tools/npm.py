"""Fetch a package from the npm registry once, check it against the digest that its publisher signed, and keep what is needed of it."""
import base64, hashlib, io, shutil, subprocess, sys, tarfile, tempfile
from pathlib import Path

KATEX = ("katex", "0.16.11", "RQrI8rlHY92OLf3rho/Ts8i/XvjgguEjOkO1BEXcU3N8BqPpSzBNwV/G0Ukr+P/l3ivvJUE/Fa/CwbS6HesGNQ==", "package/dist/")
AXE = ("axe-core", "4.10.3", "Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg==", "package/axe.min.js")

def fetch(package, cache):
    "The folder in `cache` that holds the package's files below its prefix, filled once"
    name, version, digest, prefix = package
    folder = Path(cache) / f"{name}-{version}"
    if folder.exists(): return folder
    with tempfile.TemporaryDirectory() as tmp:
        if shutil.which("npm"): subprocess.run(["npm", "pack", "--silent", f"{name}@{version}"], cwd=tmp, check=False, capture_output=True)
        archive = Path(tmp) / f"{name}-{version}.tgz"
        if not archive.exists(): sys.exit(f"{name} {version} is not in {folder} and npm did not fetch it: unpack {prefix} of the npm package {name}@{version} there")
        data = archive.read_bytes()
    if base64.b64encode(hashlib.sha512(data).digest()).decode() != digest: sys.exit(f"the download of {name} {version} is not the file its publisher signed: try again")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))       # two processes may do this at once
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for m in tar:
            if not m.isfile() or not m.name.startswith(prefix) or ".." in m.name: continue
            to = partial / (m.name.removeprefix(prefix) or Path(m.name).name)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(tar.extractfile(m).read())
    try: partial.rename(folder)
    except OSError: shutil.rmtree(partial)                                              # the other one was first
    return folder
