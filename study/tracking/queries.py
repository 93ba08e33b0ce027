"""How are thousands of runs fetched from a store in a few requests?

A database store is asked directly, for the columns needed and no others; a server is asked page by
page, and for learning curves through the bulk request its own UI uses (one hundred runs at a time).
Both give the same numbers.
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

from study.environment import environment
from study.tracking.address import is_database
from study.tracking.records import INFINITY

PAGE = 1000
BULK_RUNS = 100
BULK_VALUES = 20_000
BULK_LIMIT = 25_000  # values of one answer, from which on the server leaves some out
BULK_REQUEST = "/ajax-api/2.0/mlflow/metrics/get-history-bulk"
SEARCH_REQUEST = "/api/2.0/mlflow/runs/search"
REQUESTS_AT_ONCE = 4

Row = tuple[str, str, int, float, int]
"""Run, metric, step, value, time in milliseconds."""


@dataclass(frozen=True)
class RunRow:
    """One run, with what the trial table needs of it.

    Args:
        run_id: MLflow's key.
        started: Seconds since the epoch, UTC.
        status: RUNNING, FINISHED, KILLED or FAILED.
        tags: Those asked for.
        params: Those asked for.
        latest: Value and step of each metric after its last step.
    """

    run_id: str
    started: float
    status: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    latest: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        """The last step of any metric; -1 before the first."""
        return max((step for _, step in self.latest.values()), default=-1)


@dataclass(frozen=True)
class History:
    """All values of a few metrics of many runs, as parallel arrays in order of logging time.

    Args:
        run: Places in the list of runs that were asked for.
        key: Places in `keys`.
        step: Epochs.
        value: Numbers as they were logged, NaN and infinities too.
        keys: Metric names.
    """

    run: NDArray[np.int64]
    key: NDArray[np.int64]
    step: NDArray[np.int64]
    value: NDArray[np.float64]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, rows: Iterable[Row], runs: Sequence[RunRow]) -> History:
        """From rows in any order; those of other runs are left out."""
        place = {run.run_id: index for index, run in enumerate(runs)}
        keys: dict[str, int] = {}
        kept = [
            (place[run], keys.setdefault(key, len(keys)), step, value, moment)
            for run, key, step, value, moment in rows
            if run in place
        ]
        run, key, step, value, moment = zip(*kept, strict=True) if kept else ((),) * 5
        order = np.argsort(np.array(moment, dtype=np.int64), kind="stable")
        values = np.array(value, dtype=np.float64)[order]
        values[values >= INFINITY] = np.inf
        values[values <= -INFINITY] = -np.inf
        return cls(
            run=np.array(run, dtype=np.int64)[order],
            key=np.array(key, dtype=np.int64)[order],
            step=np.array(step, dtype=np.int64)[order],
            value=values,
            keys=tuple(keys),
        )


@contextlib.contextmanager
def reader_settings() -> Iterator[None]:
    """Let a reader learn within seconds, not minutes, that a server is down; no progress bars."""
    wanted = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    }
    with environment(wanted):
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
    """The live runs that have all these tags.

    Args:
        client: Of the store.
        experiment_id: The study's experiment.
        wanted: Values of tags; `{"dml.kind": "trial"}`.
        tags: Tags to bring; None for all.
        params: Settings to bring; None for all.
        deleted: Those that somebody deleted, instead of the live ones.
    """
    stage = "deleted" if deleted else "active"
    if is_database(client.tracking_uri):
        return _runs_by_sql(client.tracking_uri, experiment_id, wanted, tags, params, stage)
    return list(_runs_by_pages(client, experiment_id, wanted, stage))


def fetch_history(
    client: MlflowClient, experiment_id: str, runs: Sequence[RunRow], keys: Collection[str]
) -> History:
    """Every value of these metrics of these runs."""
    if is_database(client.tracking_uri):
        return History.of(_history_by_sql(client.tracking_uri, experiment_id, keys), runs)
    tasks = list(_bulk_tasks(runs, keys))
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        parts = pool.map(lambda task: _bulk(client, *task), tasks)
        return History.of((row for part in parts for row in part), runs)


def _runs_by_pages(
    client: MlflowClient, experiment_id: str, wanted: Mapping[str, str], stage: str
) -> Iterator[RunRow]:
    """Page by page, as plain JSON: MLflow's objects would take longer to make than to fetch."""
    credentials = client._tracking_client.store.get_host_creds()
    question: dict[str, Any] = {
        "experiment_ids": [experiment_id],
        "filter": " AND ".join(f"tags.`{key}` = '{value}'" for key, value in wanted.items()),
        "max_results": PAGE,
        "run_view_type": f"{stage.upper()}_ONLY",
    }
    while True:
        answer = http_request(credentials, SEARCH_REQUEST, "POST", json=question)
        page = verify_rest_response(answer, SEARCH_REQUEST).json()
        for run in page.get("runs", ()):
            yield _run_of(run["info"], run.get("data", {}))
        token = page.get("next_page_token")
        if not token:
            return
        question["page_token"] = token


