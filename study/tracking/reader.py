"""Reader: the trial table of a study, from its tracking store alone.

A report can therefore be written far from where the study ran. Two readers of the same store get
equal tables.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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

from search_spaces.space import ParamValue, SearchSpace
from study.errors import StudyError, suggest_nearest_name
from study.tracking import records as names
from study.tracking.health import check_store
from study.tracking.queries import MetricHistory, RunRow, fetch_history, fetch_runs, reader_settings
from study.trials.table import METRIC_PREFIX, PARAM_PREFIX, TRIAL_COLUMNS, TrialTable
from study.utils.redaction import redact
from study.utils.tracking_uri import check_tracking_uri, is_database, sqlite_path, with_driver

SECONDS_KEY = "seconds"
_TEXT_COLUMNS = (
    "trial",
    "loss",
    "origin",
    "state",
    "split",
    "point",
    "anchor",
    "swept",
    "host",
    "error",
)
_INTEGER_COLUMNS = ("number", "seed", "epochs")
_TRIAL_TAGS = (names.TRIAL_TAG, SECONDS_KEY, *_TEXT_COLUMNS, *_INTEGER_COLUMNS)


def read_table(uri: str, study: str) -> TrialTable:
    """Read a study's trial table.

    A trial's score and metrics are those of its last epoch; its seconds are the sum over epochs.

    Args:
        uri: Tracking URI.
        study: Name of the study.

    Raises:
        StudyError: The store does not answer or does not hold the study.
    """
    with _open_client(uri) as client:
        experiment = find_experiment(client, study).experiment_id
        plan = _read_plan(client, experiment)
        spaces = {loss: SearchSpace.from_dict(space) for loss, space in plan["spaces"].items()}
        protocol = {**plan.get("protocol", {}), **_predicted_epochs(plan)}
        objective = str(protocol.get("objective", "map_at_r"))
        runs = fetch_runs(
            client,
            experiment,
            {names.KIND_TAG: "trial"},
            tags=_TRIAL_TAGS,
            params=_param_keys(spaces),
        )
        rows = _deduplicate_runs(runs)
        baseline_runs = fetch_runs(client, experiment, {names.KIND_TAG: "baseline"})
        history = fetch_history(client, experiment, rows, _validation_and_test_keys(objective))
        # Running trials, and those in stores of earlier versions, have no tag with their duration.
        untimed = [r for r in rows if SECONDS_KEY not in r.tags or r.tags.get("state") == "running"]
        times = (
            fetch_history(client, experiment, untimed, _validation_and_test_keys(SECONDS_KEY))
            if untimed
            else None
        )
    curves = _curve_table(rows, history)
    trials = _trial_table(rows, objective, spaces)
    trials["seconds"] = _training_seconds(rows, untimed, times)
    baseline = {split: dict(values) for split, values in plan.get("baseline", {}).items()}
    baseline |= _baseline_metrics(baseline_runs)
    return TrialTable(
        study=study,
        trials=trials,
        curves=curves,
        spaces=spaces,
        protocol=protocol,
        baseline=baseline,
    )


def study_path(uri: str, study: str) -> str:
    """Return the path of the study's page in MLflow's UI, to append to the server's address."""
    with _open_client(uri) as client:
        return f"/#/experiments/{find_experiment(client, study).experiment_id}"


@contextlib.contextmanager
def _open_client(uri: str) -> Iterator[MlflowClient]:
    """Open a client whose errors are one line without passwords."""
    check_tracking_uri(uri)
    path = sqlite_path(uri)
    # MLflow would create its tables in an empty file; a reader must not.
    if path is not None and not (path.exists() and path.stat().st_size):
        raise StudyError(f"no tracking store at {path}")
    # MLflow would retry for minutes if a database is down, and print a traceback without a driver.
    if is_database(uri) and (problem := check_store(uri)):
        raise StudyError(problem)
    with reader_settings():
        try:
            yield MlflowClient(tracking_uri=with_driver(uri))
        except (MlflowException, SQLAlchemyError) as error:
            line = (str(error).strip().splitlines() or ["no reason given"])[0]
            reason = redact(line)[:300]
            raise StudyError(
                f"unexpected answer of the tracking store {redact(uri)}: {reason}"
            ) from None


def _list_study_experiments(client: MlflowClient) -> list[Experiment]:
    experiments: list[Experiment] = []
    token: str | None = None
    while True:
        page = client.search_experiments(max_results=1000, page_token=token)
        experiments += [experiment for experiment in page if names.STUDY_TAG in experiment.tags]
        token = page.token
        if not token:
            return experiments


