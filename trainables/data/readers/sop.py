"""Stanford Online Products (Song et al. 2016): 22,634 products, halved by the official lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainables.data.listing import (
    ImageListing,
    find_data_folder,
    find_required_file,
    read_list_lines,
)

PUBLISHED_COUNTS = {"train": 59551, "test": 60502}


def read_sop(*, path: str) -> ImageListing:
    """List the images of Ebay_train.txt and Ebay_test.txt, which lie in folders beside them."""
    root = find_data_folder("sop", path, "Stanford_Online_Products")
    train, test = (
        _read_product_list(find_required_file("sop", root, f"Ebay_{half}.txt"))
        for half in ("train", "test")
    )
    rows = [*train, *test]
    # Numbered in order of appearance: training products first, as in the lists.
    ids = {product: i for i, product in enumerate(dict.fromkeys(product for _, product in rows))}
    return ImageListing(
        root=root,
        names=[name for name, _ in rows],
        labels=np.array([ids[product] for _, product in rows], dtype=np.int64),
        in_test=np.arange(len(rows)) >= len(train),
        class_names=list(ids),
    )


def _read_product_list(path: Path) -> list[tuple[str, str]]:
    """Return (image, product) of each line "image_id class_id super_class_id path"."""
    rows = []
    for number, line in enumerate(read_list_lines("sop", path), start=1):
        words = line.split(maxsplit=3)
        if not words or words[0] == "image_id":
            continue
        if len(words) != 4:
            raise ValueError(f"sop: {path.name}, line {number}: expected 4 columns, got {line!r}")
        rows.append((words[3].strip(), words[1]))
    if not rows:
        raise ValueError(f"sop: {path} lists no images")
    return rows
