"""Each data set in its official layout, small: halves, counts, and plain words about what lacks."""

from __future__ import annotations

import inspect
import io
import os
import re
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from trainables.data import DATASETS, Dataset, cars196_names, load_dataset
from trainables.data.array_files import holds_features

Paint = Callable[..., Path]


def check_halves(dataset: Dataset) -> None:
    train, test = dataset.train, dataset.test
    assert not set(train.labels) & set(test.labels)
    assert train.labels.dtype == test.labels.dtype == np.int64
    assert len(train.items) == len(train.labels)
    assert len(test.items) == len(test.labels)
    assert max(train.labels.max(), test.labels.max()) < len(dataset.class_names)
    for part in (train, test):
        if part.kind == "images":
            # `paint` gives each class a colour: labels and pixels must still belong together.
            for label in set(part.labels):
                colours = part.items[part.labels == label].reshape(-1, part.items.shape[-1])
                assert np.ptp(colours.astype(int), axis=0).max() <= 6


@pytest.mark.parametrize("name", DATASETS)
def test_the_registry_tells_what_the_reader_takes(name: str) -> None:
    info = DATASETS[name]
    parameters = inspect.signature(info.reader).parameters
    taken = {k: p for k, p in parameters.items() if k not in ("cache_dir", "progress")}
    assert set(taken) == set(info.options)
    for key, parameter in taken.items():
        default = None if parameter.default is inspect.Parameter.empty else parameter.default
        assert info.options[key].default == default, key
        assert info.options[key].doc


def cub(root: Path, paint: Paint) -> Path:
    folder = root / "CUB_200_2011"
    images, labels, classes = [], [], []
    number = 0
    for label in (1, 2, 100, 101, 102, 200):
        title = f"{label:03d}.Bird_{label}"
        for i in range(3):
            number += 1
            paint(folder / "images" / title / f"{i}.jpg", label)
            images.append(f"{number} {title}/{i}.jpg")
            labels.append(f"{number} {label}")
    classes = [f"{c} {c:03d}.Bird_{c}" for c in range(1, 201)]
    (folder / "images.txt").write_text("\n".join(images) + "\n")
    (folder / "image_class_labels.txt").write_text("\n".join(labels) + "\n")
    (folder / "classes.txt").write_text("\n".join(classes) + "\n")
    return root


def test_cub200(tmp_path: Path, paint: Paint) -> None:
    root = cub(tmp_path / "data", paint)
    for path in (root, root / "CUB_200_2011"):
        dataset = load_dataset("cub200", cache_dir=tmp_path / "cache", path=str(path), size=24)
        check_halves(dataset)
        assert set(dataset.train.labels) == {0, 1, 99}
        assert set(dataset.test.labels) == {100, 101, 199}
        assert dataset.class_names[99] == "100.Bird_100"
        assert dataset.train.items.shape == (9, 24, 24, 3)
        assert dataset.notes == (
            "cub200: 9 train images, published 5,864: 5,855 missing",
            "cub200: 9 test images, published 5,924: 5,915 missing",
        )
    assert len([p for p in (tmp_path / "cache").iterdir() if p.is_dir()]) == 1


def test_published_counts_are_not_remarked(tmp_path: Path, monkeypatch: Any, paint: Paint) -> None:
    from trainables.data import cub200

    monkeypatch.setattr(cub200, "COUNTS", {"train": 9, "test": 9})
    root = cub(tmp_path / "data", paint)
    assert load_dataset("cub200", cache_dir=tmp_path / "c", path=str(root), size=16).notes == ()


# Official class numbers and names. The folders of models are not sorted like their numbers: 6 comes
# before 2, and 174 cannot be the name of a folder as it is.
CARS = {
    1: "AM General Hummer SUV 2000",
    2: "Acura RL Sedan 2012",
    6: "Acura Integra Type R 2001",
    98: "Eagle Talon Hatchback 1998",
    99: "FIAT 500 Abarth 2012",
    100: "FIAT 500 Convertible 2012",
    174: "Ram C/V Cargo Van Minivan 2012",
    196: "smart fortwo Convertible 2012",
}
CAR_CLASSES = [CARS.get(i, f"Car {i:03d}") for i in range(1, 197)]


def annotated(rows: list[tuple[str, int]], key: str) -> Any:
    kind = [(key, "O"), ("bbox_x1", "O"), ("class", "O"), ("test", "O")]
    return np.array([(name, 1, label, 0) for name, label in rows], dtype=kind)


def cars_joined(root: Path, paint: Paint) -> None:
    rows = []
    for label in CARS:
        for i in range(2):
            rows.append((f"car_ims/{label:03d}_{i}.jpg", label))
            paint(root / rows[-1][0], label)
    classes = np.array(CAR_CLASSES, dtype="O")  # a cell array, as in the official file
    content = {"annotations": annotated(rows, "relative_im_path"), "class_names": classes}
    savemat(root / "cars_annos.mat", content)


