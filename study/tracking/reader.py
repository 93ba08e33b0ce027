"""How does the trial table come back from the tracking store alone?

Nothing but the store is read, so a report can be made far from where the study ran; two readers of
the same store get the same table, value for value.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from sqlalchemy.exc import SQLAlchemyError

from search_spaces.space import Space, Value
from study.errors import StudyError, nearest
from study.table import COLUMNS, KNOB, METRIC, TrialTable
from study.tracking import records as names
from study.tracking.address import check_address, is_database, sqlite_file, with_driver
from study.tracking.fetch import History, RunRow, fetch_history, fetch_runs, reader_settings
from study.tracking.probe import check_store
from study.tracking.redaction import redact

SCORE_STD = "score_std"
SECONDS = "seconds"
_TEXTS = ("trial", "loss", "origin", "state", "split", "point", "anchor", "swept", "host", "error")
_INTEGERS = ("number", "seed", "epochs")
_TAGS = (names.TRIAL, SECONDS, *_TEXTS, *_INTEGERS)


@dataclass(frozen=True)
class StudyEntry:
    """A study found in a store."""

    name: str
    experiment: str
    experiment_id: str
    status: str
    started: float


def read_table(uri: str, study: str) -> TrialTable:
    """The study's trial table.

    A trial's score and metrics are those of its last epoch, its seconds those of all epochs.

    Raises:
        StudyError: The store does not answer, or holds no such study.
    """
    with _asking(uri) as client:
        experiment = find_experiment(client, study).experiment_id
        plan = _plan(client, experiment)
        spaces = {loss: Space.from_dict(space) for loss, space in plan["spaces"].items()}
        protocol = {**plan.get("protocol", {}), **_foretold_at(plan)}
        objective = str(protocol.get("objective", "map_at_r"))
        found = fetch_runs(
            client, experiment, {names.KIND: "trial"}, tags=_TAGS, params=_param_keys(spaces)
        )
        rows = _unique(found)
        base = fetch_runs(client, experiment, {names.KIND: "baseline"})
        history = fetch_history(client, experiment, rows, _both(objective))
        # Those that run, and those of stores of earlier versions, do not say how long they took.
        untold = [r for r in rows if SECONDS not in r.tags or r.tags.get("state") == "running"]
        times = fetch_history(client, experiment, untold, _both(SECONDS)) if untold else None
    curves = _curves(rows, history)
    trials = _trials(rows, objective, spaces)
    trials["seconds"] = _seconds(rows, untold, times)
    baseline = {split: dict(values) for split, values in plan.get("baseline", {}).items()}
    baseline |= _baseline(base)
    return TrialTable(
        study=study,
        trials=trials,
        curves=curves,
        spaces=spaces,
        protocol=protocol,
        baseline=baseline,
    )


def list_studies(uri: str) -> list[StudyEntry]:
    """The studies of a store, newest first."""
    with _asking(uri) as client:
        entries = []
        for experiment in _experiments(client):
            found = fetch_runs(client, experiment.experiment_id, {names.KIND: "study"})
            status = found[0].status if found else "RUNNING"
            started = found[0].started if found else experiment.creation_time / 1000
            name = experiment.tags[names.STUDY]
            entries.append(
                StudyEntry(name, experiment.name, experiment.experiment_id, status, started)
            )
    return sorted(entries, key=lambda entry: (-entry.started, entry.name))


def study_path(uri: str, study: str) -> str:
    """Where MLflow's UI shows the study, to be put behind the server's address."""
    with _asking(uri) as client:
        return f"/#/experiments/{find_experiment(client, study).experiment_id}"


@contextlib.contextmanager
def _asking(uri: str) -> Iterator[MlflowClient]:
    """A client whose failures are the user's to read: one line, no password."""
    check_address(uri)
    path = sqlite_file(uri)
    # MLflow would make its tables in an empty file: a reader makes nothing.
    if path is not None and not (path.exists() and path.stat().st_size):
        raise StudyError(f"There is no tracking store at {path}.")
    # MLflow would ask a database that is down for minutes, and show a missing driver's traceback.
    if is_database(uri) and (problem := check_store(uri)):
        raise StudyError(problem)
    with reader_settings():
        try:
            yield MlflowClient(tracking_uri=with_driver(uri))
        except (MlflowException, SQLAlchemyError) as error:
            line = (str(error).strip().splitlines() or ["no reason given"])[0]
            reason = redact(line)[:300]
            raise StudyError(
                f"The tracking store {redact(uri)} does not answer as it should: {reason}"
            ) from None


