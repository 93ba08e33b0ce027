"""Divergence model: the probability that a trial diverges at a point."""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier

from study.analyses.surrogate.encoding import InputEncoding
from study.analyses.surrogate.forest import bootstrap_points
from study.analyses.surrogate.observations import FloatArray, LossObservations

MIN_DIVERGED_TRIALS = 4
"""With fewer diverged trials than this, the number is reported but not modelled."""


class DivergenceModel:
    """Probability that a full-length trial diverges, as bootstrap draws."""

    def __init__(self, observations: LossObservations, *, seed: int, draws: int = 8) -> None:
        rng = np.random.default_rng(seed)
        rows = observations.select_rows(observations.last)
        self.encoding = InputEncoding.from_distributions(observations.distributions)
        self.full_epochs = observations.full_epochs
        self.models = []
        for b in range(draws):
            resampled = bootstrap_points(rows, rng)
            if resampled.diverged.all() or not resampled.diverged.any():
                resampled = rows
            model = ExtraTreesClassifier(
                n_estimators=16, min_samples_leaf=3, max_features=1.0, random_state=seed + b
            )
            model.fit(self._encode_inputs(resampled.units), resampled.diverged)
            self.models.append(model)

    def __call__(self, units: FloatArray) -> FloatArray:
        """Return probabilities, draws x points."""
        inputs = self._encode_inputs(units).astype(np.float32)
        # Tree-level predict: the input checks of the forest cost more than the prediction.
        votes = [
            np.mean([t.tree_.predict(inputs).reshape(len(inputs), -1)[:, -1] for t in m], axis=0)
            for m in self.models
        ]
        return np.stack(votes)

    def _encode_inputs(self, units: FloatArray) -> FloatArray:
        # The last epoch is a consequence of diverging, not a cause: all rows get the same one.
        return self.encoding(units, np.full(len(units), self.full_epochs), self.full_epochs)


def fit_divergence_model(
    observations: LossObservations, *, seed: int = 0
) -> DivergenceModel | None:
    """Fit the model; None if too few trials, or all of them, diverged."""
    count = int(observations.diverged.sum())
    if count < MIN_DIVERGED_TRIALS or count == observations.n_trials:
        return None
    return DivergenceModel(observations, seed=seed)
