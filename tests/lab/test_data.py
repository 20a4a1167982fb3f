"""Data sources on disk: every way a file can be absent, broken or foreign, and agreement with torchvision's own reader."""
import gzip
import io
import os
import subprocess
import sys
import urllib.error
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

pytest.importorskip("sklearn", reason="the experiments extra is not installed")

from softsortlib.lab import data, sources
from softsortlib.lab.data import DataError, ImageBank, NumberSets, data_folder, load_images, optional, seeded, set_picture

REAL = os.environ.get("SOFTSORTLIB_DATA")
needs_real = pytest.mark.skipif(not REAL, reason="SOFTSORTLIB_DATA does not name a folder with MNIST")


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + b"".join(k.to_bytes(4, "big") for k in array.shape) + array.numpy().tobytes()


def write(path, raw):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw, 1) if path.suffix == ".gz" else raw)


@pytest.fixture(scope="module")
def mnist_bytes():
    g = torch.Generator().manual_seed(0)
    files = {}
    for split, N in (("train", 60_000), ("t10k", 10_000)):
        labels = torch.arange(N) % 10
        images = torch.zeros(N, 28, 28, dtype=torch.uint8)
        images[:, 0, 0] = labels
        images[:, 1, 1] = torch.randint(256, (N,), generator=g)
        files[f"{split}-images-idx3-ubyte"], files[f"{split}-labels-idx1-ubyte"] = idx(images), idx(labels.to(torch.uint8))
    return files


@pytest.fixture
def folder(tmp_path, mnist_bytes):
    for k, (file, raw) in enumerate(mnist_bytes.items()): write(tmp_path / "MNIST/raw" / (file + ".gz" * (k % 2)), raw)   # plain and .gz mixed
    return tmp_path


@pytest.fixture
def no_network(monkeypatch):
    def fail(*args, **kwargs): raise urllib.error.URLError("no network")
    datasets = optional("torchvision.datasets")
    monkeypatch.setattr(datasets.MNIST, "download", fail)


# --- folders ---

def test_folder_of_plain_and_gz_files(folder):
    banks = load_images("mnist", folder, download=False)
    assert {k: len(b) for k, b in banks.items()} == {"train": 55_000, "val": 5_000, "test": 10_000}
    for bank in banks.values():
        assert torch.equal(bank.images[:, 0, 0].long(), bank.labels)


def test_reading_leaves_the_folder_as_it_was(folder):
    before = sorted(folder.rglob("*"))
    load_images("mnist", folder, download=False)
    assert sorted(folder.rglob("*")) == before


def test_agrees_with_torchvision(folder, mnist_bytes, tmp_path):
    for file, raw in mnist_bytes.items(): write(tmp_path / "plain/MNIST/raw" / file, raw)
    theirs = optional("torchvision.datasets").MNIST(tmp_path / "plain", train=False, download=False)
    ours = load_images("mnist", folder, download=False)["test"]
    order = theirs.targets.argsort(stable=True)
    assert torch.equal(ours.images, theirs.data[order]) and torch.equal(ours.labels, theirs.targets[order])


