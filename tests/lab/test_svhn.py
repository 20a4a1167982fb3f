"""Street View House Numbers: the published file format written by hand, broken in every way, and a short training run on it."""
import os
import shutil

import numpy as np
import pytest
import torch

pytest.importorskip("h5py", reason="the experiments extra is not installed")
pytest.importorskip("sklearn", reason="the experiments extra is not installed")

from softsortlib.lab import digit_struct, svhn
from softsortlib.lab.data import DataError, optional, seeded
from softsortlib.lab.svhn import HouseBank, HouseCNN, SvhnConfig, SvhnData, cut_out, house_splits, joined_box, load_part, make_street, read_digit_struct

h5py, pillow = optional("h5py"), optional("PIL.Image")

# name, labels as in the file (10 is the digit 0), boxes (left, top, width, height)
STREET = [("1.png", [1, 9], [(246, 77, 81, 219), (323, 81, 96, 219)]),
          ("2.png", [7], [(0, 0, 30, 40)]),                                  # a single digit in a corner
          ("3.png", [10, 5], [(90, 60, 10, 20), (100, 60, 10, 20)]),         # begins with a zero, ends at the border
          ("4.png", [1, 10, 10, 10, 3, 2], [(10 * i, 10, 10, 15) for i in range(6)])]
VALUES = [19, 7, 5, 100032]


def write_mat(path, street):
    "As MATLAB 7.3 lays out an array of structures; written without the library's own writer."
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", userblock_size=512) as f:
        N, names, groups = len(street), [], []
        for i, (name, labels, boxes) in enumerate(street):
            names.append(f.create_dataset(f"#refs#/n{i}", data=np.array([[ord(c)] for c in name], "<u2")).ref)
            g = f.create_group(f"#refs#/b{i}")
            for key, values in (("height", [b[3] for b in boxes]), ("label", labels), ("left", [b[0] for b in boxes]), ("top", [b[1] for b in boxes]), ("width", [b[2] for b in boxes])):
                if len(values) == 1: g.create_dataset(key, data=np.array([[values[0]]], "<f8"))
                else:
                    d = g.create_dataset(key, (len(values), 1), dtype=h5py.ref_dtype)
                    for j, v in enumerate(values): d[j, 0] = f.create_dataset(f"#refs#/{key}{i}_{j}", data=np.array([[v]], "<f8")).ref
            groups.append(g.ref)
        for key, refs in (("name", names), ("bbox", groups)):
            d = f.create_dataset(f"digitStruct/{key}", (N, 1), dtype=h5py.ref_dtype)
            for i, r in enumerate(refs): d[i, 0] = r


def write_street(folder, parts=("train", "extra", "test"), repeat=5):
    for part in parts:
        street = [(f"{len(STREET) * r + i + 1}.png", labels, boxes) for r in range(repeat) for i, (_, labels, boxes) in enumerate(STREET)]
        write_mat(folder / "SVHN" / part / "digitStruct.mat", street)
        for k, (name, labels, boxes) in enumerate(street):
            width, height = (int(max(b[i] + b[i + 2] for b in boxes)) + (20 if k % 4 == 0 else 0) for i in (0, 1))
            pillow.fromarray(np.random.RandomState(k).randint(0, 256, (height, width, 3)).astype(np.uint8)).save(folder / "SVHN" / part / name)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SOFTSORTLIB_DATA", raising=False)


# --- the format ---

def test_annotations_are_read_as_they_were_written(tmp_path):
    write_mat(tmp_path / "digitStruct.mat", STREET)
    houses = read_digit_struct(tmp_path / "digitStruct.mat")
    assert [h.name for h in houses] == [name for name, _, _ in STREET] and [h.value for h in houses] == VALUES
    assert [h.digits for h in houses] == [(1, 9), (7,), (0, 5), (1, 0, 0, 0, 3, 2)]
    for house, (_, _, boxes) in zip(houses, STREET): assert np.array_equal(house.boxes, boxes)


def test_the_librarys_writer_writes_the_same_layout(tmp_path):
    write_mat(tmp_path / "theirs.mat", STREET)
    digit_struct._write_digit_struct(tmp_path / "ours.mat", read_digit_struct(tmp_path / "theirs.mat"))
    for a, b in zip(*(read_digit_struct(tmp_path / f) for f in ("ours.mat", "theirs.mat"))):
        assert a[:2] == b[:2] and np.array_equal(a.boxes, b.boxes)
    with h5py.File(tmp_path / "ours.mat") as ours, h5py.File(tmp_path / "theirs.mat") as theirs:
        for key in ("digitStruct/name", "digitStruct/bbox"): assert ours[key].shape == theirs[key].shape and ours[key].dtype == theirs[key].dtype
        for k in range(4):
            a, b = (f[f["digitStruct/bbox"][k, 0]] for f in (ours, theirs))
            assert {key: (a[key].shape, a[key].dtype) for key in a} == {key: (b[key].shape, b[key].dtype) for key in b}


