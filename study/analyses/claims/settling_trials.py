"""Which trials would turn a "cannot tell" into a verdict?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution

from search_spaces.claims import (
    BetterLoss,
    BetterValue,
    CostRatio,
    FasterLoss,
    GoodValue,
    HigherMetric,
    PaperClaim,
    Sensitive,
    StableRange,
)
from search_spaces.space import in_range
from search_spaces.unit_scale import from_unit, to_unit
from study.analyses.claims import judge
from study.analyses.claims.values import build_claimed_grid, build_side_grid, find_choices_within
from study.analyses.loss_comparison import get_confirmed_scores
from study.analyses.loss_model import LossModel
from study.analyses.surrogate.observations import get_unit_levels, point_to_unit_cube
from study.analyses.surrogate.seed_noise import estimate_seed_noise
from study.analyses.sweeps import collect_sweeps, get_anchor_params
from study.trials.table import PARAM_PREFIX, TrialTable

SEEDS_TO_SHOW_FLATNESS = 10.0
"""Seeds per value needed to show that a flat curve stays within a tolerance of one seed sigma."""

POINT_COLUMNS = ("loss", "origin", "anchor", "swept", "seed", "why")
"""Columns of every frame of points to run, besides one `knob.NAME` per hyperparameter."""


def suggest_settling_trials(
    table: TrialTable,
    models: Mapping[str, LossModel],
    *,
    only: tuple[str, str] | None = None,
    max_seeds: int = 10,
) -> pd.DataFrame:
    """Suggest the trials to run for every open claim.

    Claims about a hyperparameter get a sweep around the incumbent; claims about losses get fresh
    confirmation seeds of both incumbents, which were chosen by validation scores: test scores never
    select a point. Claims that no trial of this study can decide get none.

    Args:
        only: Restrict to this (loss, claim name).
        max_seeds: Maximum number of seeds per value.

    Returns:
        `POINT_COLUMNS` and one `knob.NAME` per hyperparameter, without duplicate points.
    """
    rows: list[dict[str, Any]] = []
    for loss, space in table.spaces.items():
        for claim in space.claims:
            if only is not None and only != (loss, claim.name):
                continue
            if judge.judge_claim(table, models, loss, claim).verdict == "cannot tell":
                rows += _settling_points(table, models, loss, claim, max_seeds)
    frame = pd.DataFrame(rows)
    if frame.empty:
        return pd.DataFrame(columns=list(POINT_COLUMNS))
    point_columns = [c for c in frame.columns if c != "why"]
    return frame.loc[~frame[point_columns].astype(str).duplicated()].reset_index(drop=True)


def add_trial_counts(
    table: TrialTable,
    models: Mapping[str, LossModel],
    claims: pd.DataFrame,
    *,
    max_seeds: int = 10,
) -> pd.DataFrame:
    """Add to the `settle` column of `analyse_claims` how many trials would be needed."""
    texts = []
    for row in claims.to_dict("records"):
        text, loss = str(row["settle"]), str(row["loss"])
        if text:
            by_name = {c.name: c for c in table.spaces[loss].claims}
            claim = by_name[str(row["claim"])]
            count = len(_settling_points(table, models, loss, claim, max_seeds))
            if count:
                text = f"{text.rstrip('.')} ({count} trials)."
        texts.append(text)
    return claims.assign(settle=texts)


def _settling_points(
    table: TrialTable, models: Mapping[str, LossModel], loss: str, claim: PaperClaim, max_seeds: int
) -> list[dict[str, Any]]:
    test = claim.test
    if isinstance(test, BetterLoss | FasterLoss | CostRatio | HigherMetric):
        other = judge.host_loss_name(loss) if test.other == "HOST" else test.other
        if other not in table.spaces:
            return []
        seeds = _choose_confirmation_seeds(table, loss, other, max_seeds)
        return [
            r for name in (loss, other) for r in _confirmation_points(table, name, seeds, claim)
        ]
    return _sweep_points(table, models, loss, claim, max_seeds)


def _sweep_points(
    table: TrialTable, models: Mapping[str, LossModel], loss: str, claim: PaperClaim, max_seeds: int
) -> list[dict[str, Any]]:
    """Return the claimed values around the best point, with the seeds that they lack."""
    test, space = claim.test, table.spaces[loss]
    assert isinstance(test, StableRange | GoodValue | BetterValue | Sensitive)
    base = get_anchor_params(table, loss, "incumbent")
    if test.knob not in space.searched_params or base is None:
        return []
    distribution = space.distributions[test.knob]
    sides = (test.better, test.worse) if isinstance(test, BetterValue) else ()
    grids = [build_side_grid(distribution, test.knob, side) for side in sides]
    if not isinstance(test, BetterValue):
        grids = [build_claimed_grid(distribution, test)]
    claimed = _claimed_values(distribution, test)
    if not claimed or any(isinstance(grid, str) for grid in grids):
        return []  # values outside the searched range cannot be swept in this study
    values = _drop_duplicate_values([base[test.knob], *claimed], distribution)
    measured = _count_measured_seeds(table, loss, test.knob, base, values)
    # A complete sweep that still leaves the claim open gets more seeds, up to `max_seeds`.
    enough = max(
        _required_sweep_seeds(models[loss].tolerance, table, loss, max_seeds), min(measured) + 3
    )
    return [
        {
            "loss": loss,
            "origin": "sweep",
            "anchor": "incumbent",
            "swept": test.knob,
            "seed": seed,
            "why": f"{loss}: {claim.name}",
            **{PARAM_PREFIX + k: (value if k == test.knob else base[k]) for k in base},
        }
        for value, n_seeds in zip(values, measured, strict=True)
        for seed in range(n_seeds, min(enough, max_seeds))
    ]


def _count_measured_seeds(
    table: TrialTable, loss: str, param: str, base: Mapping[str, Any], values: list[Any]
) -> list[int]:
    """Return how many seeds sweeps around the point have at each value already."""
    distributions = table.spaces[loss].distributions
    names, ranges = list(distributions), list(distributions.values())
    measured = [
        (point_to_unit_cube({**sweep.base_params, param: value}, names, ranges), len(by_seed))
        for sweep in collect_sweeps(table, loss)
        if sweep.param == param and "incumbent" in sweep.anchor
        for value, by_seed in zip(sweep.values, sweep.scores, strict=True)
    ]
    points = [point_to_unit_cube({**base, param: value}, names, ranges) for value in values]
    return [max((n for at, n in measured if np.allclose(at, point)), default=0) for point in points]


def _claimed_values(
    distribution: BaseDistribution, test: StableRange | GoodValue | BetterValue | Sensitive
) -> list[Any]:
    """Return the values that the claim is about; empty if none was searched."""
    if isinstance(test, GoodValue):
        return [test.value]
    if isinstance(test, BetterValue):
        sides = (test.better, test.worse)
        return [v for side in sides for v in _side_values(distribution, side)]
    if isinstance(test, StableRange):
        if isinstance(distribution, CategoricalDistribution):
            # All choices: those in the range must not cost more than those outside.
            inside = find_choices_within(distribution, test.low, test.high)
            return list(distribution.choices) if inside else []
        ends = [float(distribution.low), float(distribution.high)]  # type: ignore[attr-defined]
        low = ends[0] if test.low is None else max(test.low, ends[0])
        high = ends[1] if test.high is None else min(test.high, ends[1])
        if low > high:
            return []
        first, last = (float(u) for u in to_unit(distribution, [low, high]))
        return [from_unit(distribution, p) for p in np.linspace(first, last, 5)]
    levels = get_unit_levels(distribution, max_levels=9)
    positions = np.linspace(0.0, 1.0, 7) if levels is None else levels
    return [from_unit(distribution, p) for p in positions]


def _side_values(
    distribution: BaseDistribution, side: float | str | tuple[float, float]
) -> list[Any]:
    """Return the values of one side of a comparison: the value, or some of its range."""
    if not isinstance(side, tuple):
        return [side]
    if isinstance(distribution, CategoricalDistribution):
        return find_choices_within(distribution, *side)
    return list(np.linspace(*side, 3))


def _drop_duplicate_values(values: list[Any], distribution: Any) -> list[Any]:
    """Return the values in range, snapped to the steps of the distribution, without duplicates."""
    out: list[Any] = []
    for value in values:
        if not in_range(distribution, value):
            continue
        snapped = from_unit(distribution, float(to_unit(distribution, [value])[0]))
        close = any(
            s == snapped or (isinstance(s, float) and math.isclose(s, float(snapped), rel_tol=1e-6))
            for s in out
        )
        if not close:
            out.append(snapped)
    return out


def _required_sweep_seeds(tolerance: float, table: TrialTable, loss: str, max_seeds: int) -> int:
    """Return the seeds after which a truly flat sweep would be judged flat; at least 3."""
    sigma = estimate_seed_noise(table, loss).sigma
    if not (np.isfinite(sigma) and np.isfinite(tolerance) and tolerance > 0):
        return 3
    return int(np.clip(math.ceil(SEEDS_TO_SHOW_FLATNESS * (sigma / tolerance) ** 2), 3, max_seeds))


def _choose_confirmation_seeds(
    table: TrialTable, loss: str, other: str, max_seeds: int
) -> list[int]:
    """Return fresh seeds: as many as the current difference needs at 95 %, at least three."""
    a, b = get_confirmed_scores(table, loss), get_confirmed_scores(table, other)
    sigma = estimate_seed_noise(table).sigma
    needed = 5
    if len(a) and len(b) and np.isfinite(sigma):
        gap = max(abs(float(a.mean() - b.mean())), 1e-9)
        needed = math.ceil(2 * (1.96 * sigma / gap) ** 2) + 2 - min(len(a), len(b))
    used = [int(s) for s in table.trials.loc[table.trials["split"] == "test", "seed"]]
    first = max(used, default=999) + 1
    return list(range(first, first + int(np.clip(needed, 3, max_seeds))))


def _confirmation_points(
    table: TrialTable, loss: str, seeds: list[int], claim: PaperClaim
) -> list[dict[str, Any]]:
    base = get_anchor_params(table, loss, "incumbent")
    if base is None:
        return []
    return [
        {
            "loss": loss,
            "origin": "confirm",
            "anchor": "",
            "swept": "",
            "seed": seed,
            "why": f"{loss}: {claim.name}",
            **{PARAM_PREFIX + k: v for k, v in base.items()},
        }
        for seed in seeds
    ]
