"""What do measured sweeps say about a claim on a knob?

A sweep is direct evidence: trials that differ in the knob and in nothing else, several seeds each,
and no surrogate between them and the verdict. It speaks of one setting of the other knobs, the one
it varies around; sweeps around two points that say opposite things leave the claim open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from search_spaces.claims import BetterValue, GoodValue, Sensitive, StableRange
from study.analyses.claimed import KnobTest, claimed_grid, side_grid, whole_grid, within
from study.analyses.knob_claims import of_gain
from study.analyses.response import SURE
from study.analyses.samples import searching
from study.analyses.sweep_draws import draw
from study.analyses.sweeps import Sweep, measured
from study.analyses.verdicts import Judgement, either, swing
from study.table import TrialTable

REACH = 0.13
"""A place of a claimed range is measured when a swept value lies so near, on the knob's scale."""


@dataclass(frozen=True)
class _Question:
    """A claim as it is put to a sweep: how sure an answer must be, what a diverged trial scores."""

    test: KnobTest
    distribution: BaseDistribution
    tolerance: float
    settle: str
    sure: float
    worst: float
    seed: int


def judge(
    table: TrialTable, loss: str, test: KnobTest, tolerance: float, *, settle: str, seed: int = 0
) -> Judgement | None:
    """The verdict of the sweeps of the knob; None when none of them bears on the claim."""
    found = [s for s in measured(table, loss) if s.knob == test.knob]
    question = _Question(
        test,
        table.spaces[loss].distributions[test.knob],
        tolerance,
        settle,
        # Each of several sweeps may be wrong: together no more often than stated.
        sure=1 - (1 - SURE) / max(len(found), 1),
        worst=float(searching(table, loss)["score"].min()),
        seed=seed,
    )
    ask = _better if isinstance(test, BetterValue) else _cost
    said = [
        replace(judged, evidence=f"{sweep.size}: {judged.evidence}")
        for sweep in found
        if (judged := ask(sweep, question)) is not None
    ]
    return _together(said, settle) if said else None


def combine(direct: Judgement | None, modelled: Judgement) -> Judgement:
    """One verdict of what was measured and what the model says; its `basis` is what decided.

    Measurements come first, since nothing but seeds stands between them and the claim. The model,
    which has learned from the same trials and from all others, decides where they cannot.
    """
    if direct is None:
        return modelled
    if direct.basis == "sweep":
        words = f"measured, {direct.evidence}"
        if modelled.verdict not in (direct.verdict, "cannot tell"):
            words += f". The model disagrees: {modelled.evidence}"
        return replace(direct, evidence=words)
    words = f"{modelled.evidence.rstrip('.')}. Sweeps alone cannot tell: {direct.evidence}"
    return replace(modelled, evidence=words)


def _together(said: Sequence[Judgement], settle: str) -> Judgement:
    sure = [j for j in said if j.verdict != "cannot tell"]
    if not sure:
        return said[0]
    if len({j.verdict for j in sure}) == 1:
        return sure[0]
    words = "; but ".join(f"{j.verdict} by {j.evidence}" for j in sure)
    return Judgement("cannot tell", float("nan"), words, settle, basis="sweep")


def _cost(sweep: Sweep, asked: _Question) -> Judgement | None:
    """What the claimed values cost beside the best of the sweep."""
    test, distribution = asked.test, asked.distribution
    assert isinstance(test, StableRange | GoodValue | Sensitive)
    grid = claimed_grid(distribution, test)
    if isinstance(grid, str):
        return None
    inside = within(distribution, sweep.units, grid)
    # Values of a claimed range are alike if it is right; what lies beside it may be anything.
    alike = inside if isinstance(test, StableRange) else np.ones(len(inside), dtype=bool)
    draws = draw(sweep, alike, worst=asked.worst, seed=asked.seed)
    if draws is None or not inside.any() or len(inside) < 2:
        return None
    what = "the range costs" if isinstance(test, Sensitive) else "claimed values cost"
    flat, steep, evidence = swing(draws, draws[:, inside], asked.tolerance, what)
    if not _covered(sweep, asked, grid, inside):
        flat = min(flat, 0.5)
        evidence += ", not measured all along"
    true, false = (steep, flat) if isinstance(test, Sensitive) else (flat, steep)
    return either(true, false, evidence, asked.settle, basis="sweep", sure=asked.sure)


def _covered(sweep: Sweep, asked: _Question, grid: np.ndarray, inside: np.ndarray) -> bool:
    """Whether there are no claimed values, nor better ones, that nobody measured."""
    if isinstance(asked.test, GoodValue):
        # The incumbent's own value is the best that a whole search found.
        if "incumbent" in sweep.anchor:
            return True
        grid, inside = whole_grid(asked.distribution), np.ones_like(inside)
    reach = 1e-9 if isinstance(asked.distribution, CategoricalDistribution) else REACH
    return bool((np.abs(grid[:, None] - sweep.units[None, inside]).min(axis=1) <= reach).all())


def _better(sweep: Sweep, asked: _Question) -> Judgement | None:
    """Whether one side of a comparison beats the other."""
    test = asked.test
    assert isinstance(test, BetterValue)
    draws = draw(sweep, np.zeros(len(sweep.values), dtype=bool), worst=asked.worst, seed=asked.seed)
    sides = []
    for side in (test.better, test.worse):
        grid = side_grid(asked.distribution, test.knob, side)
        if isinstance(grid, str) or draws is None:
            return None
        inside = within(asked.distribution, sweep.units, grid)
        if not inside.any():
            return None
        sides.append(draws[:, inside].mean(axis=1))
    gain = of_gain(sides[0] - sides[1], asked.tolerance, asked.settle, sure=asked.sure)
    return gain if gain.basis == "nothing" else replace(gain, basis="sweep")
