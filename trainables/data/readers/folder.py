"""Your own pictures: one folder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainables.data.cache import Progress
from trainables.data.dataset import Dataset
from trainables.data.listing import Listing, existing_folder, read_listing
from trainables.data.notes import SHOWN, printable
from trainables.names import unknown_name

ENDINGS = (
    ".jpg", ".jpeg", ".jpe", ".mpo", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".jp2",
)  # fmt: skip
SPLITS = ("auto", "classes", "folders")


def read_folder(
    *,
    cache_dir: Path,
    progress: Progress | None = None,
    path: str,
    split: str = "auto",
    min_images: int = 2,
    size: int = 256,
    fit: str = "crop",
    on_bad_image: str = "refuse",
    on_duplicate: str = "refuse",
) -> Dataset:
    """Read `path/CLASS/*`, classes halved by name, or `path/train/CLASS/*` and `path/test/CLASS/*`.

    Args:
        split: "classes": the first half of the sorted class names trains. "folders": train/ and
            test/ say it; they must share no class. "auto": folders when both exist.
        min_images: A class with fewer is an error; a class with one has nothing to find.
    """
    if split not in SPLITS:
        raise unknown_name("split of data set 'folder':", split, SPLITS)
    root = existing_folder("folder", path)
    classes, notes = _classes(root, split)
    _check_disjoint(classes)
    names: list[str] = []
    labels: list[int] = []
    in_test: list[bool] = []
    others: list[str] = []
    for label, (folder, test) in enumerate(classes):
        pictures, rest = ([p.relative_to(root).as_posix() for p in f] for f in files_below(folder))
        others += rest
        if len(pictures) < min_images:
            raise ValueError(
                f"folder: every class needs at least {min_images} pictures, but {folder} has "
                f"{len(pictures)}; add some, remove the class or set min_images."
            )
        names += pictures
        labels += [label] * len(pictures)
        in_test += [test] * len(pictures)
    listing = Listing(
        root=root,
        names=names,
        labels=np.array(labels, dtype=np.int64),
        in_test=np.array(in_test, dtype=np.bool_),
        class_names=[folder.name for folder, _ in classes],
        notes=[
            *notes,
            *_unread(others, "files in class folders have no picture's ending"),
            *_unread(_strays(root, classes), "pictures are in no class's folder"),
        ],
    )
    return read_listing(
        "folder",
        listing,
        cache_dir=cache_dir,
        progress=progress,
        size=size,
        fit=fit,
        on_bad_image=on_bad_image,
        on_duplicate=on_duplicate,
    )


def _classes(root: Path, split: str) -> tuple[list[tuple[Path, bool]], list[str]]:
    """The class folders, whether each is for the test, and a word on folders that are neither."""
    both = (root / "train").is_dir() and (root / "test").is_dir()
    if split == "folders" and not both:
        raise ValueError(f"folder: split: folders needs {root}/train and {root}/test.")
    if split == "folders" or (split == "auto" and both):
        sides = [(root / "train", False), (root / "test", True)]
        beside = [printable(c.name) for c in classes_below(root) if c.name not in ("train", "test")]
        note = f"folder: beside train/ and test/ there is {', '.join(beside)}, which is not read"
        found = [(c, test) for side, test in sides for c in classes_below(side)]
        return found, [note] if beside else []
    folders = classes_below(root)
    return [(c, 2 * i >= len(folders)) for i, c in enumerate(folders)], []


def classes_below(folder: Path) -> list[Path]:
    """Class folders, sorted by name; hidden ones left out."""
    return sorted(
        (p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")),
        key=lambda p: p.name,
    )


def pictures_below(folder: Path) -> list[Path]:
    """Files with a picture's ending at any depth, sorted; hidden ones left out."""
    return files_below(folder)[0]


def files_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """Files with a picture's ending at any depth, and all others, sorted.

    Hidden files and whatever is in hidden folders (thumbnails, caches) are left out. A link is a
    file, also one that leads nowhere (a picture that was not fetched) or to a folder.
    """
    found = (p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())
    files = sorted(p for p in found if not _is_hidden(p, folder))
    pictures = [p for p in files if p.suffix.lower() in ENDINGS]
    return pictures, [p for p in files if p.suffix.lower() not in ENDINGS]


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _strays(root: Path, classes: list[tuple[Path, bool]]) -> list[str]:
    """Pictures beside the class folders."""
    beside = sorted(p for parent in {c.parent for c, _ in classes} for p in parent.iterdir())
    pictures = (p for p in beside if p.suffix.lower() in ENDINGS and not p.is_dir())
    return [p.relative_to(root).as_posix() for p in pictures if not p.name.startswith(".")]


def _unread(names: list[str], why: str) -> list[str]:
    if not names:
        return []
    more = f"; and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    shown = "; ".join(map(printable, names[:SHOWN]))
    return [f"folder: {len(names):,} {why} and are not read ({shown}{more})"]


def _check_disjoint(classes: list[tuple[Path, bool]]) -> None:
    train = {folder.name for folder, test in classes if not test}
    shared = sorted(train & {folder.name for folder, test in classes if test})
    if shared:
        more = f" and {len(shared) - 1:,} more" if len(shared) > 1 else ""
        raise ValueError(
            f"folder: train/ and test/ must share no class, but both have {shared[0]!r}{more}; "
            "retrieval is tested on unseen classes."
        )
