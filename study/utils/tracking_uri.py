"""What kind of store does a tracking URI name?"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from urllib.parse import urlsplit

from study.errors import StudyError
from study.tracking.redaction import redact

_DATABASES = ("sqlite", "postgresql", "postgres", "mysql", "mssql")


def is_database(uri: str) -> bool:
    """Whether the URI names a database that this process reads and writes itself."""
    return uri.split(":", 1)[0].split("+", 1)[0] in _DATABASES


def is_server(uri: str) -> bool:
    """Whether the URI names an MLflow server."""
    return uri.startswith(("http://", "https://"))


def check_address(uri: str) -> None:
    """Refuse what no tracking store can be at, before anybody is asked.

    Raises:
        StudyError: The address is of another kind, or cannot be read; one line, no password.
    """
    if not (is_database(uri) or is_server(uri)):
        raise StudyError(
            "a tracking store is at http(s)://HOST or in a database (sqlite:///, "
            f"postgresql://, mysql://, mssql://), not at {redact(uri)!r}"
        )
    if uri.startswith("sqlite") and sqlite_file(uri) is None:
        raise StudyError(
            f"a tracking store in sqlite is a file, sqlite:///PATH, but got {redact(uri)!r}"
        )
    if not _has_host_and_port(uri):
        raise StudyError(f"host and port of the tracking store cannot be read: {redact(uri)!r}")


def sqlite_file(uri: str) -> Path | None:
    """The file of an sqlite store; None when it names none, and for stores of another kind.

    >>> sqlite_file("sqlite:////data/mlflow.db"), sqlite_file("sqlite:///:memory:")
    (PosixPath('/data/mlflow.db'), None)
    """
    scheme, _, rest = uri.partition("://")
    # What follows is no URL's path: a # is a letter of the file's name.
    name = rest.partition("?")[0].partition("/")[2]
    if scheme.split("+", 1)[0] != "sqlite" or name in ("", ":memory:"):
        return None
    return Path(name)


def _has_host_and_port(uri: str) -> bool:
    """Whether an address can be taken apart by whoever will use it."""
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
    """The URI, with the PostgreSQL driver named that is installed.

    SQLAlchemy takes a plain `postgresql://` for psycopg 3, MLflow's own advice is psycopg 2: either
    should do.

    >>> with_driver("sqlite:///mlflow.db")
    'sqlite:///mlflow.db'
    """
    scheme, mark, rest = uri.partition("://")
    if scheme not in ("postgresql", "postgres"):
        return uri
    installed = [name for name in ("psycopg2", "psycopg") if importlib.util.find_spec(name)]
    return f"postgresql+{installed[0]}{mark}{rest}" if installed else uri
