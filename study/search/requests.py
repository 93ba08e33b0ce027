"""Trainings that are asked for by name: sweeps and confirmations.

Pure functions from a plan and its best points to jobs; the ledger gives them their keys and runs
each once, however often it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from search_spaces.scale import from_unit, to_unit
from search_spaces.space import Value
from study.errors import StudyError, nearest
from study.jobs import Job
from study.plan import Plan
from study.table import KNOB
from trainables.seeding import derive

Points = Mapping[str, Mapping[str, Value]]
UNNUMBERED = -1
SAME = 1e-6
"""Of a knob's range: values closer than this are one."""


def sweep_jobs(
    plan: Plan,
    incumbents: Points,
    *,
    knobs: Sequence[str],
    losses: Sequence[str],
    values: int,
    seeds: int,
) -> list[Job]:
    """One knob at a time, around the published point and around the incumbent.

    Args:
        plan: The study.
        incumbents: The best point of each loss that has one.
        knobs: Which knobs vary.
        losses: Which losses; one that has no such knob is passed over.
        values: Values per knob, evenly spread over its range on its own scale; the anchor's own
            value is always one of them.
        seeds: Seeds per value.

    Raises:
        StudyError: No loss has the knob, or there is no anchor.
    """
    known = {k for loss in losses for k in plan.spaces[loss].searched}
    for knob in knobs:
        if knob not in known:
            raise StudyError(f"no loss of the study searches {knob!r}; {nearest(knob, known)}")
    jobs = []
    for loss in losses:
        anchors = _anchors(plan, incumbents, loss)
        if not anchors:
            raise StudyError(f"{loss} has neither a published point nor a finished trial")
        for anchor, point in anchors.items():
            for knob in knobs:
                if knob in plan.spaces[loss].searched:
                    for value in sweep_values(plan, loss, knob, point[knob], values):
                        moved = {**point, knob: value}
                        jobs += [
                            _job(plan, loss, moved, "sweep", seed, anchor=anchor, swept=knob)
                            for seed in range(seeds)
                        ]
    return jobs


def sweep_values(plan: Plan, loss: str, knob: str, own: Value, count: int) -> list[Value]:
    """`count` values over the knob's range, ends included, and the anchor's own."""
    distribution = plan.spaces[loss].distributions[knob]
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)  # type: ignore[arg-type]
    spread = [from_unit(distribution, i / (count - 1)) for i in range(count)]
    # A step may fall on the anchor's value but for the last digit: it would be trained twice.
    away = abs(to_unit(distribution, spread) - to_unit(distribution, [own])) > SAME
    return sorted({own, *(value for value, far in zip(spread, away, strict=True) if far)})


def confirm_jobs(plan: Plan, incumbents: Points) -> list[Job]:
    """The best point of each loss and its published one, on the test classes, with fresh seeds.

    Every point gets the same seeds, so that differences can be tested in pairs. None of them was
    used in the search: the winning trial is not in its own interval.
    """
    jobs = []
    for loss in plan.losses:
        for anchor, point in _anchors(plan, incumbents, loss).items():
            jobs += [
                _job(plan, loss, point, "confirm", seed, anchor=anchor)
                for seed in range(plan.file.protocol.confirm_seeds)
            ]
    return jobs


def confirm_seed(plan: Plan, index: int) -> int:
    """The seed of a confirmation; the first one's network is kept."""
    return derive(plan.file.search.seed, "confirm", index) % 2**31


def _anchors(plan: Plan, incumbents: Points, loss: str) -> dict[str, dict[str, Value]]:
    anchors = {}
    if plan.spaces[loss].published:
        anchors["published"] = dict(plan.spaces[loss].published[0].values)
    if loss in incumbents and dict(incumbents[loss]) != anchors.get("published"):
        anchors["incumbent"] = dict(incumbents[loss])
    return anchors


def _job(
    plan: Plan,
    loss: str,
    values: Mapping[str, Value],
    origin: str,
    index: int,
    *,
    anchor: str,
    swept: str = "",
) -> Job:
    return Job(
        trial="",
        loss=loss,
        number=UNNUMBERED,
        origin=origin,  # type: ignore[arg-type]
        values=dict(values),
        seed=derive(plan.file.search.seed, origin, index) % 2**31,
        split="test" if origin == "confirm" else "validation",
        anchor=anchor,
        swept=swept,
    )


def jobs_from_points(plan: Plan, points: pd.DataFrame, *, reason: str) -> list[Job]:
    """Points that an analysis asks for, as jobs.

    Args:
        plan: The study.
        points: Columns `loss`, `origin`, `anchor`, `swept`, `seed` and one `knob.NAME` per knob.
        reason: Anchor of points that have none (`refine`, `claim`), so that they can be told apart.

    The search's own counts stay as they are: a point that an analysis wants is no Sobol point and
    none of the sampler's, whatever it would narrow.
    """
    jobs = []
    for row in points.to_dict("records"):
        loss = str(row["loss"])
        distributions = plan.spaces[loss].distributions
        values = {k: plain_value(d, row[KNOB + k]) for k, d in distributions.items()}
        origin = "confirm" if row["origin"] == "confirm" else "sweep"
        anchor = str(row["anchor"] or reason)
        index = int(row["seed"])
        swept = str(row["swept"] or "")
        jobs.append(_job(plan, loss, values, origin, index, anchor=anchor, swept=swept))
    return jobs


def plain_value(distribution: BaseDistribution, value: Any) -> Value:
    """A table's cell as the plain value that its distribution draws."""
    if isinstance(distribution, CategoricalDistribution):
        return next(c for c in distribution.choices if c == value)  # type: ignore[return-value]
    return int(value) if isinstance(distribution, IntDistribution) else float(value)
