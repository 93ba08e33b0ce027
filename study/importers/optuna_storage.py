"""Optuna importer: a study from an Optuna storage."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial

from search_spaces.space import Hyperparameter, SearchSpace
from study.errors import StudyError, suggest_nearest_name
from study.importers.space_file import SpaceDescription
from study.importers.trial_frame import build_table, select_params
from study.importers.values import first_error_line, replace_none_choices
from study.trials.job import trial_key
from study.trials.table import TrialTable
from study.utils.redaction import redact

_STATE_BY_OPTUNA_STATE = {
    "COMPLETE": "finished",
    "PRUNED": "stopped",
    "FAIL": "failed",
    "RUNNING": "running",
}


def read_optuna(
    url: str, study: str, description: SpaceDescription | None = None, *, loss: str | None = None
) -> TrialTable:
    """Read a study of an Optuna storage.

    Complete trials become `finished`, pruned ones `stopped` with their intermediate values as
    learning curves, failed ones `failed`, or `diverged` if they reported a NaN. If the study
    minimises, scores are negated values.

    Args:
        url: Database URL, or the path of a journal file.
        study: Name of the Optuna study.
        description: What was searched, of one loss, with published points and claims; None for the
            ranges that Optuna recorded, without the parameters that some trials lack (conditional
            ones).
        loss: Name of the loss if there is no description; the study's name by default.

    Raises:
        StudyError: The storage or study does not exist, or a trial lacks a hyperparameter of the
            space or has a value outside its range.
    """
    import optuna

    storage = _open_optuna_storage(url)
    try:
        names = optuna.get_all_study_names(storage)
    except Exception as error:  # whatever the database driver raises
        raise StudyError(_no_storage_message(url, error)) from None
    if study not in names:
        raise StudyError(
            f"no Optuna study {study!r} in {redact(url)}; {suggest_nearest_name(study, names)}"
        )
    loaded = optuna.load_study(study_name=study, storage=storage)
    if len(loaded.directions) != 1:
        raise StudyError(
            f"Optuna study {study!r} has {len(loaded.directions)} objectives; only studies with "
            "one can be imported"
        )
    sign = -1.0 if loaded.direction == optuna.study.StudyDirection.MINIMIZE else 1.0
    trials = [t for t in loaded.trials if t.state != optuna.trial.TrialState.WAITING and t.params]
    if not trials:
        raise StudyError(f"Optuna study {study!r} has no trials")
    # Optuna allows enqueued values outside the range that it recorded.
    check_ranges = description is not None
    if description is None:
        observed = _observed_space(loss or study, [t.distributions for t in trials])
        description = SpaceDescription({observed.loss: observed}, {})
    ((name, space),) = description.spaces.items()
    first_step = 1 if any(0 in t.intermediate_values for t in trials) else 0
    full = max(
        (max(t.intermediate_values) + first_step for t in trials if t.intermediate_values),
        default=1,
    )
    rows = []
    for trial in trials:
        steps = {s + first_step: sign * v for s, v in sorted(trial.intermediate_values.items())}
        state, scores = _trial_scores(trial, steps, sign=sign, full=full)
        source = f"trial {trial.number} of Optuna study {study!r}"
        cells = {
            "trial": trial_key(name, trial.number),
            "loss": name,
            "number": trial.number,
            "state": state,
            "seconds": trial.duration.total_seconds() if trial.duration else math.nan,
            "source": source,
            **select_params(trial.params, space, source),
        }
        rows += [{**cells, "epoch": epoch, "score": score} for epoch, score in scores.items()]
    objective = loaded.metric_names[0] if loaded.metric_names else "score"
    description = description.for_log(
        objective=objective if sign > 0 else f"-{objective}", epochs=full
    )
    return build_table(study, pd.DataFrame(rows), description, check_ranges=check_ranges)


def _trial_scores(
    trial: FrozenTrial, steps: dict[int, float], *, sign: float, full: int
) -> tuple[str, dict[int, float]]:
    """Return a trial's state, and its scores by epoch.

    The score after the last epoch is the value that the trial returned, or else the last finite
    value that it reported.
    """
    state = _STATE_BY_OPTUNA_STATE[trial.state.name]
    scores = {step: value for step, value in steps.items() if math.isfinite(value)}
    value = math.nan if trial.value is None else sign * trial.value
    score = value if math.isfinite(value) else next(reversed(scores.values()), math.nan)
    if state in ("finished", "stopped") and not math.isfinite(score):
        state = "diverged"
    if state == "failed" and len(scores) < len(steps):
        state = "diverged"
    last = full if state == "finished" else max(scores, default=0)
    if state not in ("diverged", "failed") or not scores:
        scores[last] = score
    return state, scores


def _observed_space(loss: str, observed: list[dict[str, BaseDistribution]]) -> SearchSpace:
    """Return the parameters that all trials share, each with the widest range that was used."""
    shared = set.intersection(*(set(d) for d in observed))
    if not shared:
        raise StudyError(f"the trials of {loss!r} have no parameter in common")
    params = {
        name: Hyperparameter(_widest_distribution([d[name] for d in observed]), name, "as searched")
        for name in observed[0]
        if name in shared
    }
    return SearchSpace(loss=loss, paper="imported trials", scientific=params)


def _widest_distribution(distributions: list[BaseDistribution]) -> BaseDistribution:
    last = distributions[-1]
    same = [d for d in distributions if type(d) is type(last)]
    if isinstance(last, CategoricalDistribution):
        choices: list[Any] = []
        for d in same:
            assert isinstance(d, CategoricalDistribution)
            choices += [c for c in replace_none_choices(d.choices) if c not in choices]
        return CategoricalDistribution(choices)
    low, high = min(d.low for d in same), max(d.high for d in same)  # type: ignore[attr-defined]
    steps = {d.step for d in same}  # type: ignore[attr-defined]
    step = steps.pop() if len(steps) == 1 and not last.log else None  # type: ignore[attr-defined]
    if step and any(_is_off_grid((d.low - low) / step) for d in same):  # type: ignore[attr-defined]
        step = None  # grids with different offsets: values of one lie between those of the other
    if isinstance(last, IntDistribution):
        return IntDistribution(low, high, log=last.log, step=step or 1)
    assert isinstance(last, FloatDistribution)
    return FloatDistribution(low, high, log=last.log, step=step)


def _is_off_grid(steps: float) -> bool:
    return abs(steps - round(steps)) > 1e-8


def _open_optuna_storage(url: str) -> Any:
    """Open a database URL, or a journal file by its path (with or without `journal://`)."""
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    path = Path(url.removeprefix("journal://"))
    if url.startswith("journal://") or "://" not in url:
        if not path.is_file():
            raise StudyError(f"no journal file {path}")
        return JournalStorage(JournalFileBackend(str(path)))
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        raise StudyError(f"no database file {url.removeprefix('sqlite:///')}")  # or it is created
    try:
        return RDBStorage(url, skip_table_creation=True)
    except Exception as error:  # whatever the database driver raises
        raise StudyError(_no_storage_message(url, error)) from None


def _no_storage_message(url: str, error: Exception) -> str:
    return f"no Optuna storage at {redact(url)}: {redact(first_error_line(error))}"
