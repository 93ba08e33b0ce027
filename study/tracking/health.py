"""Will the store that a study names take it? Asked before any trial runs.

A wrong address, a wrong password, a missing driver and a name that another study holds end the
command; a server that is merely down does not, since a study's records wait for it on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from study.environment import environment
from study.errors import StudyError
from study.tracking import records as names
from study.tracking.address import check_address, is_database, sqlite_file, with_driver
from study.tracking.redaction import redact

SECONDS = 10
"""How long a store may take to answer."""

_WRONG = {"UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED", "PERMISSION_DENIED", "ENDPOINT_NOT_FOUND"}
_MISTAKES = (
    *("authentication failed", "no password supplied", "no pg_hba.conf entry", "does not exist"),
    *("sslerror", "server does not support ssl", "certificate verify failed"),
)
"""Words by which a refusal that waiting does not mend is told from a store that is down."""


@dataclass(frozen=True)
class Found:
    """An experiment of a store."""

    stage: str
    tags: Mapping[str, str]


class _DownError(Exception):
    """The store does not answer; the message is its reason."""


def check_store(uri: str, *, experiment: str = "", study_id: str = "") -> str:
    """Why the store cannot be reached at the moment; empty when it answers.

    Args:
        uri: Tracking URI.
        experiment: The experiment the study is to be kept in; empty asks for an answer only.
        study_id: The study's own.

    Raises:
        StudyError: The store will not take the study, however long one waits; one line.
    """
    check_address(uri)
    try:
        found = _by_sql(uri, experiment) if is_database(uri) else _by_request(uri, experiment)
    except _DownError as reason:
        return f"the tracking store {redact(uri)} does not answer: {redact(str(reason))[:300]}"
    if found is not None:
        refuse_foreign(found.stage, found.tags, experiment=experiment, study_id=study_id)
    return ""


def refuse_foreign(stage: str, tags: Mapping[str, str], *, experiment: str, study_id: str) -> None:
    """Raise StudyError when an experiment was deleted, or holds a study that is not this one.

    Studies of one name are told apart by the random id that each has in its plan: the directory of
    a study may have been deleted and made anew, or a colleague have had the same idea.
    """
    if stage == "deleted":
        raise StudyError(
            f"The MLflow experiment {experiment!r} was deleted: restore it, or give the study "
            "another name."
        )
    taken = names.STUDY in tags or names.STUDY_ID in tags
    if taken and tags.get(names.STUDY_ID, "") != study_id:
        raise StudyError(
            f"The tracking store holds another study in the experiment {experiment!r}: give this "
            "one another name (--set name=...), or rename that experiment in MLflow."
        )


def _by_sql(uri: str, experiment: str) -> Found | None:
    """Ask a database itself: MLflow would make its tables there, and ask again for minutes."""
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        return None
    import sqlalchemy
    from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

    limit: dict[str, Any] = {"connect_timeout": SECONDS} if uri.startswith("postgres") else {}
    try:
        engine = sqlalchemy.create_engine(with_driver(uri), connect_args=limit)
    except (ImportError, NoSuchModuleError, ArgumentError) as error:
        raise StudyError(_no_driver(uri, error)) from None
    try:
        with engine.connect() as connection:
            if not experiment or not sqlalchemy.inspect(connection).has_table("experiments"):
                return None
            wanted = {"name": experiment}
            rows = connection.execute(
                sqlalchemy.text(
                    "SELECT e.lifecycle_stage, t.key, t.value FROM experiments e "
                    "LEFT JOIN experiment_tags t ON t.experiment_id = e.experiment_id "
                    "WHERE e.name = :name"
                ),
                wanted,
            ).all()
            return Found(rows[0][0], {key: text for _, key, text in rows if key}) if rows else None
    except DBAPIError as error:
        raise _sorted(uri, str(error.orig)) from None
    finally:
        engine.dispose()


def _by_request(uri: str, experiment: str) -> Found | None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    quick = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(SECONDS),
    }
    with environment(quick):
        try:
            found = MlflowClient(tracking_uri=uri).get_experiment_by_name(experiment or "Default")
        except MlflowException as error:
            raise _sorted(uri, str(error), wrong=error.error_code in _WRONG) from None
    return Found(found.lifecycle_stage, found.tags) if found and experiment else None


def _sorted(uri: str, reason: str, *, wrong: bool = False) -> Exception:
    """The user's mistake, or a store that is down."""
    line = " ".join(reason.split())
    if wrong or any(word in line.lower() for word in _MISTAKES):
        return StudyError(f"The tracking store {redact(uri)} refuses: {redact(line)[:300]}")
    return _DownError(line)


def _no_driver(uri: str, error: Exception) -> str:
    advice = "; pip install psycopg2-binary" if "postgres" in uri.split(":", 1)[0] else ""
    return f"The tracking store {redact(uri)} cannot be opened: {redact(str(error))}{advice}"
