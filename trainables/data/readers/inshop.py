"""DeepFashion In-Shop (Liu et al. 2016): clothes, with test items split into query and gallery."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainables.data.listing import (
    ImageListing,
    find_data_folder,
    find_required_file,
    read_list_lines,
)

PUBLISHED_COUNTS = {"train": 25882, "query": 14218, "gallery": 12612}
PARTITION_FILES = ("list_eval_partition.txt", "Eval/list_eval_partition.txt")
PARTITION_NAMES = ("train", "query", "gallery")


def read_inshop(*, path: str) -> ImageListing:
    """List the images of list_eval_partition.txt (beside img/, or in Eval/ with Img/img/)."""
    root = find_data_folder("inshop", path, "In-shop Clothes Retrieval Benchmark")
    rows = _read_partition_file(find_required_file("inshop", root, *PARTITION_FILES))
    ids = {item: i for i, item in enumerate(dict.fromkeys(item for _, item, _ in rows))}
    partitions = np.array([partition for _, _, partition in rows])
    return ImageListing(
        root=root / "Img" if (root / "Img" / "img").is_dir() else root,
        names=[name for name, _, _ in rows],
        labels=np.array([ids[item] for _, item, _ in rows], dtype=np.int64),
        in_test=partitions != "train",
        class_names=list(ids),
        is_query=partitions == "query",
    )


def _read_partition_file(path: Path) -> list[tuple[str, str, str]]:
    """Return (image, item, partition) of each line after two headers, training items first."""
    rows = []
    for number, line in enumerate(read_list_lines("inshop", path), start=1):
        words = line.split()
        if len(words) <= 1 or words[0] == "image_name":
            continue
        if len(words) != 3 or words[2] not in PARTITION_NAMES:
            raise ValueError(
                f"inshop: {path.name}, line {number}: expected 'image item "
                f"train|query|gallery', got {line!r}"
            )
        rows.append((words[0], words[1], words[2]))
    if not rows:
        raise ValueError(f"inshop: {path} lists no images")
    return sorted(rows, key=lambda row: row[2] != "train")