def _experiments(client: MlflowClient) -> list[Experiment]:
    found: list[Experiment] = []
    token: str | None = None
    while True:
        page = client.search_experiments(max_results=1000, page_token=token)
        found += [experiment for experiment in page if names.STUDY in experiment.tags]
        token = page.token
        if not token:
            return found


def find_experiment(client: MlflowClient, study: str) -> Experiment:
    """The experiment of a study; of several, one that was not renamed to make room for it.

    Raises:
        StudyError: There is none.
    """
    known = _experiments(client)
    mine = [e for e in known if e.tags[names.STUDY] == study]
    if not mine:
        others = {e.tags[names.STUDY] for e in known}
        hint = nearest(study, others) if others else "it holds no study yet"
        raise StudyError(f"The tracking store holds no study {study!r}: {hint}")
    return max(mine, key=lambda e: (e.name == study, e.creation_time))


def _plan(client: MlflowClient, experiment_id: str) -> dict[str, Any]:
    runs = fetch_runs(client, experiment_id, {names.KIND: "study"})
    if not runs:
        raise StudyError("The study's parent run is missing from the tracking store.")
    if (known := names.plan_of(runs[0].tags)) is not None:
        return known
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = client.download_artifacts(runs[0].run_id, names.PLAN_FILE, folder)
        except (MlflowException, OSError):
            raise StudyError(
                f"The study's {names.PLAN_FILE} cannot be read from its artifacts: they must be "
                "reachable from here (a server that serves artifacts, or shared storage)."
            ) from None
        plan = json.loads(Path(path).read_text(encoding="utf-8"))
    assert isinstance(plan, dict)
    return plan


def _foretold_at(plan: Mapping[str, Any]) -> dict[str, dict[str, list[int]]]:
    """Of each loss the epochs at which its search judged trials; an import does not say them."""
    samplers = plan.get("samplers", {}).items()
    known = {loss: list(said["foretold_at"]) for loss, said in samplers if "foretold_at" in said}
    return {"foretold_at": known} if known else {}


def _unique(rows: Sequence[RunRow]) -> list[RunRow]:
    """One run per trial, by loss and number; of doubles the one that started first."""
    chosen: dict[str, RunRow] = {}
    for row in sorted(rows, key=lambda row: (row.started, row.run_id)):
        chosen.setdefault(row.tags[names.TRIAL], row)
    return sorted(
        chosen.values(),
        key=lambda row: (row.tags["loss"], int(row.tags["number"]), row.tags[names.TRIAL]),
    )


def _both(name: str) -> list[str]:
    """A metric on validation classes and on test classes."""
    return [name, names.TEST_PREFIX + name]


