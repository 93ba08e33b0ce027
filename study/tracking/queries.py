"""Queries that fetch thousands of runs from a tracking store in a few requests.

A database is queried with SQL for the required columns only, which depends on MLflow's schema. A
server is queried page by page, and for learning curves through the bulk request of its own UI (one
hundred runs at a time). Both return the same values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mlflow import MlflowClient
from mlflow.utils.rest_utils import http_request, verify_rest_response
from numpy.typing import NDArray

from study.tracking.records import STORED_INFINITY
from study.utils.environment import temporary_environment
from study.utils.tracking_uri import is_database

RUNS_PER_PAGE = 1000
MAX_RUNS_PER_BULK_REQUEST = 100
MAX_VALUES_PER_BULK_REQUEST = 20_000
SERVER_BULK_VALUE_LIMIT = 25_000  # values per answer; the server drops values beyond it
BULK_HISTORY_ENDPOINT = "/ajax-api/2.0/mlflow/metrics/get-history-bulk"
SEARCH_RUNS_ENDPOINT = "/api/2.0/mlflow/runs/search"
MAX_CONCURRENT_REQUESTS = 4

MetricRow = tuple[str, str, int, float, int]
"""Run id, metric, step, value, time in milliseconds."""


@dataclass(frozen=True)
class RunRow:
    """A run, with the fields that the trial table needs.

    Args:
        run_id: MLflow's key.
        started: Seconds since the epoch, UTC.
        status: RUNNING, FINISHED, KILLED or FAILED.
        tags: Requested tags.
        params: Requested parameters.
        latest: Last value of each metric, and its step.
    """

    run_id: str
    started: float
    status: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    latest: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        """Last step of any metric; -1 if there is none."""
        return max((step for _, step in self.latest.values()), default=-1)


@dataclass(frozen=True)
class MetricHistory:
    """All values of some metrics of many runs, as parallel arrays in order of logging time.

    Args:
        run: Indices into the list of requested runs.
        key: Indices into `keys`.
        step: Epochs.
        value: Values as they were logged, including NaN and infinities.
        keys: Metric names.
    """

    run: NDArray[np.int64]
    key: NDArray[np.int64]
    step: NDArray[np.int64]
    value: NDArray[np.float64]
    keys: tuple[str, ...]

    @classmethod
    def from_rows(cls, rows: Iterable[MetricRow], runs: Sequence[RunRow]) -> MetricHistory:
        """Build a history from rows in any order; rows of other runs are dropped."""
        index_by_id = {run.run_id: index for index, run in enumerate(runs)}
        keys: dict[str, int] = {}
        columns = [
            (index_by_id[run], keys.setdefault(key, len(keys)), step, value, moment)
            for run, key, step, value, moment in rows
            if run in index_by_id
        ]
        run, key, step, value, moment = zip(*columns, strict=True) if columns else ((),) * 5
        order = np.argsort(np.array(moment, dtype=np.int64), kind="stable")
        values = np.array(value, dtype=np.float64)[order]
        values[values >= STORED_INFINITY] = np.inf
        values[values <= -STORED_INFINITY] = -np.inf
        return cls(
            run=np.array(run, dtype=np.int64)[order],
            key=np.array(key, dtype=np.int64)[order],
            step=np.array(step, dtype=np.int64)[order],
            value=values,
            keys=tuple(keys),
        )


@contextlib.contextmanager
def reader_settings() -> Iterator[None]:
    """Let MLflow give up on a server within seconds, not minutes, and hide progress bars."""
    variables = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    }
    with temporary_environment(variables):
        yield


def fetch_runs(
    client: MlflowClient,
    experiment_id: str,
    wanted: Mapping[str, str],
    *,
    tags: Collection[str] | None = None,
    params: Collection[str] | None = None,
    deleted: bool = False,
) -> list[RunRow]:
    """Fetch the active runs that have all required tags.

    Args:
        client: MLflow client of the store.
        experiment_id: The study's experiment.
        wanted: Required tags, such as `{"dml.kind": "trial"}`.
        tags: Names of the tags to fetch; None for all.
        params: Names of the parameters to fetch; None for all.
        deleted: Fetch deleted runs instead of active ones.
    """
    stage = "deleted" if deleted else "active"
    if is_database(client.tracking_uri):
        return _fetch_runs_by_sql(client.tracking_uri, experiment_id, wanted, tags, params, stage)
    return list(_fetch_runs_by_page(client, experiment_id, wanted, stage))


def fetch_history(
    client: MlflowClient, experiment_id: str, runs: Sequence[RunRow], keys: Collection[str]
) -> MetricHistory:
    """Fetch every value of the given metrics of the given runs."""
    if is_database(client.tracking_uri):
        return MetricHistory.from_rows(
            _fetch_history_by_sql(client.tracking_uri, experiment_id, keys), runs
        )
    tasks = list(_split_bulk_requests(runs, keys))
    with ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS) as pool:
        parts = pool.map(lambda task: _fetch_bulk_history(client, *task), tasks)
        return MetricHistory.from_rows((row for part in parts for row in part), runs)


def _fetch_runs_by_page(
    client: MlflowClient, experiment_id: str, wanted: Mapping[str, str], stage: str
) -> Iterator[RunRow]:
    """Fetch page by page as plain JSON; building MLflow's objects would take longer."""
    credentials = client._tracking_client.store.get_host_creds()
    request: dict[str, Any] = {
        "experiment_ids": [experiment_id],
        "filter": " AND ".join(f"tags.`{key}` = '{value}'" for key, value in wanted.items()),
        "max_results": RUNS_PER_PAGE,
        "run_view_type": f"{stage.upper()}_ONLY",
    }
    while True:
        response = http_request(credentials, SEARCH_RUNS_ENDPOINT, "POST", json=request)
        page = verify_rest_response(response, SEARCH_RUNS_ENDPOINT).json()
        for run in page.get("runs", ()):
            yield _run_row_from_json(run["info"], run.get("data", {}))
        token = page.get("next_page_token")
        if not token:
            return
        request["page_token"] = token


