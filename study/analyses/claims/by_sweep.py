"""What do measured sweeps say about a claim on a hyperparameter?

A sweep is direct evidence: trials that differ only in the hyperparameter, several seeds each, with
no surrogate between them and the verdict. It describes one setting of the other hyperparameters,
the one it varies around; sweeps around two points with opposite verdicts leave the claim open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from search_spaces.claims import BetterValue, GoodValue, Sensitive, StableRange
from study.analyses.claims.by_model import judge_gain
from study.analyses.claims.values import (
    ParamTest,
    build_claimed_grid,
    build_full_grid,
    build_side_grid,
    mask_claimed_positions,
)
from study.analyses.claims.verdict import ClaimVerdict, two_sided_verdict
from study.analyses.range_cost import assess_range_cost
from study.analyses.response_curves import CONFIDENCE_LEVEL
from study.analyses.sweep_posterior import draw_sweep_means
from study.analyses.sweeps import ParamSweep, collect_sweeps
from study.trials.selection import select_validation_trials
from study.trials.table import TrialTable

MAX_UNIT_GAP_TO_SWEPT_VALUE = 0.13
"""A position of a claimed range counts as measured if a swept value is this close to it."""


@dataclass(frozen=True)
class _SweepQuestion:
    """A claim as a sweep has to answer it.

    Args:
        confidence: Probability at which the answer is a verdict.
        worst_score: Score of a diverged trial.
    """

    test: ParamTest
    distribution: BaseDistribution
    tolerance: float
    settle: str
    confidence: float
    worst_score: float
    seed: int


def judge_by_sweeps(
    table: TrialTable, loss: str, test: ParamTest, tolerance: float, *, settle: str, seed: int = 0
) -> ClaimVerdict | None:
    """Return the verdict of the sweeps; None if no sweep concerns the claim."""
    sweeps = [s for s in collect_sweeps(table, loss) if s.param == test.knob]
    question = _SweepQuestion(
        test,
        table.spaces[loss].distributions[test.knob],
        tolerance,
        settle,
        # Bonferroni: several sweeps together are wrong no more often than stated.
        confidence=1 - (1 - CONFIDENCE_LEVEL) / max(len(sweeps), 1),
        worst_score=float(select_validation_trials(table, loss)["score"].min()),
        seed=seed,
    )
    judge = _judge_side_gain if isinstance(test, BetterValue) else _judge_value_cost
    verdicts = [
        replace(verdict, evidence=f"{sweep.size_text}: {verdict.evidence}")
        for sweep in sweeps
        if (verdict := judge(sweep, question)) is not None
    ]
    return _reconcile_sweeps(verdicts, settle) if verdicts else None


def combine_verdicts(direct: ClaimVerdict | None, modelled: ClaimVerdict) -> ClaimVerdict:
    """Return one verdict from the sweeps and the model; its `basis` is what decided.

    Sweeps come first, because only seed noise stands between them and the claim. The model, which
    has learned from the same trials and from all others, decides where they cannot.
    """
    if direct is None:
        return modelled
    if direct.basis == "sweep":
        evidence = f"measured, {direct.evidence}"
        if modelled.verdict not in (direct.verdict, "cannot tell"):
            evidence += f". The model disagrees: {modelled.evidence}"
        return replace(direct, evidence=evidence)
    evidence = f"{modelled.evidence.rstrip('.')}. Sweeps alone cannot tell: {direct.evidence}"
    return replace(modelled, evidence=evidence)


def _reconcile_sweeps(verdicts: Sequence[ClaimVerdict], settle: str) -> ClaimVerdict:
    decided = [v for v in verdicts if v.verdict != "cannot tell"]
    if not decided:
        return verdicts[0]
    if len({v.verdict for v in decided}) == 1:
        return decided[0]
    evidence = "; but ".join(f"{v.verdict} by {v.evidence}" for v in decided)
    return ClaimVerdict("cannot tell", float("nan"), evidence, settle, basis="sweep")


def _judge_value_cost(sweep: ParamSweep, question: _SweepQuestion) -> ClaimVerdict | None:
    """Judge what the claimed values cost compared with the best of the sweep."""
    test, distribution = question.test, question.distribution
    assert isinstance(test, StableRange | GoodValue | Sensitive)
    grid = build_claimed_grid(distribution, test)
    if isinstance(grid, str):
        return None
    inside = mask_claimed_positions(distribution, sweep.units, grid)
    # If the claim holds, the values of the range are equivalent; the others can be anything.
    alike = inside if isinstance(test, StableRange) else np.ones(len(inside), dtype=bool)
    draws = draw_sweep_means(sweep, alike, worst=question.worst_score, seed=question.seed)
    if draws is None or not inside.any() or len(inside) < 2:
        return None
    what = "the range costs" if isinstance(test, Sensitive) else "claimed values cost"
    flat, steep, evidence = assess_range_cost(draws, draws[:, inside], question.tolerance, what)
    if not _covers_claim(sweep, question, grid, inside):
        flat = min(flat, 0.5)
        evidence += ", not measured everywhere"
    true, false = (steep, flat) if isinstance(test, Sensitive) else (flat, steep)
    return two_sided_verdict(
        true, false, evidence, question.settle, basis="sweep", confidence=question.confidence
    )


def _covers_claim(
    sweep: ParamSweep, question: _SweepQuestion, grid: np.ndarray, inside: np.ndarray
) -> bool:
    """Whether all claimed values, and all values that might be better, were measured."""
    if isinstance(question.test, GoodValue):
        # The value of the incumbent is the best of a complete search.
        if "incumbent" in sweep.anchor:
            return True
        grid, inside = build_full_grid(question.distribution), np.ones_like(inside)
    is_choice = isinstance(question.distribution, CategoricalDistribution)
    reach = 1e-9 if is_choice else MAX_UNIT_GAP_TO_SWEPT_VALUE
    return bool((np.abs(grid[:, None] - sweep.units[None, inside]).min(axis=1) <= reach).all())


def _judge_side_gain(sweep: ParamSweep, question: _SweepQuestion) -> ClaimVerdict | None:
    """Judge whether one side of a comparison is better than the other."""
    test = question.test
    assert isinstance(test, BetterValue)
    alike = np.zeros(len(sweep.values), dtype=bool)
    draws = draw_sweep_means(sweep, alike, worst=question.worst_score, seed=question.seed)
    sides = []
    for side in (test.better, test.worse):
        grid = build_side_grid(question.distribution, test.knob, side)
        if isinstance(grid, str) or draws is None:
            return None
        inside = mask_claimed_positions(question.distribution, sweep.units, grid)
        if not inside.any():
            return None
        sides.append(draws[:, inside].mean(axis=1))
    verdict = judge_gain(
        sides[0] - sides[1],
        question.tolerance,
        question.settle,
        confidence=question.confidence,
    )
    return verdict if verdict.basis == "nothing" else replace(verdict, basis="sweep")
