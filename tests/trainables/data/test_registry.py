"""Data sets by name: their options, and requests that are refused."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from trainables.data.registry import DATASETS, IMAGE_OPTIONS, load_dataset

pytestmark = pytest.mark.split


@pytest.mark.parametrize("name", DATASETS)
def test_the_registry_lists_the_options_of_the_reader(name: str) -> None:
    info = DATASETS[name]
    assert (info.reader is None) is not (info.builder is None)
    function = info.reader or info.builder
    assert function is not None
    parameters = set(inspect.signature(function).parameters)
    if info.reader is not None:
        assert parameters == set(info.options) - set(IMAGE_OPTIONS)
        assert set(IMAGE_OPTIONS) < set(info.options)
    else:
        assert parameters == {"cache_dir", "progress", *info.options}
    for key, option in info.options.items():
        assert option.doc, key
        assert option.required == (key == "path"), key


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cub2000", {}, "unknown data set 'cub2000'; did you mean 'cub200'"),
        ("glyphs", {"clases": 3}, "unknown option of data set 'glyphs': 'clases'; did you mean"),
        ("glyphs", {"classes": 9999}, "`4 <= classes <= 427` must hold, got 9999"),
        ("glyphs", {"classes": "many"}, "option 'classes' must be int, got 'many'"),
        ("glyphs", {"samples": True}, "option 'samples' must be int, got True"),
        ("glyphs", {"samples": 1}, "`samples >= 2` must hold"),
        ("cub200", {}, "data set 'cub200' needs the option 'path'"),
        ("cub200", {"path": "/nowhere/at/all"}, "the folder /nowhere/at/all does not exist"),
        ("cub200", {"path": "."}, "must contain images.txt"),
        ("cars196", {"path": "."}, "must contain cars_annos.mat"),
        ("sop", {"path": "."}, "must contain Ebay_train.txt"),
        ("inshop", {"path": "."}, "must contain list_eval_partition.txt or Eval/"),
        ("folder", {"path": "."}, "folder: no images found in"),
        ("folder", {"path": ".", "split": "class"}, "did you mean 'classes'"),
        ("folder", {"path": ".", "on_bad_image": "ignore"}, "on_bad_image"),
        ("folder", {"path": ".", "fit": "stretch"}, "fit of data set"),
        ("arrays", {"path": "nothing.npz"}, "the file nothing.npz does not exist"),
    ],
)
def test_invalid_requests_are_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: Any, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(ValueError, match=message) as caught:
        load_dataset(name, cache_dir=tmp_path / "c", **options)
    assert "\n" not in str(caught.value)
