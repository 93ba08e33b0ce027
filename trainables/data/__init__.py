"""Data sets by name, decoded once and split by class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainables.data import cars196, cub200, inshop, sop
from trainables.data.arrays import read_arrays
from trainables.data.cache import Progress
from trainables.data.cars196 import read_cars196
from trainables.data.cub200 import read_cub200
from trainables.data.dataset import Dataset, Part
from trainables.data.fetch import fetched
from trainables.data.folder import read_folder
from trainables.data.glyphs import read_glyphs
from trainables.data.inshop import read_inshop
from trainables.data.sop import read_sop
from trainables.names import unknown_name
from trainables.objects import is_object

__all__ = ["DATASETS", "Dataset", "DatasetInfo", "Option", "Part", "load_dataset"]


@dataclass(frozen=True)
class Option:
    """A reader's setting; `default` None means that the user must give it."""

    default: Any
    doc: str

    @property
    def required(self) -> bool:
        """Whether the study file must set it."""
        return self.default is None


@dataclass(frozen=True)
class DatasetInfo:
    """What a data set is and how it is read.

    Args:
        counts: Published numbers of images, e.g. {"train": 5864, "test": 5924}.
    """

    reader: Callable[..., Dataset]
    title: str
    options: Mapping[str, Option]
    counts: Mapping[str, int] = field(default_factory=dict)


_PATH = Option(None, "folder with the official files, or s3://BUCKET/PREFIX of them")
_PICTURES: Mapping[str, Option] = {
    "size": Option(256, "side in pixels at which pictures are kept; crops are cut from these"),
    "fit": Option(
        "crop",
        "crop (shorter side to size, centre kept), squash, pad, or whole (training crops come from "
        "all of the picture, undistorted; kept squashed, so with a larger size than crop needs)",
    ),
    "on_bad_image": Option("refuse", "refuse or skip pictures that cannot be read; both name them"),
    "on_duplicate": Option(
        "refuse", "refuse or drop training images that are in another class or in the test half"
    ),
}

DATASETS: Mapping[str, DatasetInfo] = {
    "glyphs": DatasetInfo(
        reader=read_glyphs,
        title="characters in twelve typefaces, drawn locally (no download)",
        options={
            "classes": Option(240, "characters; first half train, second half test"),
            "samples": Option(16, "images per character"),
            "size": Option(28, "pixels per side, one channel"),
            "seed": Option(0, "of the jitter"),
        },
    ),
    "cub200": DatasetInfo(
        reader=read_cub200,
        title="CUB-200-2011: birds, classes 1-100 train, 101-200 test",
        options={"path": _PATH, **_PICTURES},
        counts=cub200.COUNTS,
    ),
    "cars196": DatasetInfo(
        reader=read_cars196,
        title="Cars196: car models, classes 1-98 train, 99-196 test",
        options={"path": _PATH, **_PICTURES},
        counts=cars196.COUNTS,
    ),
    "sop": DatasetInfo(
        reader=read_sop,
        title="Stanford Online Products, halved by Ebay_train.txt and Ebay_test.txt",
        options={"path": _PATH, **_PICTURES},
        counts=sop.COUNTS,
    ),
    "inshop": DatasetInfo(
        reader=read_inshop,
        title="DeepFashion In-Shop, test items split into query and gallery",
        options={"path": _PATH, **_PICTURES},
        counts=inshop.COUNTS,
    ),
    "folder": DatasetInfo(
        reader=read_folder,
        title="your pictures, one folder per class",
        options={
            "path": Option(
                None, "folder or s3:// with a folder per class, or with train/ and test/"
            ),
            "split": Option("auto", "classes (halved by name), folders (train/, test/) or auto"),
            "min_images": Option(2, "a class with fewer pictures is an error"),
            **_PICTURES,
        },
    ),
    "arrays": DatasetInfo(
        reader=read_arrays,
        title="your arrays: images, encoded pictures or features with labels (.npz, .npy)",
        options={
            "path": Option(None, "a .npz, or a .npy of images or features; s3:// too"),
            "labels": Option("", "a .npy of class ids, when path is a .npy"),
            "query": Option("", "KEY=VALUE: items where array KEY is VALUE are the queries"),
            "min_images": Option(2, "a class with fewer items is an error"),
            **_PICTURES,
            "size": Option(0, "side of encoded pictures; 0 takes the first one's"),
        },
    ),
}


def load_dataset(
    name: str, *, cache_dir: Path, progress: Progress | None = None, **options: Any
) -> Dataset:
    """The data set of a study file, decoded once per node and mapped from the cache.

    Args:
        cache_dir: Directory of this node for decoded arrays.
        progress: Called with (what, rows done, rows in all) while something is built.
        options: The reader's options; see `DATASETS[name].options`.
    """
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    info = DATASETS[name]
    for key, value in options.items():
        if key not in info.options:
            raise unknown_name(f"option of data set {name!r}:", key, info.options)
        _check_type(name, key, value, info.options[key].default)
    for key, option in info.options.items():
        if option.required and options.get(key) is None:
            raise ValueError(f"data set {name!r} needs the option {key!r}: {option.doc}.")
    for key in ("path", "labels"):
        if is_object(options.get(key, "")):
            copy = fetched(options[key], cache_dir=Path(cache_dir), progress=progress)
            options = {**options, key: str(copy)}
    return info.reader(cache_dir=Path(cache_dir), progress=progress, **options)


def _check_type(name: str, key: str, value: Any, default: Any) -> None:
    expected = str if default is None else type(default)
    # In Python a bool is an int, but `samples: true` is a slip.
    if not isinstance(value, expected) or isinstance(value, bool) is not (expected is bool):
        raise ValueError(
            f"data set {name!r}: option {key!r} must be {expected.__name__}, got {value!r}."
        )