def test_environment_variable_names_the_folder(folder, monkeypatch):
    monkeypatch.setenv("SOFTSORTLIB_DATA", str(folder))
    assert data_folder() == folder and len(load_images("mnist")["test"]) == 10_000
    monkeypatch.delenv("SOFTSORTLIB_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_folder() == Path("/cache/softsortlib")


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
@pytest.mark.parametrize("harm", ["cut", "cut gz", "garbage", "garbage gz", "empty", "longer", "flipped gz"])
def test_a_broken_file_is_named_and_nothing_is_written(folder, mnist_bytes, name, harm, no_network):
    for f in (folder / "MNIST/raw").glob(name + "*"): f.unlink()
    path = folder / "MNIST/raw" / (name + ".gz" * harm.endswith("gz"))
    raw = mnist_bytes[name]
    packed = bytearray(gzip.compress(raw, 1))
    packed[len(packed) // 2] ^= 0xff
    path.write_bytes({"cut": raw[:-1], "cut gz": gzip.compress(raw, 1)[:-9], "garbage": b"<html>" * 9, "garbage gz": b"<html>" * 9,
                      "empty": b"", "longer": raw + b"\0", "flipped gz": bytes(packed)}[harm])
    before = sorted(folder.rglob("*"))
    with pytest.raises(DataError) as e: load_images("mnist", folder)
    assert str(path) in str(e.value) and "fetch it again" in str(e.value)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("file,array,message", [
    ("t10k-labels-idx1-ubyte", torch.zeros(9_999, dtype=torch.uint8), "expected 10000 labels"),
    ("t10k-labels-idx1-ubyte", torch.full((10_000,), 10, dtype=torch.uint8), "expected 10000 labels 0..9"),
    ("t10k-images-idx3-ubyte", torch.zeros(10_000, 8, 8, dtype=torch.uint8), "expected 10000 images of 28 x 28"),
])
def test_a_foreign_file_is_named(folder, file, array, message):
    for f in (folder / "MNIST/raw").glob(file + "*"): f.unlink()
    write(folder / "MNIST/raw" / file, idx(array))
    with pytest.raises(DataError, match=message) as e: load_images("mnist", folder)
    assert file in str(e.value)


def test_without_files_or_network_the_error_says_what_to_put_where(tmp_path, no_network):
    with pytest.raises(DataError) as e: load_images("mnist", tmp_path / "new")
    for part in ("no network", str(tmp_path / "new/MNIST/raw"), "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte", "SOFTSORTLIB_DATA"):
        assert part in str(e.value)
    assert not [f for f in tmp_path.rglob("*") if f.is_file()] and not list(tmp_path.rglob(".download*"))


def test_download_arrives_whole(tmp_path, mnist_bytes, monkeypatch):
    def fetch(self):
        for file, raw in mnist_bytes.items(): write(Path(self.raw_folder) / file, raw)
    monkeypatch.setattr(optional("torchvision.datasets").MNIST, "download", fetch)
    assert len(load_images("mnist", tmp_path)["train"]) == 55_000
    assert sorted(f.name for f in tmp_path.rglob("*") if f.is_file()) == sorted(mnist_bytes)


def test_download_that_breaks_leaves_nothing(tmp_path, mnist_bytes, monkeypatch):
    def fetch(self):
        for file, raw in mnist_bytes.items(): write(Path(self.raw_folder) / file, raw if file.startswith("train") else raw[:1000])
    datasets = optional("torchvision.datasets")
    monkeypatch.setattr(datasets.MNIST, "download", fetch)
    with pytest.raises(DataError, match="could not be downloaded"): load_images("mnist", tmp_path)
    assert not [f for f in tmp_path.rglob("*") if f.is_file()]


def test_a_folder_that_cannot_be_written(tmp_path, no_network):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="SOFTSORTLIB_DATA"): load_images("mnist", tmp_path / "file")


@needs_real
@pytest.mark.parametrize("name,counts", [("mnist", [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]), ("fashion", [1000] * 10)])
def test_the_real_data(name, counts):
    banks = load_images(name, download=False)
    assert {k: len(b) for k, b in banks.items()} == {"train": 55_000, "val": 5_000, "test": 10_000}
    assert banks["test"].counts.tolist() == counts
    images, values = NumberSets(banks["train"], n=7).draw(3, seeded(0))
    assert images.shape == (3, 7, 1, 112, 28) and 0 <= images.min() and images.max() == 1


def test_the_real_photographs(tmp_path, monkeypatch):
    if not REAL or not (Path(REAL) / "CIFAR10-jpeg/test.npz").is_file(): pytest.skip("SOFTSORTLIB_DATA does not name a folder with CIFAR10-jpeg")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    images, labels = sources._decode_jpegs(Path(REAL) / "CIFAR10-jpeg/test.npz")
    assert images.shape == (10_000, 32, 32, 3) and np.bincount(labels).tolist() == [1000] * 10
    again, _ = sources._decode_jpegs(Path(REAL) / "CIFAR10-jpeg/test.npz")
    assert isinstance(again, np.memmap) and (again == images).all()


# --- photographs ---

def jpegs(path, N, size=32):
    labels, files = np.arange(N) % 10, []
    for c in labels:
        with io.BytesIO() as f:
            optional("PIL.Image").new("RGB", (size, size), (20 * int(c), 10, 100)).save(f, "JPEG", quality=75)
            files.append(f.getvalue())
    path.parent.mkdir(exist_ok=True)
    np.savez(path, data=np.frombuffer(b"".join(files), np.uint8), offsets=np.cumsum([0] + [len(f) for f in files]), labels=labels.astype(np.uint8))


@pytest.mark.parametrize("harm,message", [("missing", "is missing, and CIFAR-10"), ("cut", "cannot be read"), ("foreign", "cannot be read"), ("garbage", "cannot be read"),
                                          ("no JPEG", "cannot be read"), ("large", "expected"), ("labels", "expected")])
def test_a_broken_archive_is_named(tmp_path, monkeypatch, harm, message):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "CIFAR10-jpeg/train.npz"
    jpegs(path, 20, size=33 if harm == "large" else 32)
    jpegs(path.with_name("test.npz"), 20)
    with np.load(path) as z: parts = dict(z)
    if harm == "missing": path.unlink()
    if harm == "cut": path.write_bytes(path.read_bytes()[:-100])
    if harm == "foreign": np.savez(path, images=np.zeros(3))
    if harm == "garbage": path.write_bytes(b"<html>" * 99)
    if harm == "no JPEG": np.savez(path, **{**parts, "data": np.zeros_like(parts["data"])})
    if harm == "labels": np.savez(path, **{**parts, "labels": parts["labels"][:-1]})
    with pytest.raises(DataError, match=message) as e: load_images("cifar10_jpeg", tmp_path)
    assert str(path) in str(e.value)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    jpegs(tmp_path / "CIFAR10-jpeg/test.npz", 20)
    for _ in range(2): assert len(sources._decode_jpegs(tmp_path / "CIFAR10-jpeg/test.npz")[0]) == 20


def test_a_broken_cache_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "source").write_text("")
    for _ in range(2): assert sources.cached_array(tmp_path / "source", lambda: np.arange(3)).tolist() == [0, 1, 2]
    kept, = (tmp_path / "softsortlib/decoded").glob("*.npy")
    kept.write_bytes(kept.read_bytes()[:40])
    for _ in range(2): assert sources.cached_array(tmp_path / "source", lambda: np.arange(3)).tolist() == [0, 1, 2]
    assert np.load(kept).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name,classes", [("cifar10", 10), ("cifar100", 100)])