def _curves(rows: Sequence[RunRow], history: History) -> pd.DataFrame:
    """Scores by trial and epoch; of a value logged twice the first."""
    width = int(history.step.max(initial=0)) + 1
    # Of equal cells the first place is given, and the history is in order of time.
    cells, first = np.unique(history.run * width + history.step, return_index=True)
    trials = np.array([row.tags[names.TRIAL] for row in rows], dtype=object)
    frame = pd.DataFrame({"trial": trials[cells // width], "epoch": cells % width})
    frame["score"] = history.value[first]
    return frame.astype({"trial": "str", "epoch": "int64"})


def _seconds(
    rows: Sequence[RunRow], untold: Sequence[RunRow], times: History | None
) -> NDArray[np.float64]:
    """How long each trial trained: as it said at its end, else the sum over its epochs."""
    sums = np.zeros(len(untold))
    if times is not None:
        keys, first = np.unique(np.stack([times.run, times.step]), axis=1, return_index=True)
        np.add.at(sums, keys[0], times.value[first])
        timed = set(keys[0].tolist())
        for i, row in enumerate(untold):
            if i not in timed:  # epochs without times: of a trial that runs elsewhere
                unknown = "nan" if row.last_step > 0 else "0"
                sums[i] = float(row.tags.get(SECONDS, unknown))
    known = {row.run_id: total for row, total in zip(untold, sums, strict=True)}
    told = [known[r.run_id] if r.run_id in known else float(r.tags[SECONDS]) for r in rows]
    return np.array(told, dtype="float64")


def _trials(rows: Sequence[RunRow], objective: str, spaces: Mapping[str, Space]) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            **{name: [row.tags.get(name, "") for row in rows] for name in _TEXTS},
            "trial": [row.tags[names.TRIAL] for row in rows],
            "state": [row.tags.get("state", "running") for row in rows],
            "number": [int(row.tags["number"]) for row in rows],
            "seed": [int(row.tags["seed"]) for row in rows],
            "started": [row.started for row in rows],
            "epochs": [max(row.last_step, 0) for row in rows],
        }
    )
    # A trial that failed, was started again and went well keeps its first error's tag.
    frame.loc[~frame["state"].isin(["diverged", "failed"]), "error"] = ""
    last = _last_metrics(rows, objective)
    score = last[objective].copy()
    score[frame["state"].isin(["diverged", "failed"]).to_numpy()] = np.nan
    frame["score"] = score
    frame["score_std"] = last.pop(SCORE_STD, np.full(len(rows), np.nan))
    frame["seconds"] = np.nan
    for name, knob_values in _knob_columns(rows, spaces).items():
        frame[KNOB + name] = knob_values
    for name, values in last.items():
        frame[METRIC + name] = values
    frame = frame.astype(
        {**dict.fromkeys(_TEXTS, "str"), **dict.fromkeys(_INTEGERS, "int64"), "started": "float64"}
    )
    return frame[[*COLUMNS, *(name for name in frame.columns if name not in COLUMNS)]]


def _last_metrics(rows: Sequence[RunRow], objective: str) -> dict[str, NDArray[np.float64]]:
    """Every metric after the last epoch of each trial: a NaN there is a fact, no gap to fill."""
    found = {names.metric_name(key) for row in rows for key in row.latest} - {objective}
    columns = {name: np.full(len(rows), np.nan) for name in (objective, *sorted(found))}
    for index, row in enumerate(rows):
        last = row.last_step
        for key, (value, step) in row.latest.items():
            if step == last:
                columns[names.metric_name(key)][index] = value
    return columns


def _knob_columns(
    rows: Sequence[RunRow], spaces: Mapping[str, Space]
) -> dict[str, pd.Series | np.ndarray[Any, Any]]:
    """A column per searched knob of any loss: numbers where all its values are numbers."""
    knobs = list(dict.fromkeys(name for space in spaces.values() for name in space.searched))
    columns: dict[str, pd.Series | np.ndarray[Any, Any]] = {}
    for name in knobs:
        values = [_value(row, name, spaces.get(row.tags["loss"])) for row in rows]
        columns[name] = _typed(values, _distributions(name, spaces))
    return columns


def _value(row: RunRow, knob: str, space: Space | None) -> Value | None:
    if space is None or knob not in space.searched:
        return None
    key = names.param_key(knob, space.searched[knob].unit)
    text = row.params.get(key, row.params.get(knob))  # stores of earlier versions name no unit
    return None if text is None else names.decode(text, space.searched[knob].distribution)


def _param_keys(spaces: Mapping[str, Space]) -> list[str]:
    """Under which names the searched knobs may be."""
    knobs = {(n, knob.unit) for space in spaces.values() for n, knob in space.searched.items()}
    return sorted({key for n, unit in knobs for key in (n, names.param_key(n, unit))})


def _distributions(knob: str, spaces: Mapping[str, Space]) -> list[BaseDistribution]:
    return [s.searched[knob].distribution for s in spaces.values() if knob in s.searched]


def _typed(
    values: Sequence[Value | None], distributions: Sequence[BaseDistribution]
) -> pd.Series | np.ndarray[Any, Any]:
    choices = [
        c for d in distributions if isinstance(d, CategoricalDistribution) for c in d.choices
    ]
    if any(isinstance(choice, bool) or not isinstance(choice, int | float) for choice in choices):
        whole = all(isinstance(value, bool) for value in values)
        return pd.Series(values, dtype="bool" if whole and values else "object")
    if values and all(isinstance(value, int) for value in values):
        return np.array(values, dtype="int64")
    return np.array([np.nan if value is None else value for value in values], dtype="float64")


def _baseline(runs: Sequence[RunRow]) -> dict[str, dict[str, float]]:
    """Metrics of the untrained backbone."""
    splits: dict[str, dict[str, float]] = {}
    for run in runs[:1]:
        for key, (value, _) in run.latest.items():
            split = "test" if key.startswith(names.TEST_PREFIX) else "validation"
            splits.setdefault(split, {})[names.metric_name(key)] = value
    return {split: dict(sorted(values.items())) for split, values in sorted(splits.items())}
