"""How are trials and losses put into MLflow's words?

Nothing here imports MLflow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces import TRAINING_KNOBS, get_space
from search_spaces.space import Space, describe
from study.table import State
from study.tracking.records import TrialRecord, encode, param_key, run_name
from study.tracking.redaction import redact_all

_SEARCHED = ("published", "sobol", "bayes")


def describe_trial(
    record: TrialRecord, space: Space | None, units: Mapping[str, str]
) -> dict[str, Any]:
    """A trial as its run will show it: name, settings with units, tags."""
    settings = {**record.fixed, **record.knobs}
    return {
        "trial": record.trial,
        "loss": record.loss,
        "group": record.group,
        "started": record.started,
        "name": run_name(record, space),
        "params": {param_key(k, units.get(k, "")): encode(v) for k, v in settings.items()},
        "tags": {
            "loss": record.loss,
            "number": str(record.number),
            "origin": record.origin,
            "seed": str(record.seed),
            "split": record.split,
            "point": record.point,
            "anchor": record.anchor,
            "swept": record.swept,
        },
        "more_tags": {key: str(value) for key, value in record.tags.items()},
    }


@dataclass(frozen=True)
class Ending:
    """How a trial ended, as `Tracker.trial_ended` is told."""

    state: State
    error: str
    host: str
    seconds: float | None


def describe_end(
    record: TrialRecord | None,
    score: float | None,
    end: Ending,
    *,
    objective: str,
    secrets: Sequence[str],
) -> dict[str, Any]:
    """How a trial ended, and its score if its loss may boast of it: as the leaderboard, of the
    search alone, since another seed of a point is another draw from the same lottery."""
    last = (end.error.strip().splitlines() or [""])[-1]
    last = redact_all(last, secrets)  # whole, before it is cut
    words = {"state": end.state, "error": last[:500], "host": end.host}
    if end.seconds is not None:
        words["seconds"] = encode(float(end.seconds))
    fields: dict[str, Any] = {"state": end.state, "words": words}
    if record is not None and end.state == "finished" and record.origin in _SEARCHED:
        fields |= {"best": score, "loss": record.loss, "number": record.number}
        fields["objective"] = objective
    return fields


def is_plain(value: object) -> bool:
    """Whether a setting of the protocol is a parameter of the parent run."""
    return isinstance(value, bool | int | float | str)


def units_of(loss: str, space: Space | None) -> dict[str, str]:
    """Units of a loss's settings, those of knobs that this study fixes too."""
    known = dict(TRAINING_KNOBS)
    with contextlib.suppress(ValueError):  # a loss with a space of the user's own
        known |= get_space(loss).searched
    if space is not None:
        known |= space.searched
    return {name: knob.unit for name, knob in known.items() if knob.unit}


def loss_note(space: Space) -> str:
    """The searched knobs as a table, with symbols, units and the published value."""
    published = space.published[0].values if space.published else {}
    rows = [
        f"| {knob.symbol} | `{name}` | {describe(knob.distribution)} | {knob.unit or '1'} "
        f"| {published.get(name, '')} | {space.role(name)} |"
        for name, knob in space.searched.items()
    ]
    head = ["| symbol | knob | range | unit | published | role |", "|---|---|---|---|---|---|"]
    return "\n".join([f"**{space.loss}**: {space.paper}", "", *head, *rows])


def dataset_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The data set of a plan as MLflow logs one: its name, and what else is known of it."""
    info = plan.get("dataset") or plan.get("protocol", {}).get("dataset") or {}
    return {"name": info} if isinstance(info, str) else dict(info)
