"""Requested jobs: sweeps, confirmations and points that analyses suggest.

These are pure functions from a plan and its best points to jobs. The scheduler assigns their trial
keys and runs each job once, even if it is requested again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from search_spaces.space import ParamValue
from search_spaces.unit_scale import from_unit, to_unit
from study.config.plan import Plan
from study.errors import StudyError, suggest_nearest_name
from study.trials.job import Job
from study.trials.table import PARAM_PREFIX
from trainables.utils.seeding import derive_seed

PointsByLoss = Mapping[str, Mapping[str, ParamValue]]
UNNUMBERED_JOB = -1
SAME_VALUE_TOLERANCE = 1e-6
"""Values closer than this fraction of a hyperparameter's range are the same value."""


def make_sweep_jobs(
    plan: Plan,
    incumbents: PointsByLoss,
    *,
    params: Sequence[str],
    losses: Sequence[str],
    values: int,
    seeds: int,
) -> list[Job]:
    """Return jobs that vary one hyperparameter at a time around the anchor points of each loss.

    The anchors are the published point and the incumbent.

    Args:
        plan: Plan of the study.
        incumbents: Best point of each loss that has one.
        params: Hyperparameters to vary.
        losses: Losses to sweep; a loss that does not search a hyperparameter is skipped.
        values: Number of values per hyperparameter, evenly spaced over its range on its own scale;
            the value of the anchor is always added.
        seeds: Number of seeds per value.

    Raises:
        StudyError: If no loss searches a hyperparameter, or a loss has no anchor.
    """
    searched = {k for loss in losses for k in plan.spaces[loss].searched_params}
    for param in params:
        if param not in searched:
            raise StudyError(
                f"no loss of the study searches {param!r}; {suggest_nearest_name(param, searched)}"
            )
    jobs = []
    for loss in losses:
        anchors = _anchor_points(plan, incumbents, loss)
        if not anchors:
            raise StudyError(
                f"{loss} has neither a published point nor a finished trial to sweep around"
            )
        for anchor, point in anchors.items():
            for param in params:
                if param in plan.spaces[loss].searched_params:
                    for value in sweep_values(plan, loss, param, point[param], values):
                        moved = {**point, param: value}
                        jobs += [
                            _make_request_job(
                                plan, loss, moved, "sweep", seed, anchor=anchor, swept=param
                            )
                            for seed in range(seeds)
                        ]
    return jobs


def sweep_values(
    plan: Plan, loss: str, param: str, anchor_value: ParamValue, count: int
) -> list[ParamValue]:
    """Return `count` values over a hyperparameter's range, ends included, and the anchor's."""
    distribution = plan.spaces[loss].distributions[param]
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)  # type: ignore[arg-type]
    grid = [from_unit(distribution, i / (count - 1)) for i in range(count)]
    # A grid value may equal the anchor's except for rounding: it would be trained twice.
    distances = abs(to_unit(distribution, grid) - to_unit(distribution, [anchor_value]))
    others = [v for v, d in zip(grid, distances, strict=True) if d > SAME_VALUE_TOLERANCE]
    return sorted({anchor_value, *others})


def make_confirm_jobs(plan: Plan, incumbents: PointsByLoss) -> list[Job]:
    """Return jobs on the test classes with fresh seeds, at the anchor points of each loss.

    All points share the same seeds, so that differences can be tested in pairs. The search used
    none of these seeds, so that the best trial's score is not part of its own interval.
    """
    jobs = []
    for loss in plan.losses:
        for anchor, point in _anchor_points(plan, incumbents, loss).items():
            jobs += [
                _make_request_job(plan, loss, point, "confirm", seed, anchor=anchor)
                for seed in range(plan.file.protocol.confirm_seeds)
            ]
    return jobs


def confirm_seed(plan: Plan, index: int) -> int:
    """Return the seed of confirmation `index`; the network of index 0 is kept."""
    return derive_seed(plan.file.search.seed, "confirm", index) % 2**31


def _anchor_points(
    plan: Plan, incumbents: PointsByLoss, loss: str
) -> dict[str, dict[str, ParamValue]]:
    anchors = {}
    if plan.spaces[loss].published:
        anchors["published"] = dict(plan.spaces[loss].published[0].values)
    if loss in incumbents and dict(incumbents[loss]) != anchors.get("published"):
        anchors["incumbent"] = dict(incumbents[loss])
    return anchors


def _make_request_job(
    plan: Plan,
    loss: str,
    params: Mapping[str, ParamValue],
    origin: str,
    index: int,
    *,
    anchor: str,
    swept: str = "",
) -> Job:
    return Job(
        trial="",
        loss=loss,
        number=UNNUMBERED_JOB,
        origin=origin,  # type: ignore[arg-type]
        params=dict(params),
        seed=derive_seed(plan.file.search.seed, origin, index) % 2**31,
        split="test" if origin == "confirm" else "validation",
        anchor=anchor,
        swept=swept,
    )


def jobs_from_points(plan: Plan, points: pd.DataFrame, *, reason: str) -> list[Job]:
    """Return the points that an analysis suggests as jobs.

    They do not change the counts of the search: a suggested point is neither a Sobol point nor a
    sampled one.

    Args:
        plan: Plan of the study.
        points: Columns `loss`, `origin`, `anchor`, `swept`, `seed` and one `knob.NAME` per
            hyperparameter.
        reason: Anchor of points without one (`refine`, `claim`), to distinguish them.
    """
    jobs = []
    for row in points.to_dict("records"):
        loss = str(row["loss"])
        distributions = plan.spaces[loss].distributions
        params = {k: to_param_value(d, row[PARAM_PREFIX + k]) for k, d in distributions.items()}
        origin = "confirm" if row["origin"] == "confirm" else "sweep"
        anchor = str(row["anchor"] or reason)
        index = int(row["seed"])
        swept = str(row["swept"] or "")
        jobs.append(
            _make_request_job(plan, loss, params, origin, index, anchor=anchor, swept=swept)
        )
    return jobs


def to_param_value(distribution: BaseDistribution, value: Any) -> ParamValue:
    """Convert a table cell to the plain value that its distribution draws."""
    if isinstance(distribution, CategoricalDistribution):
        return next(c for c in distribution.choices if c == value)  # type: ignore[return-value]
    return int(value) if isinstance(distribution, IntDistribution) else float(value)
