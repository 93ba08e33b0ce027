"""Final scores are predicted from curves, with intervals that keep promising trials running."""

from __future__ import annotations

import math

import numpy as np
import pytest

from study.search.curve_prediction import (
    MIN_TRIALS_TO_PREDICT,
    CurvePredictor,
    list_prediction_epochs,
)
from study.trials.job import TrialOutcome

EPOCHS = 9


def curve(end: float, speed: float) -> dict[int, float]:
    """Return a curve from 0.2 towards `end`."""
    return {e: end - (end - 0.2) * math.exp(-speed * e) for e in range(1, EPOCHS + 1)}


def add_finished_trials(predictor: CurvePredictor, ends: list[float], speeds: list[float]) -> None:
    for i, (end, speed) in enumerate(zip(ends, speeds, strict=True)):
        scores = curve(end, speed)
        predictor.replay_curve(f"w{i}", scores)
        predictor.end_trial(f"w{i}", TrialOutcome("finished", EPOCHS, scores[EPOCHS]))


def trained_predictor(count: int = 16) -> CurvePredictor:
    """Train on slow learners that end high and fast ones that end low: their curves cross."""
    rng = np.random.default_rng(0)
    speeds = rng.uniform(0.1, 1.0, count)
    ends = 0.9 - 0.4 * speeds + 0.02 * rng.standard_normal(count)
    predictor = CurvePredictor(epochs=EPOCHS, grace=1)
    add_finished_trials(predictor, list(ends), list(speeds))
    return predictor


def test_the_number_of_prediction_epochs_is_bounded() -> None:
    assert list_prediction_epochs(9, 1) == [1, 2, 3, 4, 6, 8]
    assert list_prediction_epochs(9, 5) == [5, 7]
    assert list_prediction_epochs(5, 5) == list_prediction_epochs(0, 1) == []
    assert len(list_prediction_epochs(1000, 1)) < 25


def test_a_rising_trial_continues_and_one_that_settled_low_is_stopped() -> None:
    """Although the second is far ahead of the first at that epoch."""
    predictor = trained_predictor()
    slow, fast = curve(0.85, 0.12), curve(0.5, 0.95)
    assert fast[4] > slow[4]
    predictor.replay_curve("slow", {e: slow[e] for e in (1, 2, 3, 4)})
    predictor.replay_curve("fast", {e: fast[e] for e in (1, 2, 3, 4)})
    goal = 0.6
    assert slow[EPOCHS] > goal > fast[EPOCHS]
    assert predictor.cannot_reach("slow", 4, goal) is False
    assert predictor.cannot_reach("fast", 4, goal) is True
    assert predictor.cannot_reach("fast", 4, 0.3) is False
    assert predictor.cannot_reach("fast", 5, goal) is None, "no prediction at this epoch"


def test_no_trial_is_stopped_where_early_scores_say_nothing() -> None:
    predictor, rng = CurvePredictor(epochs=EPOCHS, grace=1), np.random.default_rng(1)
    for i in range(30):
        predictor.report_score(f"w{i}", 2, float(rng.random()))
        predictor.end_trial(f"w{i}", TrialOutcome("finished", EPOCHS, float(rng.random())))
    predictor.report_score("low", 2, 0.0)
    assert predictor.cannot_reach("low", 2, 0.9) is False


def test_no_trial_is_stopped_before_enough_have_finished() -> None:
    few = trained_predictor(MIN_TRIALS_TO_PREDICT - 1)
    few.replay_curve("x", {1: 0.0, 2: 0.0})
    assert few.cannot_reach("x", 2, 5.0) is None
    enough = trained_predictor(MIN_TRIALS_TO_PREDICT)
    enough.replay_curve("x", {1: 0.2, 2: 0.2})
    assert enough.cannot_reach("x", 2, 5.0)


def test_a_trial_equal_to_the_incumbent_continues() -> None:
    """A perfect fit leaves some uncertainty."""
    predictor = CurvePredictor(epochs=EPOCHS, grace=1)
    add_finished_trials(predictor, [0.6] * 10, [0.5] * 10)
    same = curve(0.6, 0.5)
    predictor.replay_curve("same", {e: same[e] for e in (1, 2, 3)})
    assert predictor.cannot_reach("same", 3, same[EPOCHS]) is False


def test_the_final_score_of_a_stopped_trial_is_predicted() -> None:
    predictor, scores = trained_predictor(), curve(0.7, 0.4)
    predictor.replay_curve("x", {e: scores[e] for e in range(1, 5)})
    predicted = predictor.predict_final_score("x", TrialOutcome("stopped", 4, scores[4]))
    assert predicted == pytest.approx(scores[EPOCHS], abs=0.03)
    assert (
        CurvePredictor(epochs=EPOCHS, grace=1).predict_final_score(
            "x", TrialOutcome("stopped", 4, 0.5)
        )
        is None
    )


def test_few_finished_trials_predict_by_their_mean_gain() -> None:
    predictor = CurvePredictor(epochs=EPOCHS, grace=1)
    predictor.report_score("x", 2, 0.3)
    for i, gain in enumerate((0.1, 0.3)):
        predictor.report_score(f"w{i}", 2, 0.5)
        predictor.end_trial(f"w{i}", TrialOutcome("finished", EPOCHS, 0.5 + gain))
    predictor.end_trial("d", TrialOutcome("diverged", 3, math.nan))
    assert predictor.predict_final_score("x", TrialOutcome("stopped", 2, 0.3)) == pytest.approx(0.5)