def _run_row_from_json(info: Mapping[str, Any], data: Mapping[str, Any]) -> RunRow:
    return RunRow(
        info["run_id"],
        int(info["start_time"]) / 1000,
        info.get("status", "RUNNING"),
        {tag["key"]: tag.get("value", "") for tag in data.get("tags", ())},
        {param["key"]: param.get("value", "") for param in data.get("params", ())},
        {
            # The JSON encoding omits fields that are zero.
            metric["key"]: (
                _restore_infinity(float(metric.get("value", 0))),
                int(metric.get("step", 0)),
            )
            for metric in data.get("metrics", ())
        },
    )


def _restore_infinity(value: float) -> float:
    """Return the number that was logged, given the number that a database stored."""
    if abs(value) < STORED_INFINITY:
        return value
    return float(np.copysign(np.inf, value)) if value == value else value


def _fetch_runs_by_sql(
    uri: str,
    experiment_id: str,
    wanted: Mapping[str, str],
    tags: Collection[str] | None,
    params: Collection[str] | None,
    stage: str,
) -> list[RunRow]:
    joins = " ".join(
        f"JOIN tags w{i} ON w{i}.run_uuid = r.run_uuid AND w{i}.key = :k{i} AND w{i}.value = :v{i}"
        for i in range(len(wanted))
    )
    where = "WHERE r.experiment_id = :experiment AND r.lifecycle_stage = :stage"
    arguments: dict[str, Any] = {"experiment": int(experiment_id), "stage": stage}
    for i, (key, value) in enumerate(wanted.items()):
        arguments |= {f"k{i}": key, f"v{i}": value}

    def query_table(table: str, columns: str, keys: Collection[str] | None) -> Sequence[Any]:
        key_filter = "" if keys is None else " AND t.key IN :keys"
        query = f"SELECT t.run_uuid, {columns} FROM runs r {joins} JOIN {table} t ON t.run_uuid"
        more = {} if keys is None else {"keys": list(keys)}
        return _execute_query(
            uri, f"{query} = r.run_uuid {where}{key_filter}", {**arguments, **more}
        )

    columns = "r.run_uuid, r.start_time, r.status"
    runs = _execute_query(uri, f"SELECT {columns} FROM runs r {joins} {where}", arguments)
    tags_of: dict[str, dict[str, str]] = {run: {} for run, _, _ in runs}
    params_of: dict[str, dict[str, str]] = {run: {} for run, _, _ in runs}
    latest_of: dict[str, dict[str, tuple[float, int]]] = {run: {} for run, _, _ in runs}
    # A run created between two of these queries is left for the next reading.
    for target, table, keys in ((tags_of, "tags", tags), (params_of, "params", params)):
        for run, key, text in query_table(table, "t.key, t.value", keys):
            if run in target:
                target[run][key] = text
    nan = float("nan")
    for run, key, value, step, is_nan in query_table(
        "latest_metrics", "t.key, t.value, t.step, t.is_nan", None
    ):
        if run in latest_of:
            latest_of[run][key] = (nan if is_nan else _restore_infinity(value), step)
    return [
        RunRow(run, start / 1000, status, tags_of[run], params_of[run], latest_of[run])
        for run, start, status in runs
    ]