def cars_split(root: Path, paint: Paint) -> None:
    (root / "devkit").mkdir(parents=True)
    for side, file in (
        ("cars_train", "devkit/cars_train_annos.mat"),
        ("cars_test", "cars_test_annos_withlabels.mat"),
    ):
        rows = [(f"{i:05d}.jpg", label) for i, label in enumerate(CARS)]
        for name, label in rows:
            paint(root / side / name, label)
        savemat(root / file, {"annotations": annotated(rows, "fname")})
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": np.array(CAR_CLASSES, dtype="O")})


def cars_nested(root: Path, paint: Paint) -> None:
    """As some copies of the second release have it: the folders within one of the same name."""
    cars_split(root, paint)
    for side in ("cars_train", "cars_test"):
        (root / side).rename(root / "moved")
        (root / side).mkdir()
        (root / "moved").rename(root / side / side)


def cars_folders(root: Path, paint: Paint) -> None:
    # Most of the 196 folders are missing: their place among the others tells nothing.
    for label, title in CARS.items():
        for side in ("train", "test"):
            paint(root / "car_data" / side / title.replace("/", "-") / "1.jpg", label)


@pytest.mark.parametrize("make", [cars_joined, cars_split, cars_nested, cars_folders])
def test_cars196_in_three_releases(
    tmp_path: Path, paint: Paint, make: Callable[[Path, Paint], None]
) -> None:
    root = tmp_path / "cars"
    root.mkdir()
    make(root, paint)
    dataset = load_dataset("cars196", cache_dir=tmp_path / "cache", path=str(root), size=16)
    check_halves(dataset)
    classes = {int(i): dataset.class_names[i] for i in dataset.train.labels}
    assert classes == {number - 1: name for number, name in CARS.items() if number <= 98}
    classes = {int(i): dataset.class_names[i] for i in dataset.test.labels}
    assert classes == {number - 1: name for number, name in CARS.items() if number > 98}
    assert len(dataset.train) == len(dataset.test) == 8
    assert "published 8,054" in dataset.notes[0]
    assert "published 8,131" in dataset.notes[1]


def test_cars196_refuses_folders_of_other_things(tmp_path: Path, paint: Paint) -> None:
    cars_folders(tmp_path, paint)
    paint(tmp_path / "car_data" / "test" / "Trabant 601 1964" / "1.jpg", 3)
    with pytest.raises(ValueError, match=r"one of the 196 models.* got 'Trabant 601 1964'"):
        load_dataset("cars196", cache_dir=tmp_path / "c", path=str(tmp_path))


@pytest.mark.parametrize("number", [0, -3, 197, 500])
def test_cars196_refuses_class_numbers_that_do_not_exist(
    tmp_path: Path, paint: Paint, number: int
) -> None:
    rows = [(f"car_ims/{label}.jpg", label) for label in (1, 2, 99, 100, number)]
    for name, label in rows:
        paint(tmp_path / name, abs(label))
    content = {"annotations": annotated(rows, "relative_im_path"), "class_names": CAR_CLASSES}
    savemat(tmp_path / "cars_annos.mat", content)
    with pytest.raises(ValueError, match=f"class from 1 to 196, got {number} for car_ims/"):
        load_dataset("cars196", cache_dir=tmp_path / "c", path=str(tmp_path), size=16)


def test_the_official_car_classes() -> None:
    assert len(set(cars196_names.NAMES)) == 196
    # Makes are in order: only therefore do sorted folders give the papers' halves.
    assert sorted(cars196_names.NAMES)[:98] == sorted(cars196_names.NAMES[:98])


