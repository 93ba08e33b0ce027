"""DeepFashion In-Shop (Liu et al. 2016): clothes, with test items split into query and gallery."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainables.data.cache import Progress
from trainables.data.dataset import Dataset
from trainables.data.listing import Listing, existing_folder, lines_of, needed_file, read_listing

COUNTS = {"train": 25882, "query": 14218, "gallery": 12612}
PARTITIONS = ("list_eval_partition.txt", "Eval/list_eval_partition.txt")
SIDES = ("train", "query", "gallery")


def read_inshop(
    *,
    cache_dir: Path,
    progress: Progress | None = None,
    path: str,
    size: int = 256,
    fit: str = "crop",
    on_bad_image: str = "refuse",
    on_duplicate: str = "refuse",
) -> Dataset:
    """Read list_eval_partition.txt (beside img/, or in Eval/ with Img/img/)."""
    root = existing_folder("inshop", path, "In-shop Clothes Retrieval Benchmark")
    rows = _lines(needed_file("inshop", root, *PARTITIONS))
    ids = {item: i for i, item in enumerate(dict.fromkeys(item for _, item, _ in rows))}
    sides = np.array([side for _, _, side in rows])
    listing = Listing(
        root=root / "Img" if (root / "Img" / "img").is_dir() else root,
        names=[name for name, _, _ in rows],
        labels=np.array([ids[item] for _, item, _ in rows], dtype=np.int64),
        in_test=sides != "train",
        class_names=list(ids),
        is_query=sides == "query",
    )
    return read_listing(
        "inshop",
        listing,
        cache_dir=cache_dir,
        progress=progress,
        size=size,
        fit=fit,
        on_bad_image=on_bad_image,
        on_duplicate=on_duplicate,
        counts=COUNTS,
    )


def _lines(path: Path) -> list[tuple[str, str, str]]:
    """(picture, item, side) of each line, training items first; two header lines are skipped."""
    rows = []
    for number, line in enumerate(lines_of("inshop", path), start=1):
        words = line.split()
        if len(words) <= 1 or words[0] == "image_name":
            continue
        if len(words) != 3 or words[2] not in SIDES:
            raise ValueError(
                f"inshop: {path.name}, line {number}: expected 'picture item "
                f"train|query|gallery', got {line!r}."
            )
        rows.append((words[0], words[1], words[2]))
    if not rows:
        raise ValueError(f"inshop: {path} lists no pictures.")
    return sorted(rows, key=lambda row: row[2] != "train")
