"""Data sets by name, decoded once and split by class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainables.data.cache import Progress
from trainables.data.dataset import Dataset, Part
from trainables.data.glyphs import read_glyphs
from trainables.names import unknown_name

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
    return info.reader(cache_dir=Path(cache_dir), progress=progress, **options)


def _check_type(name: str, key: str, value: Any, default: Any) -> None:
    kinds: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float)}
    allowed = kinds.get(type(default))
    if allowed and (
        not isinstance(value, allowed)
        or (isinstance(value, bool) and default is not value and not isinstance(default, bool))
    ):
        raise ValueError(
            f"data set {name!r}: option {key!r} must be {type(default).__name__}, got {value!r}."
        )
