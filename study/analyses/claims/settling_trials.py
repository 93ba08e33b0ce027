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
    Claim,
    CostRatio,
    FasterLoss,
    GoodValue,
    HigherMetric,
    Sensitive,
    StableRange,
)
from search_spaces.scale import from_unit, to_unit
from search_spaces.space import in_range
from study.analyses import claims
from study.analyses.claimed import choices_within, claimed_grid, side_grid
from study.analyses.comparison import confirmed_scores
from study.analyses.loss_model import LossModel
from study.analyses.noise import seed_noise
from study.analyses.samples import point_position, unit_levels
from study.analyses.sweeps import anchor_values, measured
from study.table import KNOB, TrialTable

FLAT = 10.0
"""Seeds per value that show a flat curve to be within a tolerance of one seed's deviation."""

POINT_COLUMNS = ("loss", "origin", "anchor", "swept", "seed", "why")
"""Columns of every frame of points to run, besides one `knob.NAME` per knob."""


def settle(
    table: TrialTable,
    models: Mapping[str, LossModel],
    *,
    only: tuple[str, str] | None = None,
    most_seeds: int = 10,
) -> pd.DataFrame:
    """The trials to run for every open claim (or for `only` = (loss, claim name)).

    Claims about a knob get a sweep from the incumbent; claims about losses get fresh confirmation
    seeds of both incumbents, which validation scores chose: a test score chooses nothing. Claims
    that no trial of this study could decide get none.

    Returns `POINT_COLUMNS` and one `knob.NAME` per knob; rows that occur for two claims once.
    """
    rows: list[dict[str, Any]] = []
    for loss, space in table.spaces.items():
        for claim in space.claims:
            if only is not None and only != (loss, claim.name):
                continue
            judged = claims.judge(table, models, loss, claim)
            if judged.verdict == "cannot tell":
                rows += _points(table, models, loss, claim, most_seeds)
    frame = pd.DataFrame(rows)
    if frame.empty:
        return pd.DataFrame(columns=list(POINT_COLUMNS))
    same = [c for c in frame.columns if c != "why"]
    return frame.loc[~frame[same].astype(str).duplicated()].reset_index(drop=True)


def priced(
    table: TrialTable,
    models: Mapping[str, LossModel],
    judged: pd.DataFrame,
    *,
    most_seeds: int = 10,
) -> pd.DataFrame:
    """The frame of `claims.analyse` with the number of trials behind what would settle a claim."""
    words = []
    for row in judged.to_dict("records"):
        text, loss = str(row["settle"]), str(row["loss"])
        if text:
            named = {c.name: c for c in table.spaces[loss].claims}
            count = len(_points(table, models, loss, named[str(row["claim"])], most_seeds))
            text += f" {count} trials." if count else ""
        words.append(text)
    return judged.assign(settle=words)


def _points(
    table: TrialTable, models: Mapping[str, LossModel], loss: str, claim: Claim, most: int
) -> list[dict[str, Any]]:
    test = claim.test
    if isinstance(test, BetterLoss | FasterLoss | CostRatio | HigherMetric):
        other = claims.host_of(loss) if test.other == "HOST" else test.other
        if other not in table.spaces:
            return []
        seeds = _confirm_seeds(table, loss, other, most)
        return [r for name in (loss, other) for r in _confirm(table, name, seeds, claim)]
    return _sweep(table, models, loss, claim, most)


def _sweep(
    table: TrialTable, models: Mapping[str, LossModel], loss: str, claim: Claim, most: int
) -> list[dict[str, Any]]:
    """Values that the claim speaks of, around the best point, as many seeds as they lack."""
    test, space = claim.test, table.spaces[loss]
    assert isinstance(test, StableRange | GoodValue | BetterValue | Sensitive)
    base = anchor_values(table, loss, "incumbent")
    if test.knob not in space.searched or base is None:
        return []
    distribution = space.distributions[test.knob]
    sides = (test.better, test.worse) if isinstance(test, BetterValue) else ()
    grids = [side_grid(distribution, test.knob, side) for side in sides]
    if not isinstance(test, BetterValue):
        grids = [claimed_grid(distribution, test)]
    wanted = _wanted(distribution, test)
    if not wanted or any(isinstance(grid, str) for grid in grids):
        return []  # what was not searched no sweep of this study reaches
    values = _distinct([base[test.knob], *wanted], distribution)
    have = _measured_seeds(table, loss, test.knob, base, values)
    # A sweep that is all there and still leaves the claim open gets more seeds, within reason.
    enough = max(_sweep_seeds(models[loss].tolerance, table, loss, most), min(have) + 3)
    return [
        {
            "loss": loss,
            "origin": "sweep",
            "anchor": "incumbent",
            "swept": test.knob,
            "seed": seed,
            "why": f"{loss}: {claim.name}",
            **{KNOB + k: (value if k == test.knob else base[k]) for k in base},
        }
        for value, there in zip(values, have, strict=True)
        for seed in range(there, min(enough, most))
    ]


