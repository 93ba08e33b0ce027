"""Health check of a tracking store, done before any trial runs.

A wrong address, a wrong password, a missing driver or an experiment of another study are errors. A
server that is merely down is not, because records wait on disk until it answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from study.errors import StudyError
from study.tracking import records as names
from study.utils.environment import temporary_environment
from study.utils.redaction import redact
from study.utils.tracking_uri import check_tracking_uri, is_database, sqlite_path, with_driver

STORE_TIMEOUT_SECONDS = 10
"""Time that a store has to answer."""

_CONFIGURATION_ERROR_CODES = {
    "UNAUTHENTICATED",
    "CUSTOMER_UNAUTHORIZED",
    "PERMISSION_DENIED",
    "ENDPOINT_NOT_FOUND",
}
_CONFIGURATION_ERROR_PHRASES = (
    *("authentication failed", "no password supplied", "no pg_hba.conf entry", "does not exist"),
    *("sslerror", "server does not support ssl", "certificate verify failed"),
)
"""Phrases of errors that waiting does not fix, as opposed to a store that is down."""


@dataclass(frozen=True)
class ExperimentInfo:
    """An experiment of a store."""

    stage: str
    tags: Mapping[str, str]


class _StoreUnavailableError(Exception):
    """The store does not answer; the message is the reason."""


def check_store(uri: str, *, experiment: str = "", study_id: str = "") -> str:
    """Check that a store can hold a study.

    Args:
        uri: Tracking URI.
        experiment: The study's experiment; empty to check only that the store answers.
        study_id: Random id of the study.

    Returns:
        Why the store cannot be reached at present; empty if it answers.

    Raises:
        StudyError: The store refuses the study, and waiting does not help.
    """
    check_tracking_uri(uri)
    try:
        info = (
            _find_experiment_by_sql(uri, experiment)
            if is_database(uri)
            else _find_experiment_by_request(uri, experiment)
        )
    except _StoreUnavailableError as reason:
        return f"the tracking store {redact(uri)} does not answer: {redact(str(reason))[:300]}"
    if info is not None:
        require_own_experiment(info.stage, info.tags, experiment=experiment, study_id=study_id)
    return ""


def require_own_experiment(
    stage: str, tags: Mapping[str, str], *, experiment: str, study_id: str
) -> None:
    """Check that an experiment is not deleted and does not hold another study.

    Studies of the same name are distinguished by the random id in their plans: the directory of a
    study may have been deleted and created again, or a colleague may have chosen the same name.

    Raises:
        StudyError: The experiment is deleted or holds another study.
    """
    if stage == "deleted":
        raise StudyError(
            f"the MLflow experiment {experiment!r} was deleted; restore it, or choose another name "
            "for the study (--set name=...)"
        )
    is_taken = names.STUDY_TAG in tags or names.STUDY_ID_TAG in tags
    if is_taken and tags.get(names.STUDY_ID_TAG, "") != study_id:
        raise StudyError(
            f"the MLflow experiment {experiment!r} holds another study; choose another name for "
            "this one (--set name=...), or rename that experiment in MLflow"
        )


def _find_experiment_by_sql(uri: str, experiment: str) -> ExperimentInfo | None:
    """Query the database directly: MLflow would create its tables and retry for minutes."""
    file = sqlite_path(uri)
    if file is not None and not file.exists():
        return None
    import sqlalchemy
    from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

    limit: dict[str, Any] = (
        {"connect_timeout": STORE_TIMEOUT_SECONDS} if uri.startswith("postgres") else {}
    )
    try:
        engine = sqlalchemy.create_engine(with_driver(uri), connect_args=limit)
    except (ImportError, NoSuchModuleError, ArgumentError) as error:
        raise StudyError(_missing_driver_message(uri, error)) from None
    try:
        with engine.connect() as connection:
            if not experiment or not sqlalchemy.inspect(connection).has_table("experiments"):
                return None
            rows = connection.execute(
                sqlalchemy.text(
                    "SELECT e.lifecycle_stage, t.key, t.value FROM experiments e "
                    "LEFT JOIN experiment_tags t ON t.experiment_id = e.experiment_id "
                    "WHERE e.name = :name"
                ),
                {"name": experiment},
            ).all()
            return (
                ExperimentInfo(rows[0][0], {key: text for _, key, text in rows if key})
                if rows
                else None
            )
    except DBAPIError as error:
        raise _classify_store_error(uri, str(error.orig)) from None
    finally:
        engine.dispose()


def _find_experiment_by_request(uri: str, experiment: str) -> ExperimentInfo | None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    variables = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(STORE_TIMEOUT_SECONDS),
    }
    with temporary_environment(variables):
        try:
            stored = MlflowClient(tracking_uri=uri).get_experiment_by_name(experiment or "Default")
        except MlflowException as error:
            raise _classify_store_error(
                uri, str(error), is_permanent=error.error_code in _CONFIGURATION_ERROR_CODES
            ) from None
    return ExperimentInfo(stored.lifecycle_stage, stored.tags) if stored and experiment else None


def _classify_store_error(uri: str, reason: str, *, is_permanent: bool = False) -> Exception:
    """Return a StudyError for a configuration error, or else an error of a store that is down."""
    line = " ".join(reason.split())
    if is_permanent or any(phrase in line.lower() for phrase in _CONFIGURATION_ERROR_PHRASES):
        return StudyError(
            f"the tracking store {redact(uri)} refuses the request: {redact(line)[:300]}"
        )
    return _StoreUnavailableError(line)


def _missing_driver_message(uri: str, error: Exception) -> str:
    advice = "; pip install psycopg2-binary" if "postgres" in uri.split(":", 1)[0] else ""
    return f"cannot open the tracking store {redact(uri)}: {redact(str(error))}{advice}"
