"""Random forest over hyperparameters and epoch: rougher than a process, better next to jumps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor

from study.analyses.surrogate.encoding import InputEncoding
from study.analyses.surrogate.observations import FloatArray, LossObservations


@dataclass(frozen=True)
class ForestModel:
    """A fitted forest and the standard deviation of its residuals."""

    model: ExtraTreesRegressor
    encoding: InputEncoding
    full_epochs: float
    residual_sd: float

    def predict(
        self, units: FloatArray, epochs: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return mean, deviation of a new trial's score, and deviation of the trees alone."""
        votes = self.predict_per_tree(units, epochs)
        trees = votes.var(axis=0)
        return votes.mean(axis=0), np.sqrt(trees + self.residual_sd**2), np.sqrt(trees)

    def predict_per_tree(self, units: FloatArray, epochs: FloatArray) -> FloatArray:
        """Return the predictions of each tree: trees x rows."""
        # Tree-level predict: the input checks of the forest cost more than the prediction.
        inputs = self.encoding(units, epochs, self.full_epochs).astype(np.float32)
        return np.stack([t.tree_.predict(inputs).ravel() for t in self.model.estimators_])


def fit_forest(observations: LossObservations, *, seed: int, trees: int = 100) -> ForestModel:
    """Fit a forest to all rows; the residual is measured out of bag."""
    encoding = InputEncoding.from_distributions(observations.distributions)
    inputs = encoding(observations.units, observations.epochs, observations.full_epochs)
    model = ExtraTreesRegressor(
        n_estimators=trees,
        min_samples_leaf=2,
        bootstrap=True,
        oob_score=trees >= 50,
        max_features=1.0,
        random_state=seed,
        n_jobs=1,
    )
    model.fit(inputs, observations.scores)
    residual = 0.0
    if trees >= 50:
        gap = observations.scores - model.oob_prediction_
        residual = 0.7 * float(np.sqrt(np.nanmean(gap**2)))
    return ForestModel(model, encoding, observations.full_epochs, residual)


def bootstrap_points(observations: LossObservations, rng: np.random.Generator) -> LossObservations:
    """Draw a bootstrap sample over points; all trials of a drawn point are included."""
    points = np.unique(observations.point)
    drawn = rng.choice(points, size=len(points), replace=True)
    rows = np.concatenate([np.flatnonzero(observations.point == p) for p in drawn])
    return observations.select_rows(rows)