def _run_of(info: Mapping[str, Any], data: Mapping[str, Any]) -> RunRow:
    return RunRow(
        info["run_id"],
        int(info["start_time"]) / 1000,
        info.get("status", "RUNNING"),
        {tag["key"]: tag.get("value", "") for tag in data.get("tags", ())},
        {param["key"]: param.get("value", "") for param in data.get("params", ())},
        {
            # JSON leaves out what is zero.
            metric["key"]: (_finite(float(metric.get("value", 0))), int(metric.get("step", 0)))
            for metric in data.get("metrics", ())
        },
    )


def _finite(value: float) -> float:
    """The number that was logged, of the number a database keeps."""
    if abs(value) < INFINITY:
        return value
    return float(np.copysign(np.inf, value)) if value == value else value


def _runs_by_sql(
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
    names: dict[str, Any] = {"experiment": int(experiment_id), "stage": stage}
    for i, (key, value) in enumerate(wanted.items()):
        names |= {f"k{i}": key, f"v{i}": value}

    def ask(table: str, columns: str, keys: Collection[str] | None) -> Sequence[Any]:
        chosen = "" if keys is None else " AND t.key IN :keys"
        query = f"SELECT t.run_uuid, {columns} FROM runs r {joins} JOIN {table} t ON t.run_uuid"
        more = {} if keys is None else {"keys": list(keys)}
        return _query(uri, f"{query} = r.run_uuid {where}{chosen}", {**names, **more})

    columns = "r.run_uuid, r.start_time, r.status"
    runs = _query(uri, f"SELECT {columns} FROM runs r {joins} {where}", names)
    tags_of: dict[str, dict[str, str]] = {run: {} for run, _, _ in runs}
    params_of: dict[str, dict[str, str]] = {run: {} for run, _, _ in runs}
    latest_of: dict[str, dict[str, tuple[float, int]]] = {run: {} for run, _, _ in runs}
    # A run made between two of the queries is for the next reading.
    for target, table, keys in ((tags_of, "tags", tags), (params_of, "params", params)):
        for run, key, text in ask(table, "t.key, t.value", keys):
            if run in target:
                target[run][key] = text
    nan = float("nan")
    for run, key, value, step, bad in ask(
        "latest_metrics", "t.key, t.value, t.step, t.is_nan", None
    ):
        if run in latest_of:
            latest_of[run][key] = (nan if bad else _finite(value), step)
    return [
        RunRow(run, start / 1000, status, tags_of[run], params_of[run], latest_of[run])
        for run, start, status in runs
    ]


def _history_by_sql(uri: str, experiment_id: str, keys: Collection[str]) -> Iterator[Row]:
    rows = _query(
        uri,
        "SELECT m.run_uuid, m.key, m.step, m.value, m.timestamp, m.is_nan FROM metrics m "
        "JOIN runs r ON r.run_uuid = m.run_uuid "
        "WHERE r.experiment_id = :experiment AND m.key IN :keys",
        {"experiment": int(experiment_id), "keys": list(keys)},
    )
    nan = float("nan")
    for run, key, step, value, moment, bad in rows:
        yield run, key, step, nan if bad else value, moment


def _query(uri: str, query: str, names: Mapping[str, Any]) -> Sequence[Any]:
    import sqlalchemy

    statement = sqlalchemy.text(query)
    if "keys" in names:
        statement = statement.bindparams(sqlalchemy.bindparam("keys", expanding=True))
    engine = sqlalchemy.create_engine(uri)
    try:
        with engine.connect() as connection:
            return connection.execute(statement, dict(names)).all()
    finally:
        engine.dispose()


def _bulk_tasks(runs: Sequence[RunRow], keys: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    """Metric and runs of each request, few enough values that none is cut off."""
    for key in sorted(keys):
        batch: list[str] = []
        values = 0
        for run in runs:
            if key not in run.latest:
                continue
            count = run.latest[key][1] + 1
            if batch and (len(batch) == BULK_RUNS or values + count > BULK_VALUES):
                yield key, batch
                batch, values = [], 0
            batch.append(run.run_id)
            values += count
        if batch:
            yield key, batch


def _bulk(client: MlflowClient, key: str, runs: Sequence[str]) -> list[Row]:
    store = client._tracking_client.store
    answer = http_request(
        store.get_host_creds(),
        BULK_REQUEST,
        "GET",
        params=[("metric_key", key), *(("run_id", run) for run in runs)],
    )
    values = answer.json()["metrics"] if answer.status_code == 200 else None
    if values is not None and len(values) < BULK_LIMIT:
        return [
            (row["run_id"], row["key"], int(row["step"]), float(row["value"]), row["timestamp"])
            for row in values
        ]
    # Servers of other makers lack the bulk request, and one very long run does not fit into it.
    return [
        (run, key, metric.step, metric.value, metric.timestamp)
        for run in runs
        for metric in client.get_metric_history(run, key)
    ]