def find_experiment(client: MlflowClient, study: str) -> Experiment:
    """Find the experiment of a study; of several, prefer one that still has the study's name.

    Raises:
        StudyError: There is none.
    """
    experiments = _list_study_experiments(client)
    matches = [e for e in experiments if e.tags[names.STUDY_TAG] == study]
    if not matches:
        others = {e.tags[names.STUDY_TAG] for e in experiments}
        hint = suggest_nearest_name(study, others) if others else "it holds no studies"
        raise StudyError(f"no study {study!r} in the tracking store; {hint}")
    return max(matches, key=lambda e: (e.name == study, e.creation_time))


def _read_plan(client: MlflowClient, experiment_id: str) -> dict[str, Any]:
    runs = fetch_runs(client, experiment_id, {names.KIND_TAG: "study"})
    if not runs:
        raise StudyError("the tracking store has no run of the study itself; it may be deleted")
    if (tagged_plan := names.plan_from_tags(runs[0].tags)) is not None:
        return tagged_plan
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = client.download_artifacts(runs[0].run_id, names.PLAN_FILE, folder)
        except (MlflowException, OSError):
            raise StudyError(
                f"cannot read {names.PLAN_FILE} from the study's artifacts; they must be reachable "
                "from this machine (a server that serves artifacts, or shared storage)"
            ) from None
        plan = json.loads(Path(path).read_text(encoding="utf-8"))
    assert isinstance(plan, dict)
    return plan


def _predicted_epochs(plan: Mapping[str, Any]) -> dict[str, dict[str, list[int]]]:
    """Return the epochs at which each loss's search predicted scores; imports do not have them."""
    samplers = plan.get("samplers", {}).items()
    epochs = {loss: list(info["foretold_at"]) for loss, info in samplers if "foretold_at" in info}
    return {"foretold_at": epochs} if epochs else {}


def _deduplicate_runs(rows: Sequence[RunRow]) -> list[RunRow]:
    """Return one run per trial, by loss and number; of duplicates the one that started first."""
    row_by_trial: dict[str, RunRow] = {}
    for row in sorted(rows, key=lambda row: (row.started, row.run_id)):
        row_by_trial.setdefault(row.tags[names.TRIAL_TAG], row)
    return sorted(
        row_by_trial.values(),
        key=lambda row: (row.tags["loss"], int(row.tags["number"]), row.tags[names.TRIAL_TAG]),
    )


def _validation_and_test_keys(name: str) -> list[str]:
    """Return the keys of a metric on validation classes and on test classes."""
    return [name, names.TEST_PREFIX + name]


