"""Learning-curve prediction: the pruner that decides once enough trials of a loss have finished.

At a few epochs, the final score of full-length trials is regressed on the score at that epoch and
on the gain since half of that epoch. The gain distinguishes a fast learner that has plateaued low
from a slow one that is still rising, which the rank at a rung cannot do. A trial is stopped if its
final score stays below the incumbent's with probability `STOP_CONFIDENCE`. Where early scores say
little, the prediction interval is wide and no trial is stopped.

Trials are stopped based on the regressors alone, not on how they would have finished. Finishing
only the promising trials therefore does not bias the regression.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from study.trials.job import TrialOutcome

STOP_CONFIDENCE = 0.99
"""A trial is stopped if it stays below the incumbent with at least this probability."""
MIN_TRIALS_TO_PREDICT = 8
"""Number of full-length trials needed before final scores are predicted."""
_N_REGRESSORS = 3

Array = NDArray[np.float64]


def list_prediction_epochs(epochs: int, grace: int) -> list[int]:
    """Return the epochs at which final scores are predicted, each a third later than the last."""
    prediction_epochs = []
    epoch = grace
    while epoch < epochs:
        prediction_epochs.append(epoch)
        epoch = max(epoch + 1, math.ceil(epoch * 4 / 3))
    return prediction_epochs


class CurvePredictor:
    """Predicts the final scores of one loss's trials from their learning curves.

    Memory does not grow with the number of epochs: it holds sums over finished trials, and for open
    trials only the scores at the prediction epochs.

    Args:
        epochs: Length of a full trial.
        grace: There is no prediction before this epoch.
        rungs: Further epochs at which trials may be stopped.
    """

    def __init__(self, *, epochs: int, grace: int, rungs: Sequence[int] = ()) -> None:
        self.prediction_epochs = sorted({*list_prediction_epochs(epochs, grace), *rungs})
        self._open_curves: dict[str, dict[int, float]] = {}
        self._regressions = {epoch: _OnlineRegression() for epoch in self.prediction_epochs}

    def report_score(self, trial: str, epoch: int, score: float) -> None:
        """Record the score of a trial after an epoch."""
        if epoch in self._regressions and math.isfinite(score):
            self._open_curves.setdefault(trial, {})[epoch] = score

    def replay_curve(self, trial: str, curve: Mapping[int, float]) -> None:
        """Record a learning curve read from the journal."""
        for epoch, score in curve.items():
            self.report_score(trial, epoch, score)

    def end_trial(self, trial: str, outcome: TrialOutcome) -> None:
        """Close the curve of a trial; a finished trial is added to the regressions."""
        curve = self._open_curves.pop(trial, {})
        if outcome.state == "finished":
            for epoch in curve:
                self._regressions[epoch].add_trial(
                    self._make_regressors(curve, epoch), outcome.score
                )

    def cannot_reach(self, trial: str, epoch: int, goal: float) -> bool | None:
        """Whether a trial almost certainly ends below `goal`; None while this is unpredictable."""
        curve = self._open_curves.get(trial, {})
        if epoch not in curve or self._regressions[epoch].n_trials < MIN_TRIALS_TO_PREDICT:
            return None
        return (
            self._regressions[epoch].predict_upper_bound(self._make_regressors(curve, epoch)) < goal
        )

    def predict_final_score(self, trial: str, outcome: TrialOutcome) -> float | None:
        """Return the score a stopped trial would have reached; None if no trial has finished."""
        regression = self._regressions.get(outcome.epochs)
        curve = self._open_curves.get(trial, {})
        if regression is None or not regression.n_trials or outcome.epochs not in curve:
            return None
        if regression.n_trials < MIN_TRIALS_TO_PREDICT:
            return outcome.score + regression.mean_gain
        return regression.predict_mean(self._make_regressors(curve, outcome.epochs))

    def _make_regressors(self, curve: Mapping[int, float], epoch: int) -> Array:
        earlier = [e for e in self.prediction_epochs if 2 * e <= epoch and e in curve]
        gain = curve[epoch] - curve[earlier[-1]] if earlier else 0.0
        return np.array([1.0, curve[epoch], gain])


class _OnlineRegression:
    """Linear regression of the final score, stored as sums so that predicting is O(1)."""

    def __init__(self) -> None:
        self.n_trials = 0
        self._gram_matrix = np.zeros((_N_REGRESSORS, _N_REGRESSORS))
        self._cross_products = np.zeros(_N_REGRESSORS)
        self._sum_of_squares = 0.0
        self._sum_of_gains = 0.0

    @property
    def mean_gain(self) -> float:
        """Mean gain of finished trials from this epoch to their last."""
        return self._sum_of_gains / self.n_trials

    def add_trial(self, regressors: Array, final_score: float) -> None:
        """Add a finished trial."""
        self.n_trials += 1
        self._gram_matrix += np.outer(regressors, regressors)
        self._cross_products += regressors * final_score
        self._sum_of_squares += final_score * final_score
        self._sum_of_gains += final_score - float(regressors[1])

    def predict_mean(self, regressors: Array) -> float:
        """Return the expected final score."""
        return float(regressors @ (self._invert_gram_matrix()[0] @ self._cross_products))

    def predict_upper_bound(self, regressors: Array) -> float:
        """Return the bound that the final score stays below with `STOP_CONFIDENCE`."""
        from scipy.stats import t

        inverse, rank = self._invert_gram_matrix()
        weights, freedom = inverse @ self._cross_products, self.n_trials - rank
        # Scores have four significant digits: even a perfect fit leaves some variance.
        least_variance = 1e-8 * self._sum_of_squares / self.n_trials
        residual = (self._sum_of_squares - float(weights @ self._cross_products)) / freedom
        variance = max(residual, least_variance)
        spread = math.sqrt(variance * (1.0 + float(regressors @ inverse @ regressors)))
        return float(regressors @ weights) + float(t.ppf(STOP_CONFIDENCE, freedom)) * spread

    def _invert_gram_matrix(self) -> tuple[Array, int]:
        """Return the pseudo-inverse, without directions in which trials do not differ; its rank."""
        values, vectors = np.linalg.eigh(self._gram_matrix)
        is_kept = values > 1e-10 * values[-1]
        inverse = (vectors[:, is_kept] / values[is_kept]) @ vectors[:, is_kept].T
        return inverse, int(is_kept.sum())
