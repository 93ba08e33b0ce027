"""Stanford Online Products (Song et al. 2016): 22,634 products, halved by the official lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainables.data.cache import Progress
from trainables.data.dataset import Dataset
from trainables.data.listing import Listing, existing_folder, lines_of, needed_file, read_listing

COUNTS = {"train": 59551, "test": 60502}


def read_sop(
    *,
    cache_dir: Path,
    progress: Progress | None = None,
    path: str,
    size: int = 256,
    fit: str = "crop",
    on_bad_image: str = "refuse",
    on_duplicate: str = "refuse",
) -> Dataset:
    """Read Ebay_train.txt, Ebay_test.txt and the picture folders beside them."""
    root = existing_folder("sop", path, "Stanford_Online_Products")
    names: list[str] = []
    products: list[str] = []
    in_test: list[bool] = []
    for test, file in ((False, "Ebay_train.txt"), (True, "Ebay_test.txt")):
        for name, product in _lines(needed_file("sop", root, file)):
            names.append(name)
            products.append(product)
            in_test.append(test)
    # Numbered in order of appearance: training products first, as in the lists.
    ids = {product: i for i, product in enumerate(dict.fromkeys(products))}
    listing = Listing(
        root=root,
        names=names,
        labels=np.array([ids[p] for p in products], dtype=np.int64),
        in_test=np.array(in_test),
        class_names=list(ids),
    )
    return read_listing(
        "sop",
        listing,
        cache_dir=cache_dir,
        progress=progress,
        size=size,
        fit=fit,
        on_bad_image=on_bad_image,
        on_duplicate=on_duplicate,
        counts=COUNTS,
    )


def _lines(path: Path) -> list[tuple[str, str]]:
    """(picture, product) of each line "image_id class_id super_class_id path"."""
    rows = []
    for number, line in enumerate(lines_of("sop", path), start=1):
        words = line.split(maxsplit=3)
        if not words or words[0] == "image_id":
            continue
        if len(words) != 4:
            raise ValueError(f"sop: {path.name}, line {number}: expected 4 columns, got {line!r}.")
        rows.append((words[3].strip(), words[1]))
    if not rows:
        raise ValueError(f"sop: {path} lists no pictures.")
    return rows