def _curve_table(rows: Sequence[RunRow], history: MetricHistory) -> pd.DataFrame:
    """Return the scores by trial and epoch; of a value logged twice, the first."""
    width = int(history.step.max(initial=0)) + 1
    # np.unique returns the first index of equal cells, and the history is in order of time.
    cells, first = np.unique(history.run * width + history.step, return_index=True)
    trials = np.array([row.tags[names.TRIAL_TAG] for row in rows], dtype=object)
    frame = pd.DataFrame({"trial": trials[cells // width], "epoch": cells % width})
    frame["score"] = history.value[first]
    return frame.astype({"trial": "str", "epoch": "int64"})


def _training_seconds(
    rows: Sequence[RunRow], untimed: Sequence[RunRow], times: MetricHistory | None
) -> NDArray[np.float64]:
    """Return each trial's training time: the one logged at its end, else the sum over epochs."""
    sums = np.zeros(len(untimed))
    if times is not None:
        keys, first = np.unique(np.stack([times.run, times.step]), axis=1, return_index=True)
        np.add.at(sums, keys[0], times.value[first])
        timed = set(keys[0].tolist())
        for i, row in enumerate(untimed):
            if i not in timed:  # epochs without times, as of an imported running trial
                default = "nan" if row.last_step > 0 else "0"
                sums[i] = float(row.tags.get(SECONDS_KEY, default))
    totals = {row.run_id: total for row, total in zip(untimed, sums, strict=True)}
    seconds = [totals[r.run_id] if r.run_id in totals else float(r.tags[SECONDS_KEY]) for r in rows]
    return np.array(seconds, dtype="float64")


def _trial_table(
    rows: Sequence[RunRow], objective: str, spaces: Mapping[str, SearchSpace]
) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            **{name: [row.tags.get(name, "") for row in rows] for name in _TEXT_COLUMNS},
            "trial": [row.tags[names.TRIAL_TAG] for row in rows],
            "state": [row.tags.get("state", "running") for row in rows],
            "number": [int(row.tags["number"]) for row in rows],
            "seed": [int(row.tags["seed"]) for row in rows],
            "started": [row.started for row in rows],
            "epochs": [max(row.last_step, 0) for row in rows],
        }
    )
    # A trial that failed, was started again and then finished keeps the tag of its first error.
    frame.loc[~frame["state"].isin(["diverged", "failed"]), "error"] = ""
    last = _last_metrics(rows, objective)
    score = last[objective].copy()
    score[frame["state"].isin(["diverged", "failed"]).to_numpy()] = np.nan
    frame["score"] = score
    frame[names.SCORE_STD] = last.pop(names.SCORE_STD, np.full(len(rows), np.nan))
    frame["seconds"] = np.nan
    for name, column in _param_columns(rows, spaces).items():
        frame[PARAM_PREFIX + name] = column
    for name, values in last.items():
        frame[METRIC_PREFIX + name] = values
    frame = frame.astype(
        {
            **dict.fromkeys(_TEXT_COLUMNS, "str"),
            **dict.fromkeys(_INTEGER_COLUMNS, "int64"),
            "started": "float64",
        }
    )
    return frame[[*TRIAL_COLUMNS, *(name for name in frame.columns if name not in TRIAL_COLUMNS)]]


def _last_metrics(rows: Sequence[RunRow], objective: str) -> dict[str, NDArray[np.float64]]:
    """Return every metric after the last epoch; a NaN is not replaced by an earlier value."""
    others = {names.metric_name(key) for row in rows for key in row.latest} - {objective}
    columns = {name: np.full(len(rows), np.nan) for name in (objective, *sorted(others))}
    for index, row in enumerate(rows):
        last = row.last_step
        for key, (value, step) in row.latest.items():
            if step == last:
                columns[names.metric_name(key)][index] = value
    return columns


def _param_columns(
    rows: Sequence[RunRow], spaces: Mapping[str, SearchSpace]
) -> dict[str, pd.Series | np.ndarray[Any, Any]]:
    """Return a column per searched hyperparameter, numeric if all its values are numbers."""
    params = list(
        dict.fromkeys(name for space in spaces.values() for name in space.searched_params)
    )
    columns: dict[str, pd.Series | np.ndarray[Any, Any]] = {}
    for name in params:
        values = [_decode_param(row, name, spaces.get(row.tags["loss"])) for row in rows]
        columns[name] = _typed_column(values, _param_distributions(name, spaces))
    return columns


def _decode_param(row: RunRow, param: str, space: SearchSpace | None) -> ParamValue | None:
    if space is None or param not in space.searched_params:
        return None
    key = names.param_key(param, space.searched_params[param].unit)
    text = row.params.get(key, row.params.get(param))  # earlier versions stored names without unit
    return (
        None
        if text is None
        else names.decode_value(text, space.searched_params[param].distribution)
    )


def _param_keys(spaces: Mapping[str, SearchSpace]) -> list[str]:
    """Return the names under which the searched hyperparameters may be stored."""
    params = {
        (n, param.unit) for space in spaces.values() for n, param in space.searched_params.items()
    }
    return sorted({key for n, unit in params for key in (n, names.param_key(n, unit))})


def _param_distributions(param: str, spaces: Mapping[str, SearchSpace]) -> list[BaseDistribution]:
    return [
        s.searched_params[param].distribution for s in spaces.values() if param in s.searched_params
    ]


def _typed_column(
    values: Sequence[ParamValue | None], distributions: Sequence[BaseDistribution]
) -> pd.Series | np.ndarray[Any, Any]:
    choices = [
        c for d in distributions if isinstance(d, CategoricalDistribution) for c in d.choices
    ]
    if any(isinstance(choice, bool) or not isinstance(choice, int | float) for choice in choices):
        all_bool = all(isinstance(value, bool) for value in values)
        return pd.Series(values, dtype="bool" if all_bool and values else "object")
    if values and all(isinstance(value, int) for value in values):
        return np.array(values, dtype="int64")
    return np.array([np.nan if value is None else value for value in values], dtype="float64")


def _baseline_metrics(runs: Sequence[RunRow]) -> dict[str, dict[str, float]]:
    """Return the metrics of the untrained backbone by split."""
    splits: dict[str, dict[str, float]] = {}
    for run in runs[:1]:
        for key, (value, _) in run.latest.items():
            split = "test" if key.startswith(names.TEST_PREFIX) else "validation"
            splits.setdefault(split, {})[names.metric_name(key)] = value
    return {split: dict(sorted(values.items())) for split, values in sorted(splits.items())}
