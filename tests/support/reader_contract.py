"""Contract of readers of image files: tests that a new reader's test class inherits.

    class TestSop(ReaderContract):
        dataset = "sop"

        def write_release(self, root: Path) -> Path:
            ...  # write lists and images below `root`
            return root

The class checks the options in the registry, the listing, the decoded data set, its cache entry and
fingerprint, and what happens to unreadable and duplicate images.
"""

from __future__ import annotations

import inspect
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.support.painted_images import check_painted_halves
from trainables.data import Dataset
from trainables.data.listing import ImageListing
from trainables.data.registry import DATASETS, IMAGE_OPTIONS, load_dataset

IMAGE_SIZE = 16


class ReaderContract:
    """Tests of one reader; a subclass sets `dataset` and writes a small release of it."""

    dataset: ClassVar[str]
    """Name of the data set in the registry."""

    def write_release(self, root: Path) -> Path:
        """Write a release with at least two classes per half and return the option `path`.

        Use `paint_image` with the class as label for the images, which must be files below `root`.
        """
        raise NotImplementedError

    def list_release(self, path: Path) -> ImageListing:
        """Return the reader's listing with default options."""
        info = DATASETS[self.dataset]
        assert info.reader is not None
        own = {k: o.default for k, o in info.options.items() if k not in IMAGE_OPTIONS}
        return info.reader(**{**own, "path": str(path)})

    def load_release(self, path: Path, cache_dir: Path, **options: Any) -> Dataset:
        """Return the decoded data set."""
        return load_dataset(
            self.dataset, cache_dir=cache_dir, path=str(path), size=IMAGE_SIZE, **options
        )

    def test_the_registry_lists_the_options_of_the_reader(self) -> None:
        info = DATASETS[self.dataset]
        assert info.reader is not None
        parameters = inspect.signature(info.reader).parameters
        assert [*parameters, *IMAGE_OPTIONS] == [*info.options]
        for parameter in parameters.values():
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
            # Defaults have one place, which is the registry.
            assert parameter.default is inspect.Parameter.empty
        assert info.options["path"].required
        assert all(option.doc for option in info.options.values())
        assert info.title

    def test_the_listing_is_consistent(self, tmp_path: Path) -> None:
        listing = self.list_release(self.write_release(tmp_path / "release"))
        n = len(listing.names)
        assert n == len(set(listing.names)) > 0
        assert listing.labels.shape == listing.in_test.shape == (n,)
        assert (str(listing.labels.dtype), str(listing.in_test.dtype)) == ("int64", "bool")
        assert 0 <= listing.labels.min() <= listing.labels.max() < len(listing.class_names)
        assert all((listing.root / name).is_file() for name in listing.names)
        if listing.is_query is not None:
            assert listing.is_query.shape == (n,)
            assert not (listing.is_query & ~listing.in_test).any()
        listing.check_halves()

    def test_the_halves_are_decoded_with_their_labels(self, tmp_path: Path) -> None:
        path = self.write_release(tmp_path / "release")
        listing = self.list_release(path)
        dataset = self.load_release(path, tmp_path / "cache")
        check_painted_halves(dataset)
        assert dataset.name == self.dataset
        assert dataset.train.items.shape[1:] == (IMAGE_SIZE, IMAGE_SIZE, 3)
        assert len(dataset.train) == (~listing.in_test).sum()
        assert len(dataset.test) == listing.in_test.sum()
        assert (dataset.test.is_query is None) is (listing.is_query is None)

    def test_a_second_reading_decodes_nothing(self, tmp_path: Path) -> None:
        path, calls = self.write_release(tmp_path / "release"), []
        first = self.load_release(path, tmp_path / "cache")
        again = self.load_release(path, tmp_path / "cache", progress=lambda *a: calls.append(a))
        assert not calls
        assert again.fingerprint == first.fingerprint
        (entry,) = (p for p in (tmp_path / "cache").iterdir() if p.is_dir())
        assert entry.name.startswith(f"{self.dataset}-")

    def test_a_copy_elsewhere_has_the_same_fingerprint(self, tmp_path: Path) -> None:
        path = self.write_release(tmp_path / "release")
        shutil.copytree(tmp_path / "release", tmp_path / "copy")
        copy = tmp_path / "copy" / path.relative_to(tmp_path / "release")
        fingerprints = {
            self.load_release(p, tmp_path / f"cache{i}").fingerprint
            for i, p in enumerate((path, copy))
        }
        assert len(fingerprints) == 1

    def test_unreadable_images_are_refused_or_skipped(self, tmp_path: Path) -> None:
        path = self.write_release(tmp_path / "release")
        listing = self.list_release(path)
        (listing.root / listing.names[0]).write_bytes(b"")
        with pytest.raises(ValueError, match=f"^{self.dataset}: 1 of ") as caught:
            self.load_release(path, tmp_path / "cache")
        for part in (f"{listing.names[0]}: the file is empty", "on_bad_image: skip"):
            assert part in str(caught.value)
        assert "\n" not in str(caught.value)
        dataset = self.load_release(path, tmp_path / "cache", on_bad_image="skip")
        assert len(dataset.train) + len(dataset.test) == len(listing.names) - 1
        assert any(listing.names[0] in note for note in dataset.notes)

    def test_training_images_of_the_test_half_are_refused_or_dropped(self, tmp_path: Path) -> None:
        path = self.write_release(tmp_path / "release")
        listing = self.list_release(path)
        train, test = (
            listing.names[int(np.flatnonzero(mask)[0])]
            for mask in (~listing.in_test, listing.in_test)
        )
        shutil.copyfile(listing.root / test, listing.root / train)
        with pytest.raises(ValueError, match=f"^{self.dataset}: ") as caught:
            self.load_release(path, tmp_path / "cache")
        for part in (f"{train} is also {test}", "on_duplicate: drop"):
            assert part in str(caught.value)
        assert "\n" not in str(caught.value)
        dataset = self.load_release(path, tmp_path / "cache", on_duplicate="drop")
        assert len(dataset.train) == (~listing.in_test).sum() - 1
        assert len(dataset.test) == listing.in_test.sum()

    def test_published_counts_are_compared(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        info, path = DATASETS[self.dataset], self.write_release(tmp_path / "release")
        dataset = self.load_release(path, tmp_path / "cache")
        for side, published in info.counts.items():
            assert any(f"{side} images, published {published:,}" in n for n in dataset.notes), side
        queries = dataset.test.is_query
        have = {"train": len(dataset.train), "test": len(dataset.test)}
        if queries is not None:
            have |= {"query": int(queries.sum()), "gallery": int((~queries).sum())}
        right = {side: have[side] for side in info.counts}
        monkeypatch.setitem(DATASETS, self.dataset, replace(info, counts=right))
        notes = self.load_release(path, tmp_path / "cache").notes
        assert not any("published" in note for note in notes)

    @pytest.mark.parametrize("exists", [False, True])
    def test_a_folder_without_the_files_is_one_clear_line(
        self, tmp_path: Path, exists: bool
    ) -> None:
        if exists:
            (tmp_path / "empty").mkdir()
        with pytest.raises(ValueError, match=f"^{self.dataset}: ") as caught:
            self.load_release(tmp_path / "empty", tmp_path / "cache")
        assert str(tmp_path / "empty") in str(caught.value)
        assert "\n" not in str(caught.value)
