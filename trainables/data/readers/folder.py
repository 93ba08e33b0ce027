"""Data set of your own images: one folder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainables.data.listing import ImageListing, find_data_folder
from trainables.data.notes import MAX_NAMES_PER_MESSAGE, escape_surrogates
from trainables.utils.suggestions import unknown_name_error

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".mpo", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".jp2",
)  # fmt: skip
SPLIT_MODES = ("auto", "classes", "folders")


def read_folder(*, path: str, split: str, min_images: int) -> ImageListing:
    """List `path/CLASS/*`, classes halved by name, or `path/train/CLASS/*` and `path/test/CLASS/*`.

    Args:
        path: Folder of the images.
        split: "classes": the first half of the sorted class names trains. "folders": train/ and
            test/ are the halves and must share no class. "auto": "folders" if both exist.
        min_images: Smallest number of images of a class; a single image has nothing to find.
    """
    if split not in SPLIT_MODES:
        raise unknown_name_error("split of data set 'folder':", split, SPLIT_MODES)
    root = find_data_folder("folder", path)
    classes, notes = _find_split_classes(root, split)
    _check_disjoint_classes(classes)
    names: list[str] = []
    labels: list[int] = []
    in_test: list[bool] = []
    others: list[str] = []
    for label, (folder, test) in enumerate(classes):
        images, rest = (
            [p.relative_to(root).as_posix() for p in f] for f in list_files_by_kind(folder)
        )
        others += rest
        if len(images) < min_images:
            raise ValueError(
                f"folder: every class needs at least {min_images} images, but {folder} has "
                f"{len(images)}; add images, remove the class or set min_images"
            )
        names += images
        labels += [label] * len(images)
        in_test += [test] * len(images)
    return ImageListing(
        root=root,
        names=names,
        labels=np.array(labels, dtype=np.int64),
        in_test=np.array(in_test, dtype=np.bool_),
        class_names=[folder.name for folder, _ in classes],
        notes=[
            *notes,
            *_describe_unread_files(others, "files in class folders do not end like an image"),
            *_describe_unread_files(
                _find_stray_images(root, classes), "images are outside the class folders"
            ),
        ],
    )


def _find_split_classes(root: Path, split: str) -> tuple[list[tuple[Path, bool]], list[str]]:
    """Return class folders with whether each is for the test, and notes on other folders."""
    both = (root / "train").is_dir() and (root / "test").is_dir()
    if split == "folders" and not both:
        raise ValueError(f"folder: split: folders needs {root}/train and {root}/test")
    if split == "folders" or (split == "auto" and both):
        sides = [(root / "train", False), (root / "test", True)]
        beside = [
            escape_surrogates(c.name)
            for c in list_class_folders(root)
            if c.name not in ("train", "test")
        ]
        note = f"folder: not read, because it is beside train/ and test/: {', '.join(beside)}"
        classes = [(c, test) for side, test in sides for c in list_class_folders(side)]
        return classes, [note] if beside else []
    folders = list_class_folders(root)
    return [(c, 2 * i >= len(folders)) for i, c in enumerate(folders)], []


def list_class_folders(folder: Path) -> list[Path]:
    """Return the class folders, sorted by name, without hidden ones."""
    return sorted(
        (p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")),
        key=lambda p: p.name,
    )


def list_image_files(folder: Path) -> list[Path]:
    """Return the image files at any depth, sorted, without hidden ones."""
    return list_files_by_kind(folder)[0]


def list_files_by_kind(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files with an image suffix at any depth, and all other files, both sorted.

    Hidden files and the contents of hidden folders (thumbnails, caches) are ignored. A link counts
    as a file, even if its target is missing (an image that was not downloaded) or is a folder.
    """
    entries = (p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())
    files = sorted(p for p in entries if not _is_hidden(p, folder))
    images = [p for p in files if p.suffix.lower() in IMAGE_SUFFIXES]
    return images, [p for p in files if p.suffix.lower() not in IMAGE_SUFFIXES]


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _find_stray_images(root: Path, classes: list[tuple[Path, bool]]) -> list[str]:
    """Return the images beside the class folders."""
    beside = sorted(p for parent in {c.parent for c, _ in classes} for p in parent.iterdir())
    images = (p for p in beside if p.suffix.lower() in IMAGE_SUFFIXES and not p.is_dir())
    return [p.relative_to(root).as_posix() for p in images if not p.name.startswith(".")]


def _describe_unread_files(names: list[str], reason: str) -> list[str]:
    if not names:
        return []
    more = (
        f"; and {len(names) - MAX_NAMES_PER_MESSAGE:,} more"
        if len(names) > MAX_NAMES_PER_MESSAGE
        else ""
    )
    shown = "; ".join(map(escape_surrogates, names[:MAX_NAMES_PER_MESSAGE]))
    return [f"folder: {len(names):,} {reason} and are not read ({shown}{more})"]


def _check_disjoint_classes(classes: list[tuple[Path, bool]]) -> None:
    train = {folder.name for folder, test in classes if not test}
    shared = sorted(train & {folder.name for folder, test in classes if test})
    if shared:
        more = f" and {len(shared) - 1:,} more" if len(shared) > 1 else ""
        raise ValueError(
            f"folder: train/ and test/ must share no class, but both have {shared[0]!r}{more}; "
            "retrieval is tested on unseen classes"
        )
