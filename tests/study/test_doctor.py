"""`study doctor` says what studies keep on this machine."""

from __future__ import annotations

from pathlib import Path

from study.commands.doctor import _cache
from trainables.data import load_dataset


def test_the_doctor_tells_where_decoded_data_are(tmp_path: Path) -> None:
    place = tmp_path / "cache"
    assert _cache(place) == f"0 MiB in 0 entries at {place} (DML_STUDY_CACHE)"
    load_dataset("glyphs", cache_dir=place, classes=80, samples=16, size=28)
    assert _cache(place) == f"1 MiB in 1 entries at {place} (DML_STUDY_CACHE)"
