"""A forest over knobs and epoch: less smooth than a process, at home next to cliffs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor

from study.analyses.encoding import Encoding
from study.analyses.samples import Array, Samples


@dataclass(frozen=True)
class Forest:
    """One fitted forest and the spread of what it leaves unexplained."""

    model: ExtraTreesRegressor
    encoding: Encoding
    full_epochs: float
    residual: float

    def predict(self, units: Array, epochs: Array) -> tuple[Array, Array, Array]:
        """Mean, spread of a new trial's score (trees and residual), and spread of the trees."""
        votes = self.votes(units, epochs)
        trees = votes.var(axis=0)
        return votes.mean(axis=0), np.sqrt(trees + self.residual**2), np.sqrt(trees)

    def votes(self, units: Array, epochs: Array) -> Array:
        """Trees x rows."""
        # The trees' own predict: the forest's checks cost more than the answer.
        inputs = self.encoding(units, epochs, self.full_epochs).astype(np.float32)
        return np.stack([t.tree_.predict(inputs).ravel() for t in self.model.estimators_])


def grow(samples: Samples, *, seed: int, trees: int = 100) -> Forest:
    """Fit on all rows; the residual is measured out of bag."""
    encoding = Encoding.of(samples.distributions)
    inputs = encoding(samples.units, samples.epochs, samples.full_epochs)
    model = ExtraTreesRegressor(
        n_estimators=trees,
        min_samples_leaf=2,
        bootstrap=True,
        oob_score=trees >= 50,
        max_features=1.0,
        random_state=seed,
        n_jobs=1,
    )
    model.fit(inputs, samples.scores)
    residual = 0.0
    if trees >= 50:
        gap = samples.scores - model.oob_prediction_
        residual = 0.7 * float(np.sqrt(np.nanmean(gap**2)))
    return Forest(model, encoding, samples.full_epochs, residual)


def resample(samples: Samples, rng: np.random.Generator) -> Samples:
    """A bootstrap over points: all trials of a drawn point come along."""
    points = np.unique(samples.point)
    drawn = rng.choice(points, size=len(points), replace=True)
    rows = np.concatenate([np.flatnonzero(samples.point == p) for p in drawn])
    return samples.rows(rows)