@pytest.mark.parametrize("harm", ["missing", "garbage", "cut", "other", "label", "no label", "uneven"])
def test_a_broken_annotation_file_is_named(tmp_path, harm):
    path = tmp_path / "digitStruct.mat"
    write_mat(path, STREET)
    if harm == "missing": path.unlink()
    if harm == "garbage": path.write_bytes(b"MATLAB 5.0 MAT-file" * 99)
    if harm == "cut": path.write_bytes(path.read_bytes()[:3000])
    if harm == "other":
        with h5py.File(path, "w") as f: f["images"] = np.zeros(3)
    if harm == "label": write_mat(path, [("1.png", [11], [(0, 0, 5, 5)])])
    if harm in ("no label", "uneven"):
        with h5py.File(path, "a") as f:
            group = f["#refs#/b0"]
            del group["label"]
            if harm == "uneven": group["label"] = np.array([[3.0]])
    with pytest.raises(DataError, match="annotation file of SVHN") as e: read_digit_struct(path)
    assert str(path) in str(e.value)


# --- pictures ---

@pytest.mark.parametrize("box,expected", [((0, 0, 4, 4), (0, 0)), ((-4, -4, 0, 0), "corner"), ((60, 40, 64, 44), "far corner")])
def test_beyond_the_border_the_border_goes_on(box, expected):
    picture = np.random.RandomState(0).randint(0, 256, (40, 60, 3)).astype(np.uint8)
    piece = cut_out(picture, box, 8)
    assert piece.shape == (8, 8, 3)
    if expected == "corner": assert (piece[:6, :6] == picture[0, 0]).all()
    elif expected == "far corner": assert (piece[2:, 2:] == picture[-1, -1]).all()
    else: assert (cut_out(picture, box, 4) == picture[:4, :4]).all()         # the same size: the pixels themselves


def test_a_whole_picture_is_resized_as_pillow_does_inside():
    picture = np.random.RandomState(1).randint(0, 256, (90, 70, 3)).astype(np.uint8)
    ours = cut_out(picture, (20.5, 30.25, 50.5, 60.75))
    theirs = np.asarray(pillow.fromarray(picture).resize((64, 64), pillow.Resampling.BILINEAR, box=(20.5, 30.25, 50.5, 60.75)))
    assert np.abs(ours.astype(int) - theirs).max() <= 1


def test_a_box_without_area_is_refused():
    with pytest.raises(ValueError, match="enclose an area"): joined_box(np.array([[3., 3, 0, 10]]))


@pytest.mark.parametrize("harm,message", [("missing", "is missing, and digitStruct.mat"), ("garbage", "cannot be used"), ("flat", "cannot be used")])
def test_a_missing_or_broken_picture_is_named(tmp_path, harm, message):
    write_street(tmp_path, ["test"], repeat=1)
    where = tmp_path / "SVHN/test"
    if harm == "missing": (where / "3.png").unlink()
    if harm == "garbage": (where / "3.png").write_bytes(b"<html>")
    if harm == "flat": write_mat(where / "digitStruct.mat", STREET[:2] + [("3.png", [5], [(9, 9, 0, 9)])])
    with pytest.raises(DataError, match=message) as e: load_part("test", tmp_path)
    assert str(where / "3.png") in str(e.value)


@pytest.mark.parametrize("gone", ["train", "extra", "test"])
def test_a_missing_part_says_what_to_unpack_where(tmp_path, gone):
    write_street(tmp_path)
    shutil.rmtree(tmp_path / "SVHN" / gone)
    with pytest.raises(DataError) as e: house_splits(tmp_path)
    for part in (str(tmp_path / "SVHN" / gone / "digitStruct.mat"), f"{gone}.tar.gz", "SOFTSORTLIB_DATA"): assert part in str(e.value)
    if gone == "extra": assert len(house_splits(tmp_path, extra=False)["train"]) == 18


def test_grey_and_transparent_pictures_become_colour(tmp_path):
    write_street(tmp_path, ["test"], repeat=1)
    for name, mode in (("1.png", "L"), ("2.png", "RGBA"), ("3.png", "P")): pillow.open(tmp_path / "SVHN/test" / name).convert(mode).save(tmp_path / "SVHN/test" / name)
    assert load_part("test", tmp_path)[0].shape == (4, 64, 64, 3)


def test_the_cache_serves_until_the_annotations_change(tmp_path):
    write_street(tmp_path, ["test"], repeat=1)
    images, values = load_part("test", tmp_path)
    for png in (tmp_path / "SVHN/test").glob("*.png"): png.unlink()
    again, numbers = load_part("test", tmp_path)
    assert torch.equal(images, again) and numbers.tolist() == values.tolist() == VALUES
    write_mat(tmp_path / "SVHN/test/digitStruct.mat", STREET[:3])
    with pytest.raises(DataError, match="is missing"): load_part("test", tmp_path)


# --- splits and sets ---

