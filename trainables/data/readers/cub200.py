"""CUB-200-2011: 200 bird species (Wah et al. 2011); the first 100 classes train, the rest test."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainables.data.listing import (
    ImageListing,
    find_data_folder,
    find_required_file,
    read_list_lines,
)

PUBLISHED_COUNTS = {"train": 5864, "test": 5924}
N_TRAIN_CLASSES = 100


def read_cub200(*, path: str) -> ImageListing:
    """List the official folder: images.txt, image_class_labels.txt, classes.txt and images/."""
    root = find_data_folder("cub200", path, "CUB_200_2011")
    files = _read_id_table(find_required_file("cub200", root, "images.txt"))
    classes = _read_id_table(find_required_file("cub200", root, "image_class_labels.txt"))
    titles = _read_id_table(find_required_file("cub200", root, "classes.txt"))
    _check_class_numbers(files, classes)
    ids = sorted(files, key=int)
    labels = np.array([int(classes[i]) - 1 for i in ids], dtype=np.int64)
    return ImageListing(
        root=root / "images",
        names=[files[i] for i in ids],
        labels=labels,
        in_test=labels >= N_TRAIN_CLASSES,
        class_names=[titles.get(str(c + 1), str(c + 1)) for c in range(int(labels.max()) + 1)],
    )


def _read_id_table(path: Path) -> dict[str, str]:
    """Return lines "id value" as a dictionary."""
    pairs = {}
    for number, line in enumerate(read_list_lines("cub200", path), start=1):
        if not line.strip():
            continue
        words = line.split(maxsplit=1)
        if len(words) != 2 or not words[0].isdigit():
            raise ValueError(
                f"cub200: {path.name}, line {number}: expected 'id value', got {line!r}"
            )
        pairs[words[0]] = words[1].strip()
    if not pairs:
        raise ValueError(f"cub200: {path} is empty")
    return pairs


def _check_class_numbers(files: dict[str, str], classes: dict[str, str]) -> None:
    """Raise a ValueError unless every image has a class number from 1."""
    missing = sorted(set(files) - set(classes))
    if missing:
        raise ValueError(
            f"cub200: image_class_labels.txt has no class for image {missing[0]} "
            f"and {len(missing) - 1:,} more of images.txt"
        )
    for i in sorted(files, key=int):
        if not classes[i].isdecimal() or int(classes[i]) < 1:
            raise ValueError(
                "cub200: image_class_labels.txt must give each image an integer class number "
                f"from 1, got {classes[i]!r} for image {i}"
            )