def test_cars196_without_test_labels_says_which_file_lacks(tmp_path: Path, paint: Paint) -> None:
    cars_split(tmp_path, paint)
    (tmp_path / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(ValueError, match=r"lacks cars_test_annos_withlabels\.mat"):
        load_dataset("cars196", cache_dir=tmp_path / "c", path=str(tmp_path))
    (tmp_path / "devkit" / "cars_train_annos.mat").write_bytes(b"no mat file at all")
    (tmp_path / "cars_test_annos_withlabels.mat").write_bytes(b"")
    with pytest.raises(ValueError, match=r"cannot be read as a \.mat file"):
        load_dataset("cars196", cache_dir=tmp_path / "c", path=str(tmp_path))


def test_sop(tmp_path: Path, paint: Paint) -> None:
    root = tmp_path / "Stanford_Online_Products"
    number = 0
    for file, products in (("Ebay_train.txt", (1, 2, 3)), ("Ebay_test.txt", (11319, 11320))):
        lines = ["image_id class_id super_class_id path"]
        for product in products:
            for i in range(2):
                number += 1
                name = f"bicycle_final/{product}_{i}.JPG"
                paint(root / name, product)
                lines.append(f"{number} {product} 1 {name}")
        (root / file).write_text("\n".join(lines) + "\n", encoding="utf-8-sig", newline="\r\n")
    dataset = load_dataset("sop", cache_dir=tmp_path / "cache", path=str(tmp_path), size=16)
    check_halves(dataset)
    assert (len(dataset.train), len(dataset.test)) == (6, 4)
    assert dataset.class_names == ("1", "2", "3", "11319", "11320")
    assert dataset.notes == (
        "sop: 6 train images, published 59,551: 59,545 missing",
        "sop: 4 test images, published 60,502: 60,498 missing",
    )


def test_listed_names_stay_inside_the_folder(tmp_path: Path, paint: Paint) -> None:
    root = cub(tmp_path / "data", paint)
    listed = root / "CUB_200_2011" / "images.txt"
    listed.write_text(listed.read_text().replace("001.Bird_1/0.jpg", "../../../secret.jpg"))
    with pytest.raises(ValueError, match=r"outside the folder: \.\./\.\./"):
        load_dataset("cub200", cache_dir=tmp_path / "c", path=str(root))


@pytest.mark.parametrize("newer", [False, True])
def test_inshop(tmp_path: Path, paint: Paint, newer: bool) -> None:
    pictures = tmp_path / "Img" if newer else tmp_path
    sides = {1: ["train"] * 3, 2: ["train"] * 2, 3: ["query", "gallery", "gallery"],
             4: ["gallery", "query"]}  # fmt: skip
    lines = []
    for item, roles in sides.items():
        for i, role in enumerate(roles):
            name = f"img/WOMEN/Dresses/id_{item:08d}/{i:02d}_1_front.jpg"
            paint(pictures / name, item)
            lines.append(f"{name}   id_{item:08d}   {role}")
    lines.reverse()  # the order of the file must not matter
    folder = tmp_path / "Eval" if newer else tmp_path
    folder.mkdir(exist_ok=True)
    header = f"{len(lines)}\nimage_name item_id evaluation_status\n"
    (folder / "list_eval_partition.txt").write_text(header + "\n".join(lines) + "\n")
    dataset = load_dataset("inshop", cache_dir=tmp_path / "cache", path=str(tmp_path), size=16)
    check_halves(dataset)
    assert len(dataset.train) == 5
    assert dataset.train.is_query is None
    assert dataset.test.is_query is not None
    assert dataset.test.is_query.sum() == 2
    assert dataset.notes == (
        "inshop: 5 train images, published 25,882: 25,877 missing",
        "inshop: 2 query images, published 14,218: 14,216 missing",
        "inshop: 3 gallery images, published 12,612: 12,609 missing",
        # Of an item all pictures are painted alike.
        "inshop: 2 queries are in the gallery, pixel for pixel "
        "(img/WOMEN/Dresses/id_00000004/01_1_front.jpg; "
        "img/WOMEN/Dresses/id_00000003/00_1_front.jpg)",
    )


def test_folder_halved_by_class_name(class_folders: Path, tmp_path: Path) -> None:
    dataset = load_dataset("folder", cache_dir=tmp_path / "c", path=str(class_folders), size=16)
    check_halves(dataset)
    assert dataset.class_names == tuple(f"class{i}" for i in range(8))
    assert set(dataset.train.labels) == {0, 1, 2, 3}
    assert dataset.notes == ()


def test_folder_with_train_and_test(tmp_path: Path, paint: Paint) -> None:
    root = tmp_path / "own"
    for side, labels in (("train", (5, 6)), ("test", (1, 2))):
        for label in labels:
            for i in range(2):
                paint(root / side / f"c{label}" / "deeper" / f"{i}.png", label)
    dataset = load_dataset("folder", cache_dir=tmp_path / "c", path=str(root), size=16)
    check_halves(dataset)
    assert [dataset.class_names[i] for i in sorted(set(dataset.test.labels))] == ["c1", "c2"]
    paint(root / "test" / "c5" / "x.png", 5)
    with pytest.raises(ValueError, match="must share no class, but both have 'c5'"):
        load_dataset("folder", cache_dir=tmp_path / "c", path=str(root), size=16)


def test_hidden_folders_are_not_read_at_any_depth(class_folders: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"path": str(class_folders), "size": 16}
    before = load_dataset("folder", cache_dir=tmp_path / "c", **options)
    for label in range(8):
        picture = class_folders / f"class{label}" / "0.jpg"
        for hidden in (".thumbs", "more/.cache/deep"):
            copy = picture.parent / hidden / "t.jpg"
            copy.parent.mkdir(parents=True)
            copy.write_bytes(picture.read_bytes())
        (picture.parent / ".thumbs" / "list.txt").write_text("")
    after = load_dataset("folder", cache_dir=tmp_path / "c", **options)
    assert (len(after.train), len(after.test)) == (len(before.train), len(before.test))
    assert after.notes == before.notes


def test_folder_says_what_it_does_not_read(class_folders: Path, tmp_path: Path) -> None:
    others = ("class1/new.heic", "class2/deeper/list.txt", ".hidden/x.txt", "about.txt", "lost.JPG")
    for name in others:
        (class_folders / name).parent.mkdir(exist_ok=True)
        (class_folders / name).write_text("no picture")
    dataset = load_dataset("folder", cache_dir=tmp_path / "c", path=str(class_folders), size=16)
    assert dataset.notes == (
        "folder: 2 files in class folders have no picture's ending and are not read "
        "(class1/new.heic; class2/deeper/list.txt)",
        "folder: 1 pictures are in no class's folder and are not read (lost.JPG)",
    )
    for i in range(8):
        side = "train" if i < 4 else "test" if i < 7 else "val"
        (class_folders / side).mkdir(exist_ok=True)
        (class_folders / f"class{i}").rename(class_folders / side / f"class{i}")
    dataset = load_dataset("folder", cache_dir=tmp_path / "c", path=str(class_folders), size=16)
    assert (len(dataset.train), len(dataset.test)) == (12, 9)
    assert dataset.notes[0] == "folder: beside train/ and test/ there is val, which is not read"


def test_a_half_of_one_class_names_it(tmp_path: Path, paint: Paint) -> None:
    for name in ("train/a/0.png", "train/b/0.png", "val/c/0.png", "val/d/0.png"):
        paint(tmp_path / "own" / name, 1)
    with pytest.raises(ValueError, match=r"the training half needs .* got only 'train'"):
        load_dataset("folder", cache_dir=tmp_path / "c", path=str(tmp_path / "own"))


def spoil(root: Path) -> None:
    (root / "class1" / "empty.jpg").write_bytes(b"")
    data = (root / "class1" / "0.jpg").read_bytes()
    (root / "class6" / "cut.jpg").write_bytes(data[: len(data) // 2])
    Image.new("L", (40, 40), 90).save(root / "class2" / "grey.jpg")


def test_bad_pictures_are_refused_with_their_paths(class_folders: Path, tmp_path: Path) -> None:
    spoil(class_folders)
    with pytest.raises(ValueError, match="2 of 27 pictures cannot be read") as caught:
        load_dataset("folder", cache_dir=tmp_path / "c", path=str(class_folders), size=16)
    message = str(caught.value)
    assert "class1/empty.jpg: the file is empty" in message
    assert "class6/cut.jpg: " in message
    assert "on_bad_image: skip" in message
    assert "\n" not in message


def test_links_that_lead_nowhere_are_missing_pictures(class_folders: Path, tmp_path: Path) -> None:
    (class_folders / "class1" / "gone.jpg").symlink_to(tmp_path / "not fetched.jpg")
    (class_folders / "class2" / "linked.jpg").symlink_to(class_folders / "class2" / "0.jpg")
    (tmp_path / "elsewhere").mkdir()
    (class_folders / "class3" / "more").symlink_to(tmp_path / "elsewhere")
    options: dict[str, Any] = {"path": str(class_folders), "size": 16}
    with pytest.raises(ValueError, match=r"1 of 26 .*class1/gone.jpg: there is no such file"):
        load_dataset("folder", cache_dir=tmp_path / "c", **options)
    dataset = load_dataset("folder", cache_dir=tmp_path / "c", on_bad_image="skip", **options)
    assert (len(dataset.train), len(dataset.test)) == (13, 12)
    unread, skipped = dataset.notes
    assert "not read (class3/more)" in unread
    assert "class1/gone.jpg" in skipped


def test_bad_pictures_are_skipped_and_reported(class_folders: Path, tmp_path: Path) -> None:
    spoil(class_folders)
    dataset = load_dataset(
        "folder", cache_dir=tmp_path / "c", path=str(class_folders), size=16, on_bad_image="skip"
    )
    assert (len(dataset.train), len(dataset.test)) == (13, 12)
    assert (np.bincount(dataset.train.labels) == [3, 3, 4, 3]).all()
    skipped, converted = dataset.notes
    assert "left out: 2 of 27 pictures" in skipped
    assert "class1/empty.jpg" in skipped
    assert converted == "folder: 1 grey picture(s) converted to 8-bit RGB (class2/grey.jpg)"


def test_every_bad_picture_is_named_in_a_file(class_folders: Path, tmp_path: Path) -> None:
    bad = [f"class{c}/bad{i}.jpg" for c in range(4) for i in range(3)]
    grey = [f"class5/grey{i}.jpg" for i in range(7)]
    for name in bad:
        (class_folders / name).write_bytes(b"")
    for name in grey:
        Image.new("L", (40, 40), 90).save(class_folders / name)
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(class_folders), "size": 16}
    with pytest.raises(ValueError, match="12 of 43 pictures cannot be read") as caught:
        load_dataset("folder", **options)
    message = str(caught.value)
    named = re.search(r"and 7 more, all in (\S+\.txt)\);", message)
    assert named
    lines = Path(named[1]).read_text(encoding="utf-8").splitlines()
    assert lines == [f"{name}: the file is empty" for name in bad]
    for _ in range(2):
        dataset = load_dataset("folder", **options, on_bad_image="skip")
        unreadable, converted = dataset.lists
        assert str(unreadable) == named[1]
        assert converted.read_text(encoding="utf-8").splitlines() == grey
        for file, note in zip(dataset.lists, dataset.notes, strict=True):
            assert f"more, all in {file})" in note


def test_in_a_cache_that_cannot_be_written_every_bad_picture_is_named_at_once(
    class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(8):
        (class_folders / "class1" / f"bad{i}.jpg").write_bytes(b"")

    def refuse(*_: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(ValueError, match="8 of 32 pictures cannot be read") as caught:
        load_dataset("folder", cache_dir=tmp_path / "c", path=str(class_folders), size=16)
    assert all(f"class1/bad{i}.jpg: the file is empty" in str(caught.value) for i in range(8))


def test_names_that_are_no_utf8_can_be_printed(class_folders: Path, tmp_path: Path) -> None:
    (class_folders / "class0" / os.fsdecode(b"gr\xfcn.jpg")).write_bytes(b"")
    (class_folders / "class1").rename(class_folders / os.fsdecode(b"class\xfc"))
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(class_folders), "size": 16}
    with pytest.raises(ValueError, match=r"class0/gr\\xfcn\.jpg: the file is empty"):
        load_dataset("folder", **options)
    dataset = load_dataset("folder", **options, on_bad_image="skip")
    assert "class\\xfc" in dataset.class_names
    assert all(text.encode() for text in (*dataset.class_names, *dataset.notes))


def test_a_replaced_picture_is_seen(class_folders: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "cache_dir": tmp_path / "c", "path": str(class_folders), "size": 16
    }  # fmt: skip
    before = load_dataset("folder", **options)
    Image.new("RGB", (40, 32), "white").save(class_folders / "class0" / "0.jpg")
    after = load_dataset("folder", **options)
    assert after.fingerprint != before.fingerprint
    assert after.train.items[0].min() == 255


def test_a_copy_elsewhere_has_the_same_fingerprint(class_folders: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(class_folders, tmp_path / "copy")
    prints = {
        load_dataset("folder", cache_dir=tmp_path / "c", path=str(p), size=16).fingerprint
        for p in (class_folders, tmp_path / "copy")
    }
    assert len(prints) == 1


def test_arrays_of_images(tmp_path: Path) -> None:
    labels = np.repeat([70, 3, 2**40, 5], 3)
    images = np.arange(12, dtype=np.uint8)[:, None, None] * np.ones((1, 6, 6), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    dataset = load_dataset("arrays", cache_dir=tmp_path / "c", path=str(tmp_path / "a.npz"))
    assert dataset.class_names == ("3", "5", "70", str(2**40))
    assert dataset.train.items.shape == (6, 6, 6, 1)
    assert dataset.train.items[:, 0, 0, 0].tolist() == [3, 4, 5, 9, 10, 11]
    assert dataset.test.items[:, 0, 0, 0].tolist() == [0, 1, 2, 6, 7, 8]
    np.save(tmp_path / "i.npy", images[..., None])
    np.save(tmp_path / "l.npy", labels)
    same = load_dataset(
        "arrays", cache_dir=tmp_path / "c", path=str(tmp_path / "i.npy"),
        labels=str(tmp_path / "l.npy"),
    )  # fmt: skip
    assert np.array_equal(same.test.items, dataset.test.items)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("payload", ["images", "png"])
def test_opening_arrays_that_are_in_the_cache_holds_none_of_them(
    tmp_path: Path, save: Any, payload: str
) -> None:
    rng = np.random.default_rng(0)
    content: dict[str, Any] = {"images": rng.integers(0, 255, (32, 512, 512), dtype=np.uint8)}
    if payload == "png":
        blobs = []
        for pixels in content.pop("images"):
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, format="PNG")
            blobs.append(buffer.getvalue())
        content["png"] = np.frombuffer(b"".join(blobs), np.uint8)
        content["offsets"] = np.cumsum([0, *map(len, blobs)])
    save(tmp_path / "a.npz", labels=np.repeat(np.arange(8), 4), **content)
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(tmp_path / "a.npz")}
    before = load_dataset("arrays", **options)
    tracemalloc.start()
    again = load_dataset("arrays", **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert again.fingerprint == before.fingerprint
    # Of the cache three chunks are checked, by the map and not by copies.
    assert peak < content[payload].nbytes / 2


def test_arrays_of_features_with_scale_split_and_queries(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(4), 4)
    features = np.arange(32, dtype=np.uint8).reshape(16, 2)
    np.savez(
        tmp_path / "f.npz", features=features, scale=np.array([0.5, 2.0]), labels=labels,
        class_split=np.array([1, 0, 1, 0]), class_names=np.array(list("abcd")),
        photo=np.tile([0, 1, 2, 2], 4),
    )  # fmt: skip
    dataset = load_dataset(
        "arrays", cache_dir=tmp_path / "c", path=str(tmp_path / "f.npz"), query="photo=2"
    )
    assert set(dataset.train.labels) == {1, 3}
    assert dataset.train.items.dtype == np.float32
    assert dataset.train.items[0].tolist() == [8 * 0.5, 9 * 2.0]
    assert dataset.test.is_query is not None
    assert dataset.test.is_query.tolist() == [False, False, True, True] * 2
    assert dataset.train.is_query is not None
    assert dataset.class_names == ("a", "b", "c", "d")


def test_arrays_of_names_in_bytes(tmp_path: Path) -> None:
    names = [text.encode() for text in ("a", "grün", "c", "d")]
    angles = np.tile([b"front", "Rücken".encode()], 4)
    features = np.random.default_rng(0).normal(size=(8, 2))
    labels = np.repeat(np.arange(4), 2)
    path = tmp_path / "a.npz"
    np.savez(path, labels=labels, features=features, class_names=names, angle=angles)
    dataset = load_dataset("arrays", cache_dir=tmp_path, path=str(path), query="angle=Rücken")
    assert dataset.class_names == ("a", "grün", "c", "d")
    assert dataset.test.is_query is not None
    assert dataset.test.is_query.tolist() == [False, True, False, True]


def test_arrays_of_encoded_pictures(tmp_path: Path) -> None:
    blobs, labels = [], []
    for label in range(4):
        for _ in range(2):
            handle = io.BytesIO()
            Image.new("RGB", (20, 20), (label * 60, 0, 0)).save(handle, "WEBP", lossless=True)
            blobs.append(handle.getvalue())
            labels.append(label)
    blobs[3] = blobs[3][:20]
    offsets = np.cumsum([0, *map(len, blobs)])
    np.savez(
        tmp_path / "w.npz", webp=np.frombuffer(b"".join(blobs), np.uint8), offsets=offsets,
        labels=np.array(labels),
    )  # fmt: skip
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(tmp_path / "w.npz")}
    with pytest.raises(ValueError, match=r"1 of 8 pictures cannot be read \(item 3: "):
        load_dataset("arrays", **options)
    dataset = load_dataset("arrays", on_bad_image="skip", **options)
    assert dataset.train.items[:, 0, 0, 0].tolist() == [0, 0, 60]
    assert dataset.test.items[:, 0, 0, 0].tolist() == [120, 120, 180, 180]
    assert dataset.test.items.shape == (4, 20, 20, 3)


def test_the_size_is_that_of_the_first_picture_that_can_be_opened(tmp_path: Path) -> None:
    blobs = []
    for i in range(8):
        buffer = io.BytesIO()
        Image.new("RGB", (24, 20), (30 * i, 0, 0)).save(buffer, format="PNG")
        blobs.append(buffer.getvalue())
    blobs[0] = b""
    header = b"IHDR" + struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    checksum = struct.pack(">I", zlib.crc32(header))
    blobs[1] = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + checksum  # a bomb
    file = tmp_path / "p.npz"
    np.savez(
        file,
        png=np.frombuffer(b"".join(blobs), np.uint8),
        offsets=np.cumsum([0, *map(len, blobs)]),
        labels=np.array([0, 0, 0, 1, 2, 2, 3, 3]),
    )
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(file), "min_images": 1}
    with pytest.raises(ValueError, match=r"2 of 8 pictures cannot be read \(item 0: .* item 1: "):
        load_dataset("arrays", **options)
    dataset = load_dataset("arrays", on_bad_image="skip", **options)
    assert dataset.train.items.shape == (2, 20, 20, 3)


GOOD: dict[str, Any] = {
    "images": np.zeros((8, 4, 4), np.uint8),
    "labels": np.repeat(np.arange(4), 2),
}


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"labels": None}, {}, "has no `labels`"),
        ({"labels": np.arange(3)}, {}, "labels must be 8 integers"),
        ({"labels": np.zeros(8)}, {}, "labels must be 8 integers, got float64"),
        ({"labels": np.array([0, 0, 0, 1, 2, 2, 3, 3])}, {}, "at least 2 items, but class 1 has 1"),
        ({"images": np.zeros((8, 4, 4), np.float32)}, {}, "images must be uint8"),
        ({"images": np.zeros((8, 3, 9, 9), np.uint8)}, {}, r"store images.transpose\(0, 2, 3, 1\)"),
        ({"images": np.zeros((8, 1, 6, 5), np.uint8)}, {}, "channels must come last"),
        ({"images": None}, {}, "must hold one of images, features"),
        ({"features": np.zeros((8, 2))}, {}, "must hold one of"),
        ({"class_split": np.zeros(3)}, {}, "`class_split` must have 4 values"),
        ({"class_split": np.zeros(4)}, {}, "the test half needs at least 2 classes"),
        ({"split": np.tile([0, 1], 4)}, {}, "train and test must share no class"),
        ({"split": np.repeat([0, 1, 2, 2], 2)}, {}, "`split` must be 0 .* or 1 .*, got 2"),
        ({"class_split": np.array(list("ttee"))}, {}, "`class_split` must be 0 .*, got 'e'"),
        ({}, {"query": "nothing=1"}, "query must be KEY=VALUE"),
        ({}, {"query": "labels=99"}, "makes 0 of 8 items"),
        ({"images": None, "features": np.full((8, 2), np.nan)}, {}, "features must be finite"),
        ({"images": None, "features": np.full((8, 2), 1e39)}, {}, "finite in float32"),
        (
            {"images": None, "features": np.ones((8, 2)), "scale": np.ones(3)},
            {},
            "`scale` of a.npz must be 2 numbers",
        ),
        ({"images": np.zeros((0, 4, 4), np.uint8), "labels": np.arange(0)}, {}, "got none"),
        ({"images": np.zeros((8, 0, 4), np.uint8)}, {}, r"holds nothing, got \(8, 0, 4\)"),
        ({"images": None, "features": np.zeros((8, 0))}, {}, r"holds nothing, got \(8, 0\)"),
        (
            {"images": None, "png": np.zeros(8, np.uint8), "offsets": np.arange(9)},
            {},
            "none of the 8 pictures can be read",
        ),
        (
            {"images": None, "png": np.zeros(9, np.uint8), "offsets": np.arange(0)},
            {},
            r"`png` of a.npz needs `offsets` \(N \+ 1,\)",
        ),
        (
            {"images": None, "png": np.zeros(9, np.uint8), "offsets": np.array([0, 7, 3, 9])},
            {},
            "rise from 0 to its length",
        ),
    ],
)
def test_wrong_arrays_are_refused(
    tmp_path: Path, change: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    content = {k: v for k, v in {**GOOD, **change}.items() if v is not None}
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(ValueError, match=message):
        load_dataset("arrays", cache_dir=tmp_path / "c", path=str(tmp_path / "a.npz"), **options)


@pytest.mark.parametrize("share", [0.5, 0.98])
def test_a_truncated_file_is_one_clear_line(tmp_path: Path, share: float) -> None:
    whole, cut = tmp_path / "whole.npz", tmp_path / "cut.npz"
    np.savez_compressed(whole, images=GOOD["images"], labels=GOOD["labels"])
    content = whole.read_bytes()
    cut.write_bytes(content[: int(len(content) * share)])
    assert not holds_features(str(cut))
    with pytest.raises(ValueError, match=r"arrays: .*cut.npz cannot be read: ") as caught:
        load_dataset("arrays", cache_dir=tmp_path / "c", path=str(cut))
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    labels = np.repeat(np.arange(4), 2)
    np.savez_compressed(
        path, images=np.arange(8 * 256, dtype=np.uint8).reshape(8, 16, 16), labels=labels
    )
    content = bytearray(path.read_bytes())
    content[60:90] = b"\xff" * 30
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a.npz cannot be read: ") as caught:
        load_dataset("arrays", cache_dir=tmp_path / "c", path=str(path))
    assert "\n" not in str(caught.value)


def test_an_array_that_lacks_values_is_one_clear_line(tmp_path: Path) -> None:
    for name in ("images", "labels"):
        np.save(tmp_path / f"{name}.npy", GOOD[name])
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.write(tmp_path / "labels.npy", "labels.npy")
        archive.writestr("images.npy", (tmp_path / "images.npy").read_bytes()[:-16])
    with pytest.raises(ValueError, match=r"a.npz cannot be read: `images` lacks 16 bytes of uint8"):
        load_dataset("arrays", cache_dir=tmp_path / "c", path=str(tmp_path / "a.npz"))


def test_files_of_the_other_kind_are_one_clear_line(tmp_path: Path) -> None:
    items, labels = np.arange(16.0).reshape(8, 2), np.repeat(np.arange(4), 2)
    np.save(tmp_path / "x.npy", items)
    np.savez(tmp_path / "all.npz", features=items, labels=labels)
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "labels": str(tmp_path / "all.npz")}
    with pytest.raises(ValueError, match=r"arrays: all.npz must hold one array, as numpy.save "):
        load_dataset("arrays", path=str(tmp_path / "x.npy"), **options)
    (tmp_path / "x.npy").rename(tmp_path / "renamed.npz")
    assert not holds_features(str(tmp_path / "renamed.npz"))
    with pytest.raises(ValueError, match=r"renamed.npz must hold arrays by name, as numpy.savez "):
        load_dataset("arrays", cache_dir=tmp_path / "c", path=str(tmp_path / "renamed.npz"))
    (tmp_path / "all.npz").rename(tmp_path / "all.npy")
    with pytest.raises(ValueError, match=r"all.npy must hold one array"):
        load_dataset("arrays", cache_dir=tmp_path / "c", path=str(tmp_path / "all.npy"))


