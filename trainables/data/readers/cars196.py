"""Cars196 (Krause et al. 2013): the first 98 models train, the other 98 test.

Three releases are read: `cars_annos.mat` with `car_ims/`; `cars_train_annos.mat` and
`cars_test_annos_withlabels.mat` with `cars_train/` and `cars_test/`; and the newer one with a
folder per model below `train/` and `test/`. The photographers' own train/test split is not the
metric-learning one: both sides are joined and halved by class.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainables.data.cache import Progress
from trainables.data.cars196_names import NAMES, class_id
from trainables.data.dataset import Dataset
from trainables.data.folder import classes_below, pictures_below
from trainables.data.listing import Listing, existing_folder, read_listing

COUNTS = {"train": 8054, "test": 8131}
TRAIN_CLASSES = 98
SUB_FOLDERS = ("stanford_cars", "car_data", "cars196", "Cars196", "CARS196")


def read_cars196(
    *,
    cache_dir: Path,
    progress: Progress | None = None,
    path: str,
    size: int = 256,
    fit: str = "crop",
    on_bad_image: str = "refuse",
    on_duplicate: str = "refuse",
) -> Dataset:
    """Read whichever release is in the folder."""
    root = existing_folder("cars196", path, *SUB_FOLDERS)
    if (root / "car_data").is_dir():
        root = root / "car_data"
    names, labels, titles = _from_mat(root) or _from_folders(root) or _nothing(root)
    ids = np.array(labels, dtype=np.int64)
    listing = Listing(
        root=root,
        names=names,
        labels=ids,
        in_test=ids >= TRAIN_CLASSES,
        class_names=titles,
    )
    return read_listing(
        "cars196",
        listing,
        cache_dir=cache_dir,
        progress=progress,
        size=size,
        fit=fit,
        on_bad_image=on_bad_image,
        on_duplicate=on_duplicate,
        counts=COUNTS,
    )


Found = tuple[list[str], list[int], list[str]]


def _from_mat(root: Path) -> Found | None:
    """Pictures, zero-based classes and class names of a release with .mat annotations."""
    joined = _find(root, "cars_annos.mat")
    if joined:
        content = _mat(joined)
        rows = [
            (_text(a["relative_im_path"]), int(a["class"]))
            for a in _rows(content, joined, "relative_im_path")
        ]
        titles = _titles(content, joined)
    else:
        train, test = (
            _find(root, "cars_train_annos.mat"),
            _find(root, "cars_test_annos_withlabels.mat"),
        )
        if train is None and test is None:
            return None
        if train is None or test is None:
            lacking = "cars_train_annos.mat" if train is None else "cars_test_annos_withlabels.mat"
            raise ValueError(
                f"cars196: {root} lacks {lacking}; both files are needed, since classes and not "
                "the photographers' split make the halves."
            )
        rows = []
        for folder, file in (("cars_train", train), ("cars_test", test)):
            content = _mat(file)
            rows += [
                (f"{_nested(root, folder)}/{_text(a['fname'])}", int(a["class"]))
                for a in _rows(content, file, "fname")
            ]
        meta = _find(root, "cars_meta.mat")
        titles = _titles(_mat(meta), meta) if meta else []
    for name, label in rows:
        if not 1 <= label <= len(NAMES):
            raise ValueError(
                f"cars196: every picture has a class from 1 to {len(NAMES)}, got {label} for "
                f"{name}; pictures of other classes are data set 'folder'."
            )
    titles += [str(i + 1) for i in range(len(titles), len(NAMES))]
    rows.sort(key=lambda row: (row[1], row[0]))
    return [name for name, _ in rows], [label - 1 for _, label in rows], titles


def _from_folders(root: Path) -> Found | None:
    """The release with a folder per model, numbered as in the official annotations."""
    sides = [root / side for side in ("train", "test") if (root / side).is_dir()] or [root]
    folders = [folder for side in sides for folder in classes_below(side)]
    pictures = [(folder, p) for folder in folders for p in pictures_below(folder)]
    if not pictures:
        return None
    rows = [(p.relative_to(root).as_posix(), _class_of(folder)) for folder, p in pictures]
    rows.sort(key=lambda row: (row[1], row[0]))
    return [name for name, _ in rows], [label for _, label in rows], list(NAMES)


def _class_of(folder: Path) -> int:
    found = class_id(folder.name)
    if found is None:
        raise ValueError(
            f"cars196: every folder must be named for one of the 196 models, as "
            f"{NAMES[0]!r}, got {folder.name!r}; pictures of other classes are data set 'folder'."
        )
    return found


def _nothing(root: Path) -> Found:
    raise ValueError(
        f"cars196: {root} must hold cars_annos.mat, or cars_train_annos.mat with "
        "cars_test_annos_withlabels.mat, or train/ and test/ with a folder per model."
    )


def _find(root: Path, name: str) -> Path | None:
    places = (root / name, root / "devkit" / name)
    return next((place for place in places if place.is_file()), None)


def _nested(root: Path, folder: str) -> str:
    """The folder of pictures, which some copies of the release hold in one of the same name."""
    return f"{folder}/{folder}" if (root / folder / folder).is_dir() else folder


def _mat(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        return dict(loadmat(path, squeeze_me=True))
    except Exception as error:  # scipy raises many kinds on a broken file
        raise ValueError(f"cars196: {path} cannot be read as a .mat file: {error}") from error


def _rows(content: dict[str, Any], path: Path, name: str) -> Iterator[Any]:
    rows = np.ravel(content.get("annotations", np.empty(0)))
    if not len(rows) or not {name, "class"} <= set(rows.dtype.names or ()):
        raise ValueError(f"cars196: {path} must hold `annotations` with `{name}` and `class` each.")
    return iter(rows)


def _titles(content: dict[str, Any], path: Path) -> list[str]:
    if "class_names" not in content:
        raise ValueError(f"cars196: {path} must hold `class_names`, but it does not.")
    return [_text(name) for name in np.ravel(content["class_names"])]


def _text(value: Any) -> str:
    return str(np.asarray(value).item())
