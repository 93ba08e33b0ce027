"""Data sets by name, with the options of their readers.

To add a data set of image files, write a function that returns an `ImageListing` (see
`trainables.data.readers.sop`) and add a line to `DATASETS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainables.data.cache import DataProgressCallback
from trainables.data.dataset import Dataset
from trainables.data.decode_listing import decode_listing
from trainables.data.listing import ImageListing
from trainables.data.readers import cars196, cub200, inshop, sop
from trainables.data.readers.arrays import build_arrays
from trainables.data.readers.folder import read_folder
from trainables.data.readers.glyphs import build_glyphs
from trainables.data.s3_download import download_once
from trainables.utils.s3 import is_s3_uri
from trainables.utils.suggestions import unknown_name_error


@dataclass(frozen=True)
class ReaderOption:
    """An option of a reader; without a default (None) the user must set it."""

    default: Any
    doc: str

    @property
    def required(self) -> bool:
        """Whether the study file must set it."""
        return self.default is None


@dataclass(frozen=True)
class DatasetInfo:
    """Description of a data set and its reader.

    Args:
        title: One line for users.
        options: All options, with their defaults.
        reader: For image files: receives the options that are not `IMAGE_OPTIONS` and returns the
            listing, which `load_dataset` decodes.
        builder: For other data: receives `cache_dir`, `progress` and all options and returns the
            data set.
        counts: Published numbers of images, e.g. {"train": 5864, "test": 5924}.
    """

    title: str
    options: Mapping[str, ReaderOption]
    reader: Callable[..., ImageListing] | None = None
    builder: Callable[..., Dataset] | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


IMAGE_OPTIONS: Mapping[str, ReaderOption] = {
    "size": ReaderOption(
        256, "side in pixels at which images are stored; crops are cut from these"
    ),
    "fit": ReaderOption(
        "crop",
        "crop (shorter side to size, centre kept), squash, pad, or whole (training crops come from "
        "the entire image, undistorted; stored squashed, so it needs a larger size than crop)",
    ),
    "on_bad_image": ReaderOption(
        "refuse", "refuse or skip images that cannot be read; both list them"
    ),
    "on_duplicate": ReaderOption(
        "refuse", "refuse or drop training images that are in another class or in the test half"
    ),
}
"""Options of every data set of image files; their values go to `decode_listing`."""


def _image_files(
    reader: Callable[..., ImageListing],
    title: str,
    *,
    counts: Mapping[str, int] | None = None,
    path: str = "folder with the official files, or s3://BUCKET/PREFIX of them",
    **own_options: ReaderOption,
) -> DatasetInfo:
    """Describe a data set of image files, whose options are `path`, its own and the common ones."""
    options = {"path": ReaderOption(None, path), **own_options, **IMAGE_OPTIONS}
    return DatasetInfo(title, options, reader=reader, counts=counts or {})


DATASETS: Mapping[str, DatasetInfo] = {
    "glyphs": DatasetInfo(
        "characters in twelve typefaces, drawn locally (no download)",
        builder=build_glyphs,
        options={
            "classes": ReaderOption(240, "characters; first half train, second half test"),
            "samples": ReaderOption(16, "images per character"),
            "size": ReaderOption(28, "pixels per side, one channel"),
            "seed": ReaderOption(0, "of the jitter"),
        },
    ),
    "cub200": _image_files(
        cub200.read_cub200,
        "CUB-200-2011: birds, classes 1-100 train, 101-200 test",
        counts=cub200.PUBLISHED_COUNTS,
    ),
    "cars196": _image_files(
        cars196.read_cars196,
        "Cars196: car models, classes 1-98 train, 99-196 test",
        counts=cars196.PUBLISHED_COUNTS,
    ),
    "sop": _image_files(
        sop.read_sop,
        "Stanford Online Products, halved by Ebay_train.txt and Ebay_test.txt",
        counts=sop.PUBLISHED_COUNTS,
    ),
    "inshop": _image_files(
        inshop.read_inshop,
        "DeepFashion In-Shop, test items split into query and gallery",
        counts=inshop.PUBLISHED_COUNTS,
    ),
    "folder": _image_files(
        read_folder,
        "your images, one folder per class",
        path="folder or s3:// with a folder per class, or with train/ and test/",
        split=ReaderOption("auto", "classes (halved by name), folders (train/, test/) or auto"),
        min_images=ReaderOption(2, "a class with fewer images is an error"),
    ),
    "arrays": DatasetInfo(
        "your arrays: images, encoded images or features with labels (.npz, .npy)",
        builder=build_arrays,
        options={
            "path": ReaderOption(None, "a .npz, or a .npy of images or features; s3:// too"),
            "labels": ReaderOption("", "a .npy of class ids, when path is a .npy"),
            "query": ReaderOption("", "KEY=VALUE: items where array KEY is VALUE are the queries"),
            "min_images": ReaderOption(2, "a class with fewer items is an error"),
            **IMAGE_OPTIONS,
            "size": ReaderOption(0, "side of encoded images; 0 takes that of the first image"),
        },
    ),
}


def load_dataset(
    name: str, *, cache_dir: Path, progress: DataProgressCallback | None = None, **options: Any
) -> Dataset:
    """Return a data set, decoded once per node and mapped from the cache.

    Args:
        name: A key of `DATASETS`.
        cache_dir: Directory of this node for decoded arrays.
        progress: Called with (label, rows done, total rows) while something is built.
        options: Options of the reader; see `DATASETS[name].options`.

    Raises:
        ValueError: If the name, an option or the data are invalid; the message is one line.
    """
    if name not in DATASETS:
        raise unknown_name_error("data set", name, DATASETS)
    info, cache_dir = DATASETS[name], Path(cache_dir)
    _check_options(name, info, options)
    settings = {key: option.default for key, option in info.options.items()} | options
    for key in ("path", "labels"):
        if is_s3_uri(settings.get(key, "")):
            copy = download_once(settings[key], cache_dir=cache_dir, progress=progress)
            settings[key] = str(copy)
    if info.builder is not None:
        return info.builder(cache_dir=cache_dir, progress=progress, **settings)
    assert info.reader is not None
    image_settings = {key: settings.pop(key) for key in IMAGE_OPTIONS}
    return decode_listing(
        name,
        info.reader(**settings),
        cache_dir=cache_dir,
        progress=progress,
        counts=info.counts,
        **image_settings,
    )


def _check_options(name: str, info: DatasetInfo, options: Mapping[str, Any]) -> None:
    for key, value in options.items():
        if key not in info.options:
            raise unknown_name_error(f"option of data set {name!r}:", key, info.options)
        _check_option_type(name, key, value, info.options[key].default)
    for key, option in info.options.items():
        if option.required and options.get(key) is None:
            raise ValueError(f"data set {name!r} needs the option {key!r}: {option.doc}")


def _check_option_type(name: str, key: str, value: Any, default: Any) -> None:
    expected = str if default is None else type(default)
    # In Python a bool is an int, but `samples: true` is a mistake.
    if not isinstance(value, expected) or isinstance(value, bool) is not (expected is bool):
        raise ValueError(
            f"data set {name!r}: option {key!r} must be {expected.__name__}, got {value!r}"
        )
