"""A study from an Optuna storage."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial

from search_spaces.space import Knob, Space
from study.errors import StudyError, nearest
from study.importing.rows import (
    as_value,
    first_line,
    make_curve,
    make_point,
    make_row,
    make_table,
    plain_choices,
    without_secret,
)
from study.table import TrialTable

_STATES = {"COMPLETE": "finished", "PRUNED": "stopped", "FAIL": "failed", "RUNNING": "running"}


def read_optuna(
    url: str, study: str, *, loss: str | None = None, space: Space | None = None
) -> TrialTable:
    """A study from an Optuna storage: a database URL, or the path of a journal file.

    Complete trials are finished, pruned ones stopped with their intermediate values as learning
    curves, failed ones failed, or diverged if they reported a NaN. A study that minimises is turned
    around (score = -value). Knobs that some trials lack (conditional ones) are left out. Pass
    `space` for published points and claims.

    Raises:
        StudyError: There is no such storage or study, or a trial lacks a knob of the space or has
            a value outside its range.
    """
    import optuna

    storage = _storage(url)
    try:
        known = optuna.get_all_study_names(storage)
    except Exception as error:  # whatever the database driver raises
        raise StudyError(
            f"no Optuna storage at {without_secret(url)}: {first_line(error)}"
        ) from None
    if study not in known:
        raise StudyError(f"no Optuna study {study!r} there; {nearest(study, known)}")
    loaded = optuna.load_study(study_name=study, storage=storage)
    if len(loaded.directions) != 1:
        raise StudyError(f"Optuna study {study!r} has {len(loaded.directions)} objectives, not one")
    sign = -1.0 if loaded.direction == optuna.study.StudyDirection.MINIMIZE else 1.0
    trials = [t for t in loaded.trials if t.state != optuna.trial.TrialState.WAITING and t.params]
    if not trials:
        raise StudyError(f"Optuna study {study!r} has no trials")
    name = loss or (study if space is None else space.loss)
    if space is None:
        space = _observed_space(name, [t.distributions for t in trials])
        ranges = space.distributions
        points = [{k: as_value(d, t.params[k]) for k, d in ranges.items()} for t in trials]
    else:
        points = [
            make_point(t.params, space, f"trial {t.number} of Optuna study {study!r}")
            for t in trials
        ]
    zero = any(0 in t.intermediate_values for t in trials)
    full = max(
        (max(t.intermediate_values) + zero for t in trials if t.intermediate_values), default=1
    )
    rows, curves = [], []
    for trial, point in zip(trials, points, strict=True):
        steps = {s + zero: sign * v for s, v in sorted(trial.intermediate_values.items())}
        steps = {s: v for s, v in steps.items() if math.isfinite(v)}
        rows.append(_row(trial, name, point, steps, sign=sign, full=full))
        curves += make_curve(rows[-1]["trial"], steps.items())
    objective = loaded.metric_names[0] if loaded.metric_names else "score"
    protocol = {"objective": objective if sign > 0 else f"-{objective}", "epochs": full}
    return make_table(study, rows, curves, {name: space}, protocol, None)


def _row(
    trial: FrozenTrial,
    loss: str,
    point: dict[str, Any],
    steps: dict[int, float],
    *,
    sign: float,
    full: int,
) -> dict[str, Any]:
    """One trial; the value it returned is its score, else the last one it reported."""
    state = _STATES[trial.state.name]
    value = math.nan if trial.value is None else sign * trial.value
    score = value if math.isfinite(value) else next(reversed(steps.values()), math.nan)
    if state in ("finished", "stopped") and not math.isfinite(score):
        state = "diverged"
    if state == "failed" and not all(map(math.isfinite, trial.intermediate_values.values())):
        state = "diverged"
    return make_row(
        trial=f"{loss}-{trial.number:04d}",
        loss=loss,
        number=trial.number,
        point=point,
        score=score if state not in ("diverged", "failed") else math.nan,
        state=state,
        epochs=full if state == "finished" else max(steps, default=0),
        seconds=trial.duration.total_seconds() if trial.duration else math.nan,
    )


def _observed_space(loss: str, observed: list[dict[str, BaseDistribution]]) -> Space:
    """The knobs all trials share, each with the widest range that was used."""
    shared = set.intersection(*(set(d) for d in observed))
    if not shared:
        raise StudyError(f"the trials of {loss!r} have no parameter in common")
    knobs = {
        name: Knob(_widest([d[name] for d in observed]), name, "as searched")
        for name in observed[0]
        if name in shared
    }
    return Space(loss=loss, paper="imported trials", scientific=knobs)


def _widest(distributions: list[BaseDistribution]) -> BaseDistribution:
    last = distributions[-1]
    same = [d for d in distributions if type(d) is type(last)]
    if isinstance(last, CategoricalDistribution):
        choices: list[Any] = []
        for d in same:
            assert isinstance(d, CategoricalDistribution)
            choices += [c for c in plain_choices(d.choices) if c not in choices]
        return CategoricalDistribution(choices)
    low, high = min(d.low for d in same), max(d.high for d in same)  # type: ignore[attr-defined]
    steps = {d.step for d in same}  # type: ignore[attr-defined]
    step = steps.pop() if len(steps) == 1 and not last.log else None  # type: ignore[attr-defined]
    if step and any(_between((d.low - low) / step) for d in same):  # type: ignore[attr-defined]
        step = None  # grids that do not meet: what one allows lies between the other's values
    if isinstance(last, IntDistribution):
        return IntDistribution(low, high, log=last.log, step=step or 1)
    assert isinstance(last, FloatDistribution)
    return FloatDistribution(low, high, log=last.log, step=step)


def _between(steps: float) -> bool:
    return abs(steps - round(steps)) > 1e-8


def _storage(url: str) -> Any:
    """A database URL, or a journal file by its path (with or without `journal://`)."""
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
        raise StudyError(
            f"no Optuna storage at {without_secret(url)}: {first_line(error)}"
        ) from None
