"""Where does training fail?

Diverged trials have no score, but they are data: dropping them would hide the cliff, and giving
them a made-up score would bend the model of the others. So the chance of divergence is modelled on
its own, by forests on bootstraps of the trials.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from optuna.distributions import CategoricalDistribution
from scipy.stats import beta
from sklearn.ensemble import ExtraTreesClassifier

from search_spaces.scale import from_unit
from study.analyses.encoding import Encoding
from study.analyses.forest import resample
from study.analyses.samples import Array, Samples, positions, searching, snap
from study.table import KNOB, TrialTable

LEAST = 4
"""Fewer diverged trials than this are told, not modelled."""


class Risk:
    """The chance that a full trial diverges, as bootstrap draws."""

    def __init__(self, samples: Samples, *, seed: int, draws: int = 8) -> None:
        rng = np.random.default_rng(seed)
        rows = samples.rows(samples.last)
        self.encoding = Encoding.of(samples.distributions)
        self.full = samples.full_epochs
        self.models = []
        for b in range(draws):
            drawn = resample(rows, rng)
            if drawn.diverged.all() or not drawn.diverged.any():
                drawn = rows
            model = ExtraTreesClassifier(
                n_estimators=16, min_samples_leaf=3, max_features=1.0, random_state=seed + b
            )
            model.fit(self._inputs(drawn.units), drawn.diverged)
            self.models.append(model)

    def __call__(self, units: Array) -> Array:
        """Draws x points."""
        inputs = self._inputs(units).astype(np.float32)
        # The trees' own predict: the forest's checks cost more than the answer.
        votes = [
            np.mean([t.tree_.predict(inputs).reshape(len(inputs), -1)[:, -1] for t in m], axis=0)
            for m in self.models
        ]
        return np.stack(votes)

    def _inputs(self, units: Array) -> Array:
        # The epoch is a consequence of diverging, not a cause: every row gets the same.
        return self.encoding(units, np.full(len(units), self.full), self.full)


def risk_of(samples: Samples, *, seed: int = 0) -> Risk | None:
    """The model, or None where (nearly) nothing or everything diverged."""
    count = int(samples.diverged.sum())
    if count < LEAST or count == samples.trials:
        return None
    return Risk(samples, seed=seed)


COLUMNS = (
    "knob",
    "low",
    "high",
    "trials",
    "diverged",
    "rate",
    "rate_low",
    "rate_high",
    "chance",
    "collapsed",
)


def analyse(
    samples: Samples, risk: Risk | None, fallen: pd.DataFrame, *, cells: int = 8
) -> pd.DataFrame:
    """Share of diverged trials along every knob: at each choice, or in equal parts of its range.

    Args:
        fallen: The trials that collapsed (see `collapsed`).

    Returns:
        `knob`, `low`, `high`, `trials`, `diverged`, `rate` and its 90 % interval (Jeffreys), the
        model's `chance` at the value nearest the middle of the part, averaged over the trials'
        other knobs, and `collapsed`: how many trials there trained to their end and fell below the
        start.
    """
    rows = samples.rows(samples.last)
    down = positions(fallen, samples.knobs, samples.distributions)
    out: list[tuple[object, ...]] = []
    for j, (knob, distribution) in enumerate(
        zip(samples.knobs, samples.distributions, strict=True)
    ):
        choice = isinstance(distribution, CategoricalDistribution)
        parts = len(distribution.choices) if choice else cells  # type: ignore[attr-defined]
        edges = np.linspace(0.0, 1.0, parts + 1)
        place, lost = (np.digitize(u[:, j], edges[1:-1]) for u in (rows.units, down))
        for c in range(parts):
            inside = place == c
            if not inside.any():
                continue
            middle = 0.5 * (edges[c] + edges[c + 1])
            ends = (middle, middle) if choice else (edges[c], edges[c + 1])
            values = [from_unit(distribution, end) for end in ends]
            chance = _chance(samples, rows, risk, j, middle)
            counts = _rate(rows.diverged[inside])
            out.append((knob, *values, *counts, chance, int((lost == c).sum())))
    return pd.DataFrame(out, columns=list(COLUMNS))


def _rate(diverged: np.ndarray) -> tuple[int, int, float, float, float]:
    """Trials, diverged ones, their share and its interval."""
    n, k = len(diverged), int(diverged.sum())
    low, high = beta.ppf([0.05, 0.95], k + 0.5, n - k + 0.5)
    return n, k, k / n, float(low), float(high)


def _chance(samples: Samples, rows: Samples, risk: Risk | None, knob: int, place: float) -> float:
    if risk is None:
        return float("nan")
    units = rows.units.copy()
    units[:, knob] = place
    return float(risk(snap(samples.distributions, units)).mean())


def riskiest_pair(samples: Samples, risk: Risk) -> tuple[str, str] | None:
    """The two knobs whose position best tells diverged trials from others."""
    if len(samples.knobs) < 2:
        return None
    weight = np.mean([m.feature_importances_ for m in risk.models], axis=0)
    groups = risk.encoding.group_of
    by_knob = [float(weight[groups == g].sum()) for g in range(len(samples.knobs))]
    first, second = np.argsort(by_knob)[::-1][:2]
    return samples.knobs[int(first)], samples.knobs[int(second)]


def collapsed(
    table: TrialTable, loss: str, *, metrics: Sequence[str] = ("map_at_r", "recall_at_1")
) -> pd.DataFrame:
    """Trials that trained to their end and score below the untrained backbone.

    No NaN was seen, but training destroyed what was there: a collapse.
    """
    trials = searching(table, loss)
    objective = str(table.protocol.get("objective", metrics[0]))
    untrained = table.baseline.get("validation", {}).get(objective)
    if untrained is None:
        return trials.iloc[:0]
    bad = trials[(trials["state"] == "finished") & (trials["score"].astype(float) < untrained)]
    keep = ["trial", "score", *[KNOB + k for k in table.knobs(loss)]]
    return bad[keep].reset_index(drop=True)