def _measured_seeds(
    table: TrialTable, loss: str, knob: str, base: Mapping[str, Any], values: list[Any]
) -> list[int]:
    """How many seeds a sweep of the knob around the point has at each value already."""
    distributions = table.spaces[loss].distributions
    names, ranges = list(distributions), list(distributions.values())
    there = [
        (point_position({**sweep.base, knob: value}, names, ranges), len(by_seed))
        for sweep in measured(table, loss)
        if sweep.knob == knob and "incumbent" in sweep.anchor
        for value, by_seed in zip(sweep.values, sweep.scores, strict=True)
    ]
    wanted = [point_position({**base, knob: value}, names, ranges) for value in values]
    return [max((n for at, n in there if np.allclose(at, here)), default=0) for here in wanted]


def _wanted(
    distribution: BaseDistribution, test: StableRange | GoodValue | BetterValue | Sensitive
) -> list[Any]:
    """Values of the knob that the claim is about; empty when none of them was searched."""
    if isinstance(test, GoodValue):
        return [test.value]
    if isinstance(test, BetterValue):
        sides = (test.better, test.worse)
        return [v for side in sides for v in _side(distribution, side)]
    if isinstance(test, StableRange):
        if isinstance(distribution, CategoricalDistribution):
            # The choices beside the range too: within it they must not cost more than these.
            inside = choices_within(distribution, test.low, test.high)
            return list(distribution.choices) if inside else []
        ends = [float(distribution.low), float(distribution.high)]  # type: ignore[attr-defined]
        low = ends[0] if test.low is None else max(test.low, ends[0])
        high = ends[1] if test.high is None else min(test.high, ends[1])
        if low > high:
            return []
        first, last = (float(u) for u in to_unit(distribution, [low, high]))
        return [from_unit(distribution, p) for p in np.linspace(first, last, 5)]
    levels = unit_levels(distribution, most=9)
    places = np.linspace(0.0, 1.0, 7) if levels is None else levels
    return [from_unit(distribution, p) for p in places]


def _side(distribution: BaseDistribution, side: float | str | tuple[float, float]) -> list[Any]:
    """Values of one side of a comparison: the value, or some of its range."""
    if not isinstance(side, tuple):
        return [side]
    if isinstance(distribution, CategoricalDistribution):
        return choices_within(distribution, *side)
    return list(np.linspace(*side, 3))


def _distinct(values: list[Any], distribution: Any) -> list[Any]:
    """Values that can be drawn, once each, snapped to the knob's steps."""
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


def _sweep_seeds(tolerance: float, table: TrialTable, loss: str, most: int) -> int:
    """Seeds after which a sweep that is truly flat would be called so; 3 at least."""
    sigma = seed_noise(table, loss).sigma
    if not (np.isfinite(sigma) and np.isfinite(tolerance) and tolerance > 0):
        return 3
    return int(np.clip(math.ceil(FLAT * (sigma / tolerance) ** 2), 3, most))


def _confirm_seeds(table: TrialTable, loss: str, other: str, most: int) -> list[int]:
    """Fresh seeds: as many as the difference seen so far needs at 95 %, three when unknown."""
    a, b = confirmed_scores(table, loss), confirmed_scores(table, other)
    sigma = seed_noise(table).sigma
    needed = 5
    if len(a) and len(b) and np.isfinite(sigma):
        gap = max(abs(float(a.mean() - b.mean())), 1e-9)
        needed = math.ceil(2 * (1.96 * sigma / gap) ** 2) + 2 - min(len(a), len(b))
    used = [int(s) for s in table.trials.loc[table.trials["split"] == "test", "seed"]]
    first = max(used, default=999) + 1
    return list(range(first, first + int(np.clip(needed, 3, most))))


def _confirm(table: TrialTable, loss: str, seeds: list[int], claim: Claim) -> list[dict[str, Any]]:
    base = anchor_values(table, loss, "incumbent")
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
            **{KNOB + k: v for k, v in base.items()},
        }
        for seed in seeds
    ]
