"""Image listings: files with their classes and halves, before anything is decoded.

A reader of a data set returns an `ImageListing`; `trainables.data.registry.load_dataset` decodes
it. The functions below are for readers: they find and read the files of a release, with messages
that name the data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ImageListing:
    """Image files with their classes.

    Args:
        root: Folder that the names are relative to.
        names: Relative path of each image.
        labels: Class id of each, 0..C-1.
        in_test: Whether each belongs to the test half.
        class_names: Name of each class id.
        is_query: For query/gallery protocols, whether each is a query; None if every test image is
            a query against all others.
        notes: Messages for users about files that are not listed.
    """

    root: Path
    names: Sequence[str]
    labels: NDArray[np.int64]
    in_test: NDArray[np.bool_]
    class_names: Sequence[str]
    is_query: NDArray[np.bool_] | None = None
    notes: Sequence[str] = ()

    def select_masks(
        self, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]:
        """Return `in_test` and `is_query` of some images."""
        return self.in_test[rows], None if self.is_query is None else self.is_query[rows]

    def check_halves(self, rows: NDArray[np.int64] | slice = slice(None)) -> None:
        """Check that the halves share no class and that each has at least two.

        Args:
            rows: Images to check, so that the check can be repeated without excluded images.
        """
        labels, in_test = self.labels[rows], self.in_test[rows]
        shared = np.intersect1d(labels[~in_test], labels[in_test])
        if len(shared):
            names = ", ".join(repr(self.class_names[i]) for i in shared[:3])
            raise ValueError(f"train and test must share no class, but both contain {names}")
        for half_labels, half in ((labels[~in_test], "training"), (labels[in_test], "test")):
            classes = np.unique(half_labels)
            if len(classes) < 2:
                got = f"only {self.class_names[classes[0]]!r}" if len(classes) else "none"
                raise ValueError(f"the {half} half needs at least 2 classes with images, got {got}")


def find_data_folder(dataset: str, path: str, *inside: str) -> Path:
    """Return the folder that the user named, or the usual sub-folder of an archive below it.

    Args:
        dataset: Name of the data set, for messages.
        path: The option `path`.
        inside: Names of sub-folders that may contain the files instead.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ValueError(f"{dataset}: the folder {root} does not exist")
    for name in inside:
        if (root / name).is_dir():
            return root / name
    return root


def find_required_file(dataset: str, folder: Path, *names: str) -> Path:
    """Return the first of these files that exists below the folder."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ValueError(f"{dataset}: {folder} must contain {' or '.join(names)}, but does not")


def read_list_lines(dataset: str, path: Path) -> list[str]:
    """Return the lines of a list file, which must be UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()  # some editors write a mark first
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{dataset}: {path} must be UTF-8 text, but byte {error.start:,} is not"
        ) from error
