"""How are thousands of runs fetched from a store in a few requests?

A database store is asked directly, for the columns needed and no others; a server is asked page by
page, and for learning curves through the bulk request its own UI uses (one hundred runs at a time).
Both give the same numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mlflow import MlflowClient
from mlflow.utils.rest_utils import http_request
from numpy.typing import NDArray

from study.environment import environment
from study.tracking.address import is_database
from study.tracking.records import INFINITY, KIND

PAGE = 1000
BULK_RUNS = 100
BULK_VALUES = 20_000
BULK_REQUEST = "/ajax-api/2.0/mlflow/metrics/get-history-bulk"
REQUESTS_AT_ONCE = 4

Row = tuple[str, str, int, float, int]
"""Run, metric, step, value, time in milliseconds."""


@dataclass(frozen=True)
class RunRow:
    """One run, with what the trial table needs of it."""

    run_id: str
    started: float
    tags: Mapping[str, str]
    params: Mapping[str, str]
    steps: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """All metric values of many runs, as parallel arrays in order of logging time.

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


def fetch_runs(client: MlflowClient, experiment_id: str, kind: str) -> list[RunRow]:
    """All live runs of one kind (`trial`, `study`, ...)."""
    if is_database(client.tracking_uri):
        return _runs_by_sql(client.tracking_uri, experiment_id, kind)
    rows: list[RunRow] = []
    token: str | None = None
    while True:
        page = client.search_runs(
            [experiment_id],
            filter_string=f"tags.`{KIND}` = '{kind}'",
            max_results=PAGE,
            page_token=token,
        )
        rows += [
            RunRow(
                run.info.run_id,
                run.info.start_time / 1000,
                run.data.tags,
                run.data.params,
                {metric.key: metric.step for metric in run.data._metric_objs},
            )
            for run in page
        ]
        token = page.token
        if not token:
            return rows


def fetch_history(client: MlflowClient, experiment_id: str, runs: Sequence[RunRow]) -> History:
    """Every value of every metric of these runs."""
    if is_database(client.tracking_uri):
        return History.of(_history_by_sql(client.tracking_uri, experiment_id), runs)
    tasks = list(_bulk_tasks(runs))
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        parts = pool.map(lambda task: _bulk(client, *task), tasks)
        return History.of((row for part in parts for row in part), runs)


def _runs_by_sql(uri: str, experiment_id: str, kind: str) -> list[RunRow]:
    live = (
        "FROM runs r JOIN tags k ON k.run_uuid = r.run_uuid AND k.key = :tag AND k.value = :kind "
    )
    where = "WHERE r.experiment_id = :experiment AND r.lifecycle_stage = 'active'"
    names = {"tag": KIND, "kind": kind, "experiment": int(experiment_id)}
    queries = (
        f"SELECT r.run_uuid, r.start_time {live}{where}",
        f"SELECT t.run_uuid, t.key, t.value {live}JOIN tags t ON t.run_uuid = r.run_uuid {where}",
        f"SELECT p.run_uuid, p.key, p.value {live}JOIN params p ON p.run_uuid = r.run_uuid {where}",
    )
    runs, tags, params = (_query(uri, query, names) for query in queries)
    tags_of: dict[str, dict[str, str]] = {run: {} for run, _ in runs}
    params_of: dict[str, dict[str, str]] = {run: {} for run, _ in runs}
    for target, rows in ((tags_of, tags), (params_of, params)):
        for run, key, value in rows:
            if run in target:  # a run made between two of the queries is for the next reading
                target[run][key] = value
    return [RunRow(run, start / 1000, tags_of[run], params_of[run]) for run, start in runs]


def _history_by_sql(uri: str, experiment_id: str) -> Iterator[Row]:
    rows = _query(
        uri,
        "SELECT m.run_uuid, m.key, m.step, m.value, m.timestamp, m.is_nan FROM metrics m "
        "JOIN runs r ON r.run_uuid = m.run_uuid WHERE r.experiment_id = :experiment",
        {"experiment": int(experiment_id)},
    )
    nan = float("nan")
    for run, key, step, value, moment, bad in rows:
        yield run, key, step, nan if bad else value, moment


def _query(uri: str, query: str, names: Mapping[str, Any]) -> list[Any]:
    import sqlalchemy

    engine = sqlalchemy.create_engine(uri)
    try:
        with engine.connect() as connection:
            return list(map(tuple, connection.execute(sqlalchemy.text(query), dict(names))))
    finally:
        engine.dispose()


def _bulk_tasks(runs: Sequence[RunRow]) -> Iterator[tuple[str, list[str]]]:
    """Metric and runs of each request, few enough values that none is cut off."""
    for key in sorted({key for run in runs for key in run.steps}):
        batch: list[str] = []
        values = 0
        for run in runs:
            if key not in run.steps:
                continue
            count = run.steps[key] + 1
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
    if answer.status_code == 200 and len(runs) > 1:
        return [
            (row["run_id"], row["key"], int(row["step"]), float(row["value"]), row["timestamp"])
            for row in answer.json()["metrics"]
        ]
    # Servers of other makers lack the bulk request, and one very long run does not fit into it.
    return [
        (run, key, metric.step, metric.value, metric.timestamp)
        for run in runs
        for metric in client.get_metric_history(run, key)
    ]
