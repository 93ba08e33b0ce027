"""Tracking URIs of MLflow stores: their kinds and their validation."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from urllib.parse import urlsplit

from study.errors import StudyError
from study.utils.redaction import redact

_DATABASE_SCHEMES = ("sqlite", "postgresql", "postgres", "mysql", "mssql")


def is_database(uri: str) -> bool:
    """Whether a URI names a database, which this process reads and writes directly."""
    return uri.split(":", 1)[0].split("+", 1)[0] in _DATABASE_SCHEMES


def is_server(uri: str) -> bool:
    """Whether a URI names an MLflow server."""
    return uri.startswith(("http://", "https://"))


def check_tracking_uri(uri: str) -> None:
    """Check the form of a tracking URI, without connecting to it.

    Raises:
        StudyError: If the URI is of another kind or malformed; the message has no password.
    """
    if not (is_database(uri) or is_server(uri)):
        raise StudyError(
            "a tracking URI must be http(s)://HOST or a database (sqlite:///, postgresql://, "
            f"mysql://, mssql://), but got {redact(uri)!r}"
        )
    if uri.startswith("sqlite") and sqlite_path(uri) is None:
        raise StudyError(
            f"an SQLite tracking store must be a file, sqlite:///PATH, but got {redact(uri)!r}"
        )
    if not _has_host_and_port(uri):
        raise StudyError(f"invalid host or port in the tracking URI {redact(uri)!r}")


def sqlite_path(uri: str) -> Path | None:
    """Return the file of an SQLite store; None for in-memory stores and other kinds.

    >>> sqlite_path("sqlite:////data/mlflow.db"), sqlite_path("sqlite:///:memory:")
    (PosixPath('/data/mlflow.db'), None)
    """
    scheme, _, rest = uri.partition("://")
    # Not parsed as a URL: a # belongs to the name of the file.
    name = rest.partition("?")[0].partition("/")[2]
    if scheme.split("+", 1)[0] != "sqlite" or name in ("", ":memory:"):
        return None
    return Path(name)


def _has_host_and_port(uri: str) -> bool:
    """Whether urllib or SQLAlchemy can parse the host and port of a URI."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        if is_server(uri):
            parts = urlsplit(uri)
            return bool(parts.hostname) and parts.port != 0
        port = make_url(uri).port
    except (ValueError, ArgumentError):
        return False
    return port is None or 0 < port < 1 << 16


def with_driver(uri: str) -> str:
    """Return the URI with the PostgreSQL driver that is installed.

    SQLAlchemy uses psycopg 3 for a plain `postgresql://`; MLflow recommends psycopg 2. Both work.

    >>> with_driver("sqlite:///mlflow.db")
    'sqlite:///mlflow.db'
    """
    scheme, mark, rest = uri.partition("://")
    if scheme not in ("postgresql", "postgres"):
        return uri
    installed = [name for name in ("psycopg2", "psycopg") if importlib.util.find_spec(name)]
    return f"postgresql+{installed[0]}{mark}{rest}" if installed else uri
