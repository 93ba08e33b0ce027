"""Default folders of studies and decoded data."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.utils.paths import cache_dir, cache_dir_template, studies_root

pytestmark = pytest.mark.split


def test_studies_are_in_the_given_folder_or_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DML_STUDY_HOME", raising=False)
    assert studies_root() == tmp_path / "studies"
    monkeypatch.setenv("DML_STUDY_HOME", "/data/all")
    assert studies_root() == Path("/data/all")
    assert studies_root(Path("mine")) == tmp_path / "mine"


def test_the_cache_may_be_in_a_folder_of_each_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DML_STUDY_CACHE", "/data/{host}/cache")
    assert cache_dir_template() == Path("/data/{host}/cache")
    assert "{host}" not in str(cache_dir())
    monkeypatch.delenv("DML_STUDY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert cache_dir() == Path("/var/cache/dml-study")
