"""Trial table: the data that tracking stores return and analyses read.

It holds one tidy frame of trials, one of learning curves, and the plan they came from. The columns
are the only interface between running a study and analysing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from search_spaces.space import SearchSpace

TrialOrigin = Literal["published", "sobol", "bayes", "repeat", "sweep", "confirm"]
TrialStateName = Literal["finished", "stopped", "diverged", "failed", "running"]

TRIAL_ORIGINS: tuple[TrialOrigin, ...] = (
    "published",
    "sobol",
    "bayes",
    "repeat",
    "sweep",
    "confirm",
)
SEARCH_ORIGINS: tuple[TrialOrigin, ...] = ("published", "sobol", "bayes")
"""Origins of the points of a search; trials of other origins repeat or vary these points."""
TRIAL_STATES: tuple[TrialStateName, ...] = ("finished", "stopped", "diverged", "failed", "running")

PARAM_PREFIX = "knob."
METRIC_PREFIX = "metric."

TRIAL_COLUMNS: Mapping[str, str] = {
    "trial": "unique key within the study: loss, a dash, a number (`proxy_anchor-0017`)",
    "loss": "registry name",
    "number": "order of the trials of the loss",
    "origin": "why the trial was run; one of TRIAL_ORIGINS",
    "state": "how the trial ended; one of TRIAL_STATES",
    "split": "`validation`, or `test` for confirm trials",
    "point": "key of the point; trials that differ only in their seed share it",
    "seed": "seed of initialisation, sampling and augmentation",
    "anchor": "point that a sweep varies (`published`, `incumbent`), or command that requested it",
    "swept": "sweeps: the hyperparameter that varies; else empty",
    "epochs": "epochs done",
    "score": "objective after the last epoch done, higher is better; NaN when diverged or failed",
    "score_std": "spread over the seeds inside the trial; NaN with one seed",
    "seconds": "training and evaluation time",
    "started": "seconds since the epoch, UTC",
    "host": "node that ran the trial's first rank",
    "error": "last line of the exception; empty otherwise",
}
"""Fixed columns. In addition there is one column `knob.NAME` per hyperparameter searched by any
loss of the study (NaN or None for losses without it) and one column `metric.NAME` per reported
metric, after the last epoch done."""


@dataclass(frozen=True)
class TrialTable:
    """Trials of a study, with everything its report needs.

    Args:
        study: Name of the study.
        trials: One row per trial, with the columns of `TRIAL_COLUMNS`.
        curves: One row per trial and epoch: `trial`, `epoch`, `score`.
        spaces: Search space of each loss, as used by this study.
        protocol: `objective` (metric name), `epochs` (length of a full trial), `folds`, `dataset`,
            `backbone`, `tolerance` (or None), `foretold_at` (by loss, the epochs at which final
            scores were predicted; missing if unknown), and further entries for the header of the
            report.
        baseline: Metrics of the untrained backbone: {"validation": {name: value}, "test": {...}}
            (test only after `study confirm`).
    """

    study: str
    trials: pd.DataFrame
    curves: pd.DataFrame
    spaces: Mapping[str, SearchSpace]
    protocol: Mapping[str, Any]
    baseline: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def trials_of(self, loss: str) -> pd.DataFrame:
        """Return the trials of one loss."""
        return self.trials[self.trials["loss"] == loss]

    def searched_param_names(self, loss: str) -> list[str]:
        """Return the searched hyperparameters of a loss, scientific ones first."""
        return list(self.spaces[loss].searched_params)