def _fetch_history_by_sql(
    uri: str, experiment_id: str, keys: Collection[str]
) -> Iterator[MetricRow]:
    rows = _execute_query(
        uri,
        "SELECT m.run_uuid, m.key, m.step, m.value, m.timestamp, m.is_nan FROM metrics m "
        "JOIN runs r ON r.run_uuid = m.run_uuid "
        "WHERE r.experiment_id = :experiment AND m.key IN :keys",
        {"experiment": int(experiment_id), "keys": list(keys)},
    )
    nan = float("nan")
    for run, key, step, value, moment, is_nan in rows:
        yield run, key, step, nan if is_nan else value, moment


def _execute_query(uri: str, query: str, arguments: Mapping[str, Any]) -> Sequence[Any]:
    import sqlalchemy

    statement = sqlalchemy.text(query)
    if "keys" in arguments:
        statement = statement.bindparams(sqlalchemy.bindparam("keys", expanding=True))
    engine = sqlalchemy.create_engine(uri)
    try:
        with engine.connect() as connection:
            return connection.execute(statement, dict(arguments)).all()
    finally:
        engine.dispose()


def _split_bulk_requests(
    runs: Sequence[RunRow], keys: Collection[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the metric and runs of each request, with fewer values than the server's limit."""
    for key in sorted(keys):
        batch: list[str] = []
        values = 0
        for run in runs:
            if key not in run.latest:
                continue
            count = run.latest[key][1] + 1
            if batch and (
                len(batch) == MAX_RUNS_PER_BULK_REQUEST
                or values + count > MAX_VALUES_PER_BULK_REQUEST
            ):
                yield key, batch
                batch, values = [], 0
            batch.append(run.run_id)
            values += count
        if batch:
            yield key, batch


def _fetch_bulk_history(client: MlflowClient, key: str, runs: Sequence[str]) -> list[MetricRow]:
    store = client._tracking_client.store
    response = http_request(
        store.get_host_creds(),
        BULK_HISTORY_ENDPOINT,
        "GET",
        params=[("metric_key", key), *(("run_id", run) for run in runs)],
    )
    values = response.json()["metrics"] if response.status_code == 200 else None
    if values is not None and len(values) < SERVER_BULK_VALUE_LIMIT:
        return [
            (row["run_id"], row["key"], int(row["step"]), float(row["value"]), row["timestamp"])
            for row in values
        ]
    # Other server implementations lack the bulk request, and a very long run does not fit into it.
    return [
        (run, key, metric.step, metric.value, metric.timestamp)
        for run in runs
        for metric in client.get_metric_history(run, key)
    ]
