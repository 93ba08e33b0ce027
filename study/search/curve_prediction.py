"""What will a trial reach, and can it still become the best?

Full-length trials of a loss teach how early scores go on: at a few epochs their final score is
regressed on the score there and on what was gained since half the way. A fast learner that has
settled low and a slow one that still rises are told apart by that gain, which their rank at a rung
cannot do. A trial whose final score stays below the incumbent's, with the certainty asked for, is
not worth finishing; where early scores say little the band is wide, and nobody is stopped.

Trials are stopped by what the regression sees, not by how they would have ended, so that only the
promising ones being finished does not bend it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from study.jobs import Outcome

CERTAINTY = 0.99
"""Probability of staying below the incumbent, above which a trial is stopped."""
LEAST_FINISHED = 8
"""Full-length trials without which no final score is foretold."""
_TERMS = 3

Array = NDArray[np.float64]


def check_epochs(epochs: int, grace: int) -> list[int]:
    """The epochs at which final scores are foretold: each a third further than the one before."""
    checks = []
    epoch = grace
    while epoch < epochs:
        checks.append(epoch)
        epoch = max(epoch + 1, math.ceil(epoch * 4 / 3))
    return checks


class Outlook:
    """The final scores of one loss's trials, foretold from their learning curves.

    Memory does not grow with the number of epochs: only sums over finished trials are held, and of
    open ones the scores at the check epochs.

    Args:
        epochs: Length of a full trial.
        grace: No check before this epoch.
        rungs: Further epochs at which trials may be stopped.
    """

    def __init__(self, *, epochs: int, grace: int, rungs: Sequence[int] = ()) -> None:
        self.checks = sorted({*check_epochs(epochs, grace), *rungs})
        self._open: dict[str, dict[int, float]] = {}
        self._fits = {epoch: _Fit() for epoch in self.checks}

    def report(self, trial: str, epoch: int, score: float) -> None:
        """A trial's score after an epoch."""
        if epoch in self._fits and math.isfinite(score):
            self._open.setdefault(trial, {})[epoch] = score

    def replay(self, trial: str, curve: Mapping[int, float]) -> None:
        """A recorded learning curve."""
        for epoch, score in curve.items():
            self.report(trial, epoch, score)

    def ended(self, trial: str, outcome: Outcome) -> None:
        """A trial ended; a finished one teaches."""
        curve = self._open.pop(trial, {})
        if outcome.state == "finished":
            for epoch in curve:
                self._fits[epoch].add(self._terms(curve, epoch), outcome.score)

    def is_hopeless(self, trial: str, epoch: int, goal: float) -> bool | None:
        """Whether a trial will end below a goal, almost certainly; None while nobody can tell."""
        curve = self._open.get(trial, {})
        if epoch not in curve or self._fits[epoch].count < LEAST_FINISHED:
            return None
        return self._fits[epoch].upper(self._terms(curve, epoch)) < goal

    def value(self, trial: str, outcome: Outcome) -> float | None:
        """The score a stopped trial would have reached; None while no finished one can tell."""
        fit, curve = self._fits.get(outcome.epochs), self._open.get(trial, {})
        if fit is None or not fit.count or outcome.epochs not in curve:
            return None
        if fit.count < LEAST_FINISHED:
            return outcome.score + fit.mean_gain
        return fit.mean(self._terms(curve, outcome.epochs))

    def _terms(self, curve: Mapping[int, float], epoch: int) -> Array:
        half = [e for e in self.checks if 2 * e <= epoch and e in curve]
        gain = curve[epoch] - curve[half[-1]] if half else 0.0
        return np.array([1.0, curve[epoch], gain])


class _Fit:
    """A regression of the final score, held as sums: asking takes the same time always."""

    def __init__(self) -> None:
        self.count = 0
        self._gram = np.zeros((_TERMS, _TERMS))
        self._cross = np.zeros(_TERMS)
        self._square = 0.0
        self._gains = 0.0

    @property
    def mean_gain(self) -> float:
        """What finished trials gained from here on, on average."""
        return self._gains / self.count

    def add(self, terms: Array, final: float) -> None:
        """A finished trial."""
        self.count += 1
        self._gram += np.outer(terms, terms)
        self._cross += terms * final
        self._square += final * final
        self._gains += final - float(terms[1])

    def mean(self, terms: Array) -> float:
        """The final score to be expected."""
        return float(terms @ (self._inverse()[0] @ self._cross))

    def upper(self, terms: Array) -> float:
        """The bound that the final score stays below, with the certainty asked for."""
        from scipy.stats import t

        inverse, rank = self._inverse()
        weights, freedom = inverse @ self._cross, self.count - rank
        # Scores have four digits that count: a perfect fit is no certainty.
        least = 1e-8 * self._square / self.count
        left = max((self._square - float(weights @ self._cross)) / freedom, least)
        spread = math.sqrt(left * (1.0 + float(terms @ inverse @ terms)))
        return float(terms @ weights) + float(t.ppf(CERTAINTY, freedom)) * spread

    def _inverse(self) -> tuple[Array, int]:
        """Of the sums of products, without directions in which trials do not differ; its rank."""
        values, vectors = np.linalg.eigh(self._gram)
        kept = values > 1e-10 * values[-1]
        inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
        return inverse, int(kept.sum())
