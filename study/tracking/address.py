"""What kind of store does a tracking URI name?"""

from __future__ import annotations

import importlib.util

_DATABASES = ("sqlite", "postgresql", "postgres", "mysql", "mssql")


def is_database(uri: str) -> bool:
    """Whether the URI names a database that this process reads and writes itself."""
    return uri.split(":", 1)[0].split("+", 1)[0] in _DATABASES


def is_server(uri: str) -> bool:
    """Whether the URI names an MLflow server."""
    return uri.startswith(("http://", "https://"))


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