def test_the_division_is_that_of_train_test_split(tmp_path):
    from sklearn.model_selection import train_test_split
    write_street(tmp_path)
    splits = house_splits(tmp_path)
    train, val = train_test_split(np.arange(20), test_size=2, random_state=0)
    for split, rows in (("train", train), ("val", val)):
        bank = splits[split]
        assert set(bank.rows[bank.source == 0].tolist()) == set(rows) and set(bank.rows[bank.source == 1].tolist()) == set(rows)
    assert len(splits["test"]) == 20


def test_the_full_sizes_are_the_public_codes(monkeypatch):
    sizes = {"train": 33402, "extra": 202353, "test": 13068}
    monkeypatch.setattr(svhn, "load_part", lambda part, folder: (torch.zeros(1, 64, 64, 3, dtype=torch.uint8).expand(sizes[part], -1, -1, -1), torch.zeros(sizes[part], dtype=torch.long)))
    assert {k: len(b) for k, b in house_splits().items()} == {"train": 30402 + 200353, "val": 5000, "test": 13068}


def test_random_crops_cover_every_corner_and_no_other():
    images = torch.zeros(1, 64, 64, 3, dtype=torch.uint8)
    images[0, ..., 0], images[0, ..., 1] = torch.arange(64)[:, None], torch.arange(64)
    bank = HouseBank([(images, torch.tensor([42]), torch.tensor([0]))])
    pictures, values = bank.draw(20, 100, seeded("corners"))
    corners = ((pictures[:, :, :2, 0, 0] + 1) * 127.5).round().long().flatten(0, 1)
    assert len(corners.unique(dim=0)) == 121 and corners.min() == 0 and corners.max() == 10 and (values == 42).all()
    centre, _ = bank.draw(1, 3, seeded("corners"), "centre")
    assert (((centre[0, :, :2, 0, 0] + 1) * 127.5).round() == 5).all()
    with pytest.raises(ValueError, match="'random' or 'centre'"): bank.draw(1, 2, seeded(0), "middle")


def test_the_network_of_the_paper():
    net = HouseCNN()
    assert [m.out_channels for m in net.features if isinstance(m, torch.nn.Conv2d)] == [32, 64, 128, 256] and net.head[1].in_features == 2304
    with pytest.raises(ValueError, match="at least 16 x 16"): HouseCNN((54, 13))


# --- runs ---

def test_three_steps_on_files_in_the_real_format(tmp_path):
    write_street(tmp_path)
    config = SvhnConfig(n=3, steps=3, epoch=3, batch=2, width=2, val_sets=4, test_sets=4)
    result = config.run(tmp_path / "run", folder=str(tmp_path), threads=1)
    assert result["steps"] == 3 and result["config"]["data"] == "svhn" and np.isfinite(result["curve"][-1]["loss"])
    assert config.run(tmp_path / "run") == result                          # done is done, without the data


def test_it_learns_the_order_of_a_street(tmp_path):
    make_street(tmp_path, {"train": 30, "extra": 10, "test": 10})
    config = SvhnConfig(operator="softsort", tau=8.0, n=3, steps=80, epoch=80, batch=10, lr=0.003, width=8, shrink=3, val_sets=10, test_sets=50)
    torch.manual_seed(0)
    data, task = config.parts(str(tmp_path))
    data.where = torch.device("cpu")
    optimizer, losses = torch.optim.Adam(task.parameters(), lr=config.lr), []
    for k in range(80):
        pictures, values = data.draw("train", k)
        loss = task.operator(task(pictures)).log_prob(values.argsort(dim=-1, descending=True, stable=True)).mean().neg()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.2


def test_a_batch_is_a_function_of_its_number(tmp_path):
    write_street(tmp_path)
    first, second = (SvhnData(SvhnConfig(n=2, batch=3), str(tmp_path)) for _ in range(2))
    for data in (first, second): data.setup(); data.where = torch.device("cpu")
    second.draw("train", 1)
    assert all(torch.equal(a, b) for a, b in zip(first.draw("train", 7), second.draw("train", 7)))
    assert torch.equal(first.draw("val", 0)[0], SvhnDataOf(tmp_path, seed=5).draw("val", 0)[0])


def SvhnDataOf(folder, **changes):
    data = SvhnData(SvhnConfig(n=2, batch=3, **changes), str(folder))
    data.setup()
    data.where = torch.device("cpu")
    return data


def test_the_other_half_of_the_ablation():
    "Petersen et al. 2021, table 5: both networks, n = 4 and 32, lambda 0 and 0.25, five seeds."
    configs = svhn.art_svhn("paper")
    assert len(configs) == len(set(configs)) == 2 * 2 * 2 * 5 and {(c.operator, c.n, c.art_lambda) for c in configs} == {(o, n, x) for o in ("odd_even", "bitonic") for n in (4, 32) for x in (0.0, 0.25)}
    assert all(c.steps == 1_000_000 and c.batch == 100 and c.tau is None for c in configs)
