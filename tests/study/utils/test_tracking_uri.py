"""Tracking URIs: kinds of stores, validation, SQLite files and drivers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from study.errors import StudyError
from study.utils.tracking_uri import (
    check_tracking_uri,
    is_database,
    is_server,
    sqlite_path,
    with_driver,
)

pytestmark = pytest.mark.split


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("sqlite:////data/mlflow.db", "database"),
        ("postgresql+psycopg2://ada@db/x", "database"),
        ("mysql://db/x", "database"),
        ("http://127.0.0.1:5000", "server"),
        ("https://ada:word@host/path", "server"),
        ("file:///data", "other"),
        ("databricks", "other"),
    ],
)
def test_stores_are_databases_or_servers(uri: str, kind: str) -> None:
    assert is_database(uri) == (kind == "database")
    assert is_server(uri) == (kind == "server")
    if kind == "other":
        with pytest.raises(StudyError, match="must be http"):
            check_tracking_uri(uri)
    else:
        check_tracking_uri(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "http://",
        "https://host:0",
        "https://host:port",
        "postgresql://ada:s3cret@db:0/x",
        "postgresql://ada:s3cret@db:65536/x",
    ],
)
def test_invalid_hosts_and_ports_are_named_without_the_password(uri: str) -> None:
    with pytest.raises(StudyError, match="invalid host or port") as error:
        check_tracking_uri(uri)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sqlite:////data/mlflow.db", "/data/mlflow.db"),
        ("sqlite+pysqlite:///mlflow.db?timeout=5", "mlflow.db"),
        ("sqlite:////data/a#b.db", "/data/a#b.db"),
        ("sqlite:///:memory:", None),
        ("sqlite://", None),
        ("postgresql://db/x", None),
    ],
)
def test_the_file_of_an_sqlite_store(uri: str, path: str | None) -> None:
    assert sqlite_path(uri) == (None if path is None else Path(path))


@pytest.mark.parametrize(
    ("installed", "uri", "expected"),
    [
        (["psycopg2", "psycopg"], "postgresql://db/x", "postgresql+psycopg2://db/x"),
        (["psycopg"], "postgres://db/x", "postgresql+psycopg://db/x"),
        ([], "postgresql://db/x", "postgresql://db/x"),
        (["psycopg2"], "postgresql+pg8000://db/x", "postgresql+pg8000://db/x"),
        (["psycopg2"], "sqlite:///x", "sqlite:///x"),
    ],
)
def test_an_installed_driver_is_used(
    installed: list[str], uri: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: object() if name in installed else None
    )
    assert with_driver(uri) == expected
