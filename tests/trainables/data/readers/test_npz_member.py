"""Lazy arrays of .npz files: as the loaded array, and read only as far as needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainables.data.readers.npz_member import NpzMember, is_lazy_loadable, read_npy_header

pytestmark = pytest.mark.split


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_shape_type_and_values_are_those_of_the_array(tmp_path: Path, save: Any) -> None:
    values = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    save(tmp_path / "a.npz", values=values)
    member = NpzMember(tmp_path / "a.npz", "values")
    assert (member.shape, str(member.dtype), member.ndim) == ((7, 3), "float32", 2)
    assert len(member) == 7
    assert np.array_equal(member[2:5], values[2:5])
    assert np.array_equal(member[np.array([6, 0])], values[[6, 0]])


def test_values_are_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", values=np.arange(5))
    member, load, calls = NpzMember(tmp_path / "a.npz", "values"), np.load, []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return load(*arguments, **options)

    monkeypatch.setattr(np, "load", counted)
    assert [int(member[i]) for i in range(5)] == list(range(5))
    assert len(calls) == 1


def test_the_digest_depends_on_the_contents_alone(tmp_path: Path) -> None:
    for name, values in (("a", np.arange(4)), ("b", np.arange(4)), ("c", np.arange(1, 5))):
        np.savez(tmp_path / f"{name}.npz", values=values)
    np.savez_compressed(tmp_path / "d.npz", values=np.arange(4))
    a, b, c, d = (
        NpzMember(tmp_path / f"{name}.npz", "values").content_digest.hexdigest() for name in "abcd"
    )
    assert a == b == d != c


def test_byte_runs_lie_between_the_offsets(tmp_path: Path) -> None:
    content = np.frombuffer(b"onetwothree", np.uint8)
    np.savez(tmp_path / "a.npz", content=content)
    member = NpzMember(tmp_path / "a.npz", "content")
    assert list(member.iter_byte_runs([0, 3, 6, 11])) == [b"one", b"two", b"three"]
    assert next(member.iter_byte_runs([0, 3, 6, 11])) == b"one"


def test_only_c_order_without_objects_is_lazy(tmp_path: Path) -> None:
    arrays = {
        "rows": np.ones((3, 2)),
        "columns": np.asfortranarray(np.ones((3, 2))),
        "objects": np.array([None, "x"], dtype=object),
        "scalar": np.array(3),
    }
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    lazy = {name: is_lazy_loadable(tmp_path / "a.npz", name) for name in (*arrays, "none")}
    assert lazy == {
        "rows": True, "columns": False, "objects": False, "scalar": False, "none": False,
    }  # fmt: skip


def test_headers_of_all_versions_are_read(tmp_path: Path) -> None:
    for version in ((1, 0), (2, 0), (3, 0)):
        with (tmp_path / "a.npy").open("wb") as file:
            np.lib.format.write_array(file, np.zeros((2, 5), np.int16), version=version)
        with (tmp_path / "a.npy").open("rb") as file:
            shape, is_fortran, dtype = read_npy_header(file)
            assert (shape, is_fortran, str(dtype)) == ((2, 5), False, "int16")
