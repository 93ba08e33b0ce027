"""Descriptions of trials, losses and data sets as the fields of spooled records.

Nothing here imports MLflow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces import TRAINING_PARAMS, get_space
from search_spaces.space import SearchSpace, describe_distribution
from study.tracking.records import TrialRecord, encode_value, param_key, run_name
from study.trials.job import Job
from study.trials.table import SEARCH_ORIGINS, TrialStateName
from study.utils.redaction import redact_json

_MAX_ERROR_LENGTH = 500
_JOB_TAGS = ("loss", "number", "origin", "seed", "split", "point", "anchor", "swept")


def describe_trial(
    record: TrialRecord, space: SearchSpace | None, units: Mapping[str, str]
) -> dict[str, Any]:
    """Return the fields of a trial that its run shows: name, settings with units, and tags.

    Args:
        record: The trial.
        space: Search space of its loss, if known.
        units: Unit by name of a setting.
    """
    job = record.job
    settings = {**record.fixed, **job.params}
    return {
        "trial": job.trial,
        "loss": job.loss,
        "group": record.group,
        "started": record.started,
        "name": run_name(job, space),
        "params": {param_key(k, units.get(k, "")): encode_value(v) for k, v in settings.items()},
        "tags": {name: str(getattr(job, name)) for name in _JOB_TAGS},
        "more_tags": {key: str(value) for key, value in record.tags.items()},
    }


@dataclass(frozen=True)
class TrialEnd:
    """End of a trial, as `Tracker.end_trial` receives it."""

    state: TrialStateName
    error: str
    host: str
    seconds: float | None


def describe_trial_end(
    job: Job | None,
    score: float | None,
    end: TrialEnd,
    *,
    objective: str,
    secrets: Sequence[str],
) -> dict[str, Any]:
    """Return the fields of a trial's end, with its score if it competes for the loss's best.

    As on the leaderboard, only search trials compete: repeated seeds would give the same point
    further chances.

    Args:
        job: The trial's job; None if its start is unknown.
        score: Its last score, if any.
        end: How it ended.
        objective: Name of the score.
        secrets: Texts to redact from the error.
    """
    last_line = (end.error.strip().splitlines() or [""])[-1]
    last_line = redact_json(last_line, secrets)  # before it is cut, which could split a secret
    tags = {"state": end.state, "error": last_line[:_MAX_ERROR_LENGTH], "host": end.host}
    if end.seconds is not None:
        tags["seconds"] = encode_value(float(end.seconds))
    fields: dict[str, Any] = {"state": end.state, "words": tags}
    if job is not None and end.state == "finished" and job.origin in SEARCH_ORIGINS:
        fields |= {"best": score, "loss": job.loss, "number": job.number}
        fields["objective"] = objective
    return fields


def is_scalar_value(value: object) -> bool:
    """Whether a protocol setting can be a parameter of the study's run."""
    return isinstance(value, bool | int | float | str)


def param_units(loss: str, space: SearchSpace | None) -> dict[str, str]:
    """Return the units of a loss's settings, including those that this study does not search."""
    params = dict(TRAINING_PARAMS)
    with contextlib.suppress(ValueError):  # a loss whose space the user defined
        params |= get_space(loss).searched_params
    if space is not None:
        params |= space.searched_params
    return {name: param.unit for name, param in params.items() if param.unit}


def format_loss_note(space: SearchSpace) -> str:
    """Return the searched hyperparameters as a Markdown table, with the published values."""
    published = space.published[0].values if space.published else {}
    rows = [
        f"| {param.symbol} | `{name}` | {describe_distribution(param.distribution)} "
        f"| {param.unit or '1'} | {published.get(name, '')} | {space.param_role(name)} |"
        for name, param in space.searched_params.items()
    ]
    head = "| symbol | hyperparameter | range | unit | published | role |"
    return "\n".join(
        [f"**{space.loss}**: {space.paper}", "", head, "|---|---|---|---|---|---|", *rows]
    )


def describe_dataset(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data set of a plan as MLflow logs one: its name and its other properties."""
    info = plan.get("dataset") or plan.get("protocol", {}).get("dataset") or {}
    return {"name": info} if isinstance(info, str) else dict(info)
