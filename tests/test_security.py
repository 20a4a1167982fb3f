"""What comes from outside is read without trust (SECURITY.md): nothing in it runs, leads out of its folder, or unpacks to more than it should."""
import ast
import gzip
import importlib.util
import io
import os
import pickle
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
MiB = 1 << 20


def calls(tree):
    "Every call: (the dotted name as it is written, its node)."
    for node in ast.walk(tree):
        if isinstance(node, ast.Call): yield ast.unparse(node.func), node


def offences(text):
    "What a module does that would let a file run code, or write where it likes."
    tree = ast.parse(text)
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from (f"imports {name}" for name in names if name.split(".")[0] in ("pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "tarfile"))
    for name, node in calls(tree):
        said = {k.arg: ast.unparse(k.value) for k in node.keywords}
        if name.endswith("torch.load") and said.get("weights_only") != "True": yield f"line {node.lineno}: torch.load without weights_only=True"
        if name.endswith(".fit") and "ckpt_path" in said and said.get("weights_only") != "True": yield f"line {node.lineno}: resumes without weights_only=True"
        if said.get("allow_pickle") == "True": yield f"line {node.lineno}: allow_pickle=True"
        if name.split(".")[-1] in ("extractall", "unpack_archive", "load_from_checkpoint"): yield f"line {node.lineno}: {name}"
        if name in ("eval", "exec"): yield f"line {node.lineno}: {name}"


@pytest.mark.parametrize("path", sorted((ROOT / "softsortlib").rglob("*.py")), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_no_module_reads_with_trust(path):
    assert not list(offences(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("text", ["import pickle", "from joblib import load", "torch.load(p)", "torch.load(p, weights_only=False)", "np.load(p, allow_pickle=True)",
                                  "tar.extractall()", "trainer.fit(task, ckpt_path=p)", "eval(text)"])
def test_an_offence_is_found(text):
    assert list(offences(text))


lab = pytest.mark.skipif(not all(map(importlib.util.find_spec, ("pytorch_lightning", "sklearn", "PIL", "h5py"))), reason="the experiments extra is not installed")


class Payload:
    "A pickle that makes a folder when it is read."
    def __init__(self, path): self.path = str(path)
    def __reduce__(self): return os.mkdir, (self.path,)


@pytest.fixture
def trap(tmp_path):
    "A payload that works when it is trusted, and the folder that gives it away."
    path = tmp_path / "sprung"
    pickle.loads(pickle.dumps(Payload(path)))
    path.rmdir()
    return Payload(path), path


@lab
@pytest.mark.parametrize("name", ["last.ckpt", "best.ckpt"])
def test_a_checkpoint_runs_nothing(name, trap, tmp_path):
    from softsortlib.lab.pictures import _trained
    from softsortlib.lab.sorting import SortConfig
    from softsortlib.lab.training import train
    config = SortConfig(n=3, digits=1, steps=4, epoch=2, tau=8.0, batch=4, val_sets=4, test_sets=4)
    train(config, tmp_path / "run", threads=1)
    path = tmp_path / "run/checkpoints" / name
    checkpoint = torch.load(path, weights_only=True)
    torch.save({**checkpoint, "state_dict": trap[0]}, path)
    (tmp_path / "run/result.json").unlink()
    with pytest.raises(Exception) as caught:
        train(config, tmp_path / "run", threads=1) if name == "last.ckpt" else _trained(config, tmp_path / "run", None)
    assert not trap[1].exists(), f"the checkpoint ran its payload, and then {caught.value}"


@lab
def test_a_batch_of_cifar_that_is_not_the_published_one_is_not_read(trap, tmp_path):
    from softsortlib.lab.images import DataError
    from softsortlib.lab.sources import load_images
    folder = tmp_path / "data/cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in ("batches.meta", "test_batch", *(f"data_batch_{i}" for i in range(1, 6))): (folder / name).write_bytes(pickle.dumps(trap[0]))
    with pytest.raises(DataError): load_images("cifar10", tmp_path / "data", download=False)
    assert not trap[1].exists()


def peak(f):
    "The most memory that Python's allocators held while f ran, in bytes."
    tracemalloc.start()
    try: f()
    finally: top = tracemalloc.get_traced_memory()[1]; tracemalloc.stop()
    return top


@lab
def test_a_gzip_bomb_is_not_unpacked(monkeypatch, tmp_path):
    from softsortlib.lab import sources
    monkeypatch.setattr(sources, "_LARGEST", MiB)
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(b"\0\0\x08\x01" + (64 * MiB).to_bytes(4, "big") + bytes(64 * MiB), 1))
    def read():
        with pytest.raises(sources.DataError, match="bomb.gz holds more than 1 MiB"): sources.read_idx(bomb)
    assert peak(read) < 8 * MiB


@lab
@pytest.mark.parametrize("shape", [(1 << 31, 1 << 31, 4), ((1 << 32) - 1,) * 2, (0, (1 << 32) - 1, (1 << 32) - 1), (1,) * 255, (0,)])
def test_a_header_promises_what_it_likes(shape, tmp_path):
    from softsortlib.lab.sources import DataError, read_idx
    (tmp_path / "idx").write_bytes(b"\0\0\x08" + bytes([len(shape)]) + b"".join(k.to_bytes(4, "big") for k in shape))
    with pytest.raises(DataError, match="promises|begins with"): read_idx(tmp_path / "idx")


def archive(path, data, offsets=(0, 1), labels=(0,)):
    np.savez_compressed(path, data=data, offsets=np.array(offsets), labels=np.array(labels, np.uint8))
    return path


@lab
def test_an_archive_that_unpacks_to_too_much_is_not_unpacked(monkeypatch, tmp_path):
    from softsortlib.lab import sources
    monkeypatch.setattr(sources, "_LARGEST", MiB)
    bomb = archive(tmp_path / "bomb.npz", np.zeros(64 * MiB, np.uint8))
    assert bomb.stat().st_size < MiB
    def read():
        with pytest.raises(sources.DataError, match="unpacks to 64 MiB"): sources._decode_jpegs(bomb)
    assert peak(read) < 8 * MiB


@lab
def test_an_archive_with_a_pickle_runs_nothing(trap, monkeypatch, tmp_path):
    from softsortlib.lab import sources
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    np.savez(tmp_path / "a.npz", data=np.array([trap[0]], object), offsets=np.array([0, 1]), labels=np.zeros(1, np.uint8))
    with pytest.raises(sources.DataError, match="cannot be read"): sources._decode_jpegs(tmp_path / "a.npz")
    assert not trap[1].exists()


@lab
def test_an_archive_that_leads_out_of_its_folder_writes_nothing(monkeypatch, tmp_path):
    from softsortlib.lab import sources
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "in/a.npz"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as z: z.writestr("../../outside.npy", b"x")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(sources.DataError): sources._decode_jpegs(path)
    assert sorted(tmp_path.rglob("*")) == before


@lab
def test_a_picture_bomb_is_not_unpacked(monkeypatch, tmp_path):
    from PIL import Image
    from softsortlib.lab import sources
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with io.BytesIO() as f:
        Image.new("L", (3000, 3000)).save(f, "JPEG")
        packed = np.frombuffer(f.getvalue(), np.uint8)
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("the picture was unpacked"))
    with pytest.raises(sources.DataError, match="3000.*expected"): sources._decode_jpegs(archive(tmp_path / "a.npz", packed, (0, len(packed))))


@lab
@pytest.mark.parametrize("name", ["../outside.png", "/etc/passwd", "folder/1.png", ""])
def test_a_name_that_leads_out_of_its_folder_is_refused(name, tmp_path):
    from softsortlib.lab.digit_struct import DataError, HouseNumber, _write_digit_struct, read_digit_struct
    _write_digit_struct(tmp_path / "digitStruct.mat", [HouseNumber(name, (1,), np.array([[1.0, 1, 5, 5]]))])
    with pytest.raises(DataError, match="cannot be read"): read_digit_struct(tmp_path / "digitStruct.mat")


@lab
def test_a_photograph_of_too_many_pixels_is_named(monkeypatch, tmp_path):
    from PIL import Image
    from softsortlib.lab.digit_struct import DataError, HouseNumber
    from softsortlib.lab.svhn import _cut_number
    Image.new("RGB", (40, 40)).save(tmp_path / "1.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DataError, match="1.png cannot be used"): _cut_number(tmp_path, HouseNumber("1.png", (1,), np.array([[1.0, 1, 5, 5]])))