def test_cifar_by_torchvision(tmp_path, monkeypatch, name, classes):
    class Fake:
        def __init__(self, root, train, download):
            N = 6000 if train else 1000
            self.targets = [i % classes for i in range(N)]
            self.data = np.array(self.targets, np.uint8)[:, None, None, None] * np.array([1, 0, 2], np.uint8) * np.ones((1, 32, 32, 1), np.uint8)
            self.classes = [str(c) for c in range(classes)]
    monkeypatch.setattr(optional("torchvision.datasets"), name.upper(), Fake)
    banks = load_images(name, tmp_path, download=False)
    assert {k: len(b) for k, b in banks.items()} == {"train": 1000, "val": 5000, "test": 1000} and len(banks["val"].counts) == classes
    pixels = banks["val"].take(torch.arange(5000))
    assert pixels.shape == (5000, 3, 32, 32) and torch.equal((pixels[:, 0, 3, 3] * 255).round().long(), banks["val"].labels) and not pixels[:, 1].any()


@pytest.mark.parametrize("name,where", [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")])
def test_cifar_that_is_not_there(tmp_path, name, where):
    with pytest.raises(DataError, match=where) as e: load_images(name, tmp_path, download=False)
    assert "SOFTSORTLIB_DATA" in str(e.value)


def test_numbers_are_written_in_grey():
    bank = ImageBank(torch.zeros(10, 3, 2, 2, dtype=torch.uint8), torch.arange(10))
    with pytest.raises(ValueError, match="grey images"): NumberSets(bank)


# --- imports ---

def test_torchvision_is_patched_only_for_its_missing_operators(monkeypatch):
    import builtins
    real = builtins.__import__
    def broken(name, *args, **kwargs):
        if name == "torchvision": raise RuntimeError("something else")
        return real(name, *args, **kwargs)
    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(RuntimeError, match="something else"): optional("torchvision.datasets")


@pytest.mark.parametrize("module,call", [("torchvision", "data.optional('torchvision.datasets')"), ("sklearn", "data.load_images('digits')")])
def test_a_missing_package_says_what_to_install(module, call):
    code = f"import sys; sys.modules[{module!r}] = None\nfrom softsortlib.lab import data\ntry: {call}\nexcept ImportError as e: print(e)"
    out = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'softsortlib[experiments]'" in out


def test_importing_the_module_imports_no_extra():
    code = "import softsortlib.lab.data, sys; print([m for m in ('torchvision', 'sklearn', 'pytorch_lightning', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


# --- banks and sets ---

@pytest.mark.parametrize("images,labels,message", [
    (torch.zeros(10, 2, 2), torch.arange(10), "uint8"),
    (torch.zeros(10, 4, dtype=torch.uint8), torch.arange(10), r"\(N, h, w\)"),
    (torch.zeros(10, 2, 2, dtype=torch.uint8), torch.arange(9), "one for each image"),
    (torch.zeros(10, 2, 2, dtype=torch.uint8), torch.arange(1, 11), "0..9"),
    (torch.zeros(10, 2, 2, dtype=torch.uint8), torch.arange(-1, 9), "0..9"),
    (torch.zeros(9, 2, 2, dtype=torch.uint8), torch.arange(9), "at least one image of each class"),
    (torch.zeros(0, 2, 2, dtype=torch.uint8), torch.arange(0), "at least one image of each class"),
])
def test_bank_errors(images, labels, message):
    with pytest.raises(ValueError, match=message): ImageBank(images, labels)


@pytest.mark.parametrize("options,message", [({"convention": "diagonal"}, "'stacked' or 'row'"), ({"n": 0}, "at least 1"), ({"digits": 0}, "1..9")])
def test_set_errors(options, message):
    bank = ImageBank(torch.zeros(10, 2, 2, dtype=torch.uint8), torch.arange(10))
    with pytest.raises(ValueError, match=message): NumberSets(bank, **options)


def test_unknown_source():
    with pytest.raises(ValueError, match="'digits', 'mnist', 'fashion'"): load_images("svhn")


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 6), digits=st.integers(1, 5), batch=st.integers(1, 5), h=st.integers(1, 4), w=st.integers(1, 4),
       convention=st.sampled_from(["stacked", "row"]), seed=st.integers(0, 1 << 60))
def test_the_picture_shows_the_value(n, digits, batch, h, w, convention, seed):
    labels = torch.randint(10, (40,), generator=torch.Generator().manual_seed(seed))
    labels[:10] = torch.arange(10)
    bank = ImageBank(labels.to(torch.uint8)[:, None, None].expand(-1, h, w), labels)
    sets = NumberSets(bank, n=n, digits=digits, convention=convention)
    images, values = sets.draw(batch, seeded(seed))
    assert images.shape == (batch, n, 1, *sets.shape) and values.shape == (batch, n) and images.dtype == torch.float32
    pixels = (images * 255).round().long()[:, :, 0]
    read = pixels[..., ::h, 0] if convention == "stacked" else pixels[..., 0, ::w]
    assert torch.equal((read * 10 ** torch.arange(digits - 1, -1, -1)).sum(-1), values)
    assert set_picture(images[0], convention, digits).shape[0] == h


def test_a_seed_means_the_same_sets_on_every_machine():
    bank = load_images("digits")["train"]
    assert NumberSets(bank, n=5).draw(1, seeded(0, "train", 0))[1].tolist() == [[3486, 4416, 7597, 5021, 6777]]
