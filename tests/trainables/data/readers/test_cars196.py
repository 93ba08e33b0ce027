"""Reader of Cars196, on small trees in the layouts of its three releases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from tests.support.painted_images import check_painted_halves, paint_image
from tests.support.reader_contract import ReaderContract
from trainables.data.readers.cars196 import read_cars196
from trainables.data.registry import load_dataset

pytestmark = pytest.mark.split

# Official class numbers and names. The folders of models are not sorted like their numbers: 6 comes
# before 2, and the name of 174 cannot be the name of a folder.
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


def make_annotations(rows: list[tuple[str, int]], key: str) -> Any:
    """Return a struct array as in the official .mat files."""
    kind = [(key, "O"), ("bbox_x1", "O"), ("class", "O"), ("test", "O")]
    return np.array([(name, 1, label, 0) for name, label in rows], dtype=kind)


def write_joined_release(root: Path) -> None:
    rows = []
    for label in CARS:
        for i in range(2):
            rows.append((f"car_ims/{label:03d}_{i}.jpg", label))
            paint_image(root / rows[-1][0], label)
    classes = np.array(CAR_CLASSES, dtype="O")  # a cell array, as in the official file
    content = {"annotations": make_annotations(rows, "relative_im_path"), "class_names": classes}
    savemat(root / "cars_annos.mat", content)


def write_split_release(root: Path) -> None:
    (root / "devkit").mkdir(parents=True)
    for side, file in (
        ("cars_train", "devkit/cars_train_annos.mat"),
        ("cars_test", "cars_test_annos_withlabels.mat"),
    ):
        rows = [(f"{i:05d}.jpg", label) for i, label in enumerate(CARS)]
        for name, label in rows:
            paint_image(root / side / name, label)
        savemat(root / file, {"annotations": make_annotations(rows, "fname")})
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": np.array(CAR_CLASSES, dtype="O")})


def write_nested_release(root: Path) -> None:
    """As in some copies of the second release: each folder within one of the same name."""
    write_split_release(root)
    for side in ("cars_train", "cars_test"):
        (root / side).rename(root / "moved")
        (root / side).mkdir()
        (root / "moved").rename(root / side / side)


def write_folder_release(root: Path) -> None:
    # Most of the 196 folders are missing, so the position among the others tells nothing.
    for label, title in CARS.items():
        for side in ("train", "test"):
            paint_image(root / "car_data" / side / title.replace("/", "-") / "1.jpg", label)


class TestCars196(ReaderContract):
    dataset = "cars196"

    def write_release(self, root: Path) -> Path:
        root.mkdir()
        write_joined_release(root)
        return root


class TestSplitCars196(ReaderContract):
    dataset = "cars196"

    def write_release(self, root: Path) -> Path:
        write_split_release(root)
        return root


class TestFolderCars196(ReaderContract):
    dataset = "cars196"

    def write_release(self, root: Path) -> Path:
        write_folder_release(root)
        return root


@pytest.mark.parametrize(
    "write", [write_joined_release, write_split_release, write_nested_release, write_folder_release]
)
def test_three_releases_give_the_same_classes(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    root = tmp_path / "cars"
    root.mkdir()
    write(root)
    dataset = load_dataset("cars196", cache_dir=tmp_path / "cache", path=str(root), size=16)
    check_painted_halves(dataset)
    classes = {int(i): dataset.class_names[i] for i in dataset.train.labels}
    assert classes == {number - 1: name for number, name in CARS.items() if number <= 98}
    classes = {int(i): dataset.class_names[i] for i in dataset.test.labels}
    assert classes == {number - 1: name for number, name in CARS.items() if number > 98}
    assert len(dataset.train) == len(dataset.test) == 8
    assert "published 8,054" in dataset.notes[0]
    assert "published 8,131" in dataset.notes[1]


def test_folders_of_other_things_are_refused(tmp_path: Path) -> None:
    write_folder_release(tmp_path)
    paint_image(tmp_path / "car_data" / "test" / "Trabant 601 1964" / "1.jpg", 3)
    with pytest.raises(ValueError, match=r"one of the 196 models.* got 'Trabant 601 1964'.*folder"):
        read_cars196(path=str(tmp_path))


@pytest.mark.parametrize("number", [0, -3, 197, 500])
def test_class_numbers_that_do_not_exist_are_refused(tmp_path: Path, number: int) -> None:
    rows = [(f"car_ims/{label}.jpg", label) for label in (1, 2, 99, 100, number)]
    annotations = make_annotations(rows, "relative_im_path")
    savemat(tmp_path / "cars_annos.mat", {"annotations": annotations, "class_names": CAR_CLASSES})
    with pytest.raises(ValueError, match=f"class from 1 to 196, got {number} for car_ims/"):
        read_cars196(path=str(tmp_path))


def test_a_missing_annotation_file_is_named(tmp_path: Path) -> None:
    write_split_release(tmp_path)
    (tmp_path / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(ValueError, match=r"lacks cars_test_annos_withlabels\.mat"):
        read_cars196(path=str(tmp_path))


def test_a_file_that_is_not_mat_is_named(tmp_path: Path) -> None:
    write_split_release(tmp_path)
    (tmp_path / "devkit" / "cars_train_annos.mat").write_bytes(b"no mat file at all")
    with pytest.raises(ValueError, match=r"cars_train_annos\.mat cannot be read as a \.mat file"):
        read_cars196(path=str(tmp_path))


def test_annotations_without_class_names_are_refused(tmp_path: Path) -> None:
    annotations = make_annotations([("a", 1)], "relative_im_path")
    savemat(tmp_path / "cars_annos.mat", {"annotations": annotations})
    with pytest.raises(ValueError, match=r"cars_annos\.mat must contain `class_names`"):
        read_cars196(path=str(tmp_path))


def test_annotations_without_names_are_refused(tmp_path: Path) -> None:
    annotations = make_annotations([("a", 1)], "fname")
    savemat(tmp_path / "cars_annos.mat", {"annotations": annotations, "class_names": CAR_CLASSES})
    with pytest.raises(ValueError, match=r"cars_annos\.mat must contain .*`relative_im_path`"):
        read_cars196(path=str(tmp_path))
