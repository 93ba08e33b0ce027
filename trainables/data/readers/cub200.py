"""CUB-200-2011: 200 bird species (Wah et al. 2011); the first 100 classes train, the rest test."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainables.data.cache import Progress
from trainables.data.dataset import Dataset
from trainables.data.listing import Listing, existing_folder, lines_of, needed_file, read_listing

COUNTS = {"train": 5864, "test": 5924}
TRAIN_CLASSES = 100


def read_cub200(
    *,
    cache_dir: Path,
    progress: Progress | None = None,
    path: str,
    size: int = 256,
    fit: str = "crop",
    on_bad_image: str = "refuse",
    on_duplicate: str = "refuse",
) -> Dataset:
    """Read the official folder: images.txt, image_class_labels.txt, classes.txt and images/."""
    root = existing_folder("cub200", path, "CUB_200_2011")
    files = _pairs(needed_file("cub200", root, "images.txt"))
    classes = _pairs(needed_file("cub200", root, "image_class_labels.txt"))
    titles = _pairs(needed_file("cub200", root, "classes.txt"))
    unknown = sorted(set(files) - set(classes))
    if unknown:
        raise ValueError(
            f"cub200: image_class_labels.txt has no class for image {unknown[0]} "
            f"and {len(unknown) - 1:,} more of images.txt."
        )
    ids = sorted(files, key=int)
    wrong = next((i for i in ids if not classes[i].isdecimal() or int(classes[i]) < 1), None)
    if wrong is not None:
        raise ValueError(
            "cub200: image_class_labels.txt must give each image a whole class number from 1, "
            f"got {classes[wrong]!r} for image {wrong}."
        )
    labels = np.array([int(classes[i]) - 1 for i in ids], dtype=np.int64)
    listing = Listing(
        root=root / "images",
        names=[files[i] for i in ids],
        labels=labels,
        in_test=labels >= TRAIN_CLASSES,
        class_names=[titles.get(str(c + 1), str(c + 1)) for c in range(int(labels.max()) + 1)],
    )
    return read_listing(
        "cub200",
        listing,
        cache_dir=cache_dir,
        progress=progress,
        size=size,
        fit=fit,
        on_bad_image=on_bad_image,
        on_duplicate=on_duplicate,
        counts=COUNTS,
    )


def _pairs(path: Path) -> dict[str, str]:
    """Lines "key value" as a dictionary."""
    pairs = {}
    for number, line in enumerate(lines_of("cub200", path), start=1):
        if not line.strip():
            continue
        words = line.split(maxsplit=1)
        if len(words) != 2 or not words[0].isdigit():
            raise ValueError(
                f"cub200: {path.name}, line {number}: expected 'id value', got {line!r}."
            )
        pairs[words[0]] = words[1].strip()
    if not pairs:
        raise ValueError(f"cub200: {path} is empty.")
    return pairs
