"""Cars196 (Krause et al. 2013): the first 98 models train, the other 98 test.

Three releases are supported: `cars_annos.mat` with `car_ims/`; `cars_train_annos.mat` and
`cars_test_annos_withlabels.mat` with `cars_train/` and `cars_test/`; and the newer one with a
folder per model below `train/` and `test/`. The train/test split of the release is not the
metric-learning one: both sides are joined and halved by class.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainables.data.listing import ImageListing, find_data_folder
from trainables.data.readers.cars196_names import CLASS_NAMES, find_class_id
from trainables.data.readers.folder import list_class_folders, list_image_files

PUBLISHED_COUNTS = {"train": 8054, "test": 8131}
N_TRAIN_CLASSES = 98
ARCHIVE_FOLDERS = ("stanford_cars", "car_data", "cars196", "Cars196", "CARS196")

LabelledImages = tuple[list[str], list[int], list[str]]
"""Names of images, their class ids from 0, and the names of the classes."""


def read_cars196(*, path: str) -> ImageListing:
    """List the images of the release that is in the folder."""
    root = find_data_folder("cars196", path, *ARCHIVE_FOLDERS)
    if (root / "car_data").is_dir():
        root = root / "car_data"
    names, labels, titles = (
        _read_mat_release(root) or _read_folder_release(root) or _raise_no_release(root)
    )
    ids = np.array(labels, dtype=np.int64)
    return ImageListing(
        root=root,
        names=names,
        labels=ids,
        in_test=ids >= N_TRAIN_CLASSES,
        class_names=titles,
    )


def _read_mat_release(root: Path) -> LabelledImages | None:
    """List a release with .mat annotations; None if the folder has none."""
    joined = _find_annotation_file(root, "cars_annos.mat")
    if joined:
        content = _load_mat(joined)
        rows = [
            (_unwrap_text(a["relative_im_path"]), int(a["class"]))
            for a in _read_annotations(content, joined, "relative_im_path")
        ]
        titles = _read_class_names(content, joined)
    else:
        train, test = (
            _find_annotation_file(root, "cars_train_annos.mat"),
            _find_annotation_file(root, "cars_test_annos_withlabels.mat"),
        )
        if train is None and test is None:
            return None
        if train is None or test is None:
            lacking = "cars_train_annos.mat" if train is None else "cars_test_annos_withlabels.mat"
            raise ValueError(
                f"cars196: {root} lacks {lacking}; both files are needed, because the halves are "
                "made of classes and not of the split of the release"
            )
        rows = []
        for folder, file in (("cars_train", train), ("cars_test", test)):
            content = _load_mat(file)
            rows += [
                (f"{_image_folder_name(root, folder)}/{_unwrap_text(a['fname'])}", int(a["class"]))
                for a in _read_annotations(content, file, "fname")
            ]
        meta = _find_annotation_file(root, "cars_meta.mat")
        titles = _read_class_names(_load_mat(meta), meta) if meta else []
    for name, label in rows:
        if not 1 <= label <= len(CLASS_NAMES):
            raise ValueError(
                f"cars196: every image must have a class from 1 to {len(CLASS_NAMES)}, got {label} "
                f"for {name}; use data set 'folder' for images of other classes"
            )
    titles += [str(i + 1) for i in range(len(titles), len(CLASS_NAMES))]
    rows.sort(key=lambda row: (row[1], row[0]))
    return [name for name, _ in rows], [label - 1 for _, label in rows], titles


def _read_folder_release(root: Path) -> LabelledImages | None:
    """List the release with a folder per model, numbered as in the official annotations."""
    sides = [root / side for side in ("train", "test") if (root / side).is_dir()] or [root]
    folders = [folder for side in sides for folder in list_class_folders(side)]
    images = [(folder, p) for folder in folders for p in list_image_files(folder)]
    if not images:
        return None
    rows = [(p.relative_to(root).as_posix(), _class_of_folder(folder)) for folder, p in images]
    rows.sort(key=lambda row: (row[1], row[0]))
    return [name for name, _ in rows], [label for _, label in rows], list(CLASS_NAMES)


def _class_of_folder(folder: Path) -> int:
    class_id = find_class_id(folder.name)
    if class_id is None:
        raise ValueError(
            f"cars196: every folder must have the name of one of the 196 models, as "
            f"{CLASS_NAMES[0]!r}, got {folder.name!r}; use data set 'folder' for images of other "
            "classes"
        )
    return class_id


def _raise_no_release(root: Path) -> LabelledImages:
    raise ValueError(
        f"cars196: {root} must contain cars_annos.mat, or cars_train_annos.mat with "
        "cars_test_annos_withlabels.mat, or train/ and test/ with a folder per model"
    )


def _find_annotation_file(root: Path, name: str) -> Path | None:
    places = (root / name, root / "devkit" / name)
    return next((place for place in places if place.is_file()), None)


def _image_folder_name(root: Path, folder: str) -> str:
    """Return the image folder, which some copies of the release nest in one of the same name."""
    return f"{folder}/{folder}" if (root / folder / folder).is_dir() else folder


def _load_mat(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        return dict(loadmat(path, squeeze_me=True))
    except Exception as error:  # scipy raises many types of errors on a broken file
        raise ValueError(f"cars196: {path} cannot be read as a .mat file: {error}") from error


def _read_annotations(content: dict[str, Any], path: Path, name: str) -> Iterator[Any]:
    rows = np.ravel(content.get("annotations", np.empty(0)))
    if not len(rows) or not {name, "class"} <= set(rows.dtype.names or ()):
        raise ValueError(f"cars196: {path} must contain `annotations` with `{name}` and `class`")
    return iter(rows)


def _read_class_names(content: dict[str, Any], path: Path) -> list[str]:
    if "class_names" not in content:
        raise ValueError(f"cars196: {path} must contain `class_names`, but does not")
    return [_unwrap_text(name) for name in np.ravel(content["class_names"])]


def _unwrap_text(value: Any) -> str:
    return str(np.asarray(value).item())
