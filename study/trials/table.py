"""The trial table: what every analysis reads and every tracking store can give back.

One tidy frame of trials, one of learning curves, and the plan they came from. Its columns are the
contract between running a study and understanding it; nothing downstream reads anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from search_spaces.space import Space

Origin = Literal["published", "sobol", "bayes", "repeat", "sweep", "confirm"]
State = Literal["finished", "stopped", "diverged", "failed", "running"]

ORIGINS: tuple[Origin, ...] = ("published", "sobol", "bayes", "repeat", "sweep", "confirm")
STATES: tuple[State, ...] = ("finished", "stopped", "diverged", "failed", "running")

KNOB = "knob."
METRIC = "metric."

COLUMNS: Mapping[str, str] = {
    "trial": "unique key within the study: loss, a dash, a number (`proxy_anchor-0017`)",
    "loss": "registry name",
    "number": "order of asking within the loss",
    "origin": "why it was run; one of ORIGINS",
    "state": "how it ended; one of STATES",
    "split": "`validation`, or `test` for confirm trials",
    "point": "key of the point; trials that differ only in their seed share it",
    "seed": "seed of initialisation, sampling and augmentation",
    "anchor": "what a sweep varies around (`published`, `incumbent`) or who asked for a point",
    "swept": "sweeps: the knob that varies; else empty",
    "epochs": "epochs done",
    "score": "objective after the last epoch done, higher is better; NaN when diverged or failed",
    "score_std": "spread over the seeds inside the trial; NaN with one seed",
    "seconds": "training and evaluation time",
    "started": "seconds since the epoch, UTC",
    "host": "node that ran the trial's first rank",
    "error": "last line of the exception; empty otherwise",
}
"""Fixed columns; besides them one `knob.NAME` per searched knob of any loss of the study (NaN or
None where the loss has no such knob) and one `metric.NAME` per reported metric, after the last
epoch done."""


@dataclass(frozen=True)
class TrialTable:
    """A study's trials, complete enough to make its report.

    Args:
        study: Name.
        trials: One row per trial, columns as in `COLUMNS`.
        curves: One row per trial and epoch: `trial`, `epoch`, `score`.
        spaces: The searched space of each loss, as this study used it.
        protocol: `objective` (metric name), `epochs` (a full trial), `folds`, `dataset`,
            `backbone`, `tolerance` (or None), `foretold_at` (by loss, the epochs at which its
            search judged whether a trial may go on; missing where nobody knows), and whatever else
            the report's header prints.
        baseline: Metrics of the untrained backbone: {"validation": {name: value}, "test": {...}}
            (test only once confirmed).
    """

    study: str
    trials: pd.DataFrame
    curves: pd.DataFrame
    spaces: Mapping[str, Space]
    protocol: Mapping[str, Any]
    baseline: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def of(self, loss: str) -> pd.DataFrame:
        """The trials of one loss."""
        return self.trials[self.trials["loss"] == loss]

    def knobs(self, loss: str) -> list[str]:
        """The searched knobs of a loss, scientific ones first."""
        return list(self.spaces[loss].searched)