def test_wrong_list_files_are_one_clear_line(tmp_path: Path, paint: Paint) -> None:
    folder = cub(tmp_path / "cub", paint) / "CUB_200_2011"
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(folder)}
    labels = folder / "image_class_labels.txt"
    good = labels.read_text()
    for value in ("two", "1.5", "0"):
        labels.write_text(good.replace("1 1\n", f"1 {value}\n", 1))
        with pytest.raises(ValueError, match=f"whole class number from 1, got '{value}' for image"):
            load_dataset("cub200", **options)
    labels.write_text(good)
    (folder / "classes.txt").write_bytes("1 Gr\xfcnfink\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"cub200: .*classes.txt must be UTF-8 text, but byte 4"):
        load_dataset("cub200", **options)


def test_cars196_without_class_names_says_so(tmp_path: Path, paint: Paint) -> None:
    savemat(tmp_path / "cars_annos.mat", {"annotations": annotated([("a", 1)], "relative_im_path")})
    with pytest.raises(ValueError, match=r"cars_annos.mat must hold `class_names`"):
        load_dataset("cars196", cache_dir=tmp_path / "c", path=str(tmp_path))


def test_pickles_in_arrays_are_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.array([print], dtype=object), labels=np.zeros(1, int))
    with pytest.raises(ValueError, match="cannot be read"):
        load_dataset("arrays", cache_dir=tmp_path / "c", path=str(tmp_path / "a.npz"))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cub2000", {}, "unknown data set 'cub2000'; did you mean 'cub200'"),
        ("glyphs", {"clases": 3}, "unknown option of data set 'glyphs': 'clases'; did you mean"),
        ("glyphs", {"classes": 9999}, "`4 <= classes <= 427` must hold, got 9999"),
        ("glyphs", {"classes": "many"}, "option 'classes' must be int, got 'many'"),
        ("glyphs", {"samples": True}, "option 'samples' must be int, got True"),
        ("glyphs", {"samples": 1}, "`samples >= 2` must hold"),
        ("cub200", {}, "data set 'cub200' needs the option 'path'"),
        ("cub200", {"path": "/nowhere/at/all"}, "the folder /nowhere/at/all does not exist"),
        ("cub200", {"path": "."}, "must hold images.txt, but it does not"),
        ("cars196", {"path": "."}, "must hold cars_annos.mat"),
        ("sop", {"path": "."}, "must hold Ebay_train.txt"),
        ("inshop", {"path": "."}, "must hold list_eval_partition.txt or Eval/"),
        ("folder", {"path": "."}, "there are no pictures in"),
        ("folder", {"path": ".", "split": "class"}, "did you mean 'classes'"),
        ("folder", {"path": ".", "on_bad_image": "ignore"}, "on_bad_image"),
        ("folder", {"path": ".", "fit": "stretch"}, "fit of data set"),
        ("arrays", {"path": "nothing.npz"}, "the file nothing.npz does not exist"),
    ],
)
def test_wrong_requests_are_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: Any, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(ValueError, match=message) as caught:
        load_dataset(name, cache_dir=tmp_path / "c", **options)
    assert "\n" not in str(caught.value)


def test_a_class_with_one_picture_is_refused(class_folders: Path, tmp_path: Path) -> None:
    for i in (1, 2):
        (class_folders / "class3" / f"{i}.jpg").unlink()
    with pytest.raises(ValueError, match=r"at least 2 pictures, but .*class3 has 1"):
        load_dataset("folder", cache_dir=tmp_path / "c", path=str(class_folders))
