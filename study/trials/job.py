"""Jobs (one training to run), their outcomes, and the progress of a loss."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from search_spaces.space import ParamValue
from study.trials.table import TrialOrigin, TrialStateName
from trainables.config import Split


@dataclass(frozen=True)
class Job:
    """One training: a point of a loss, a seed, and the reason for running it.

    Args:
        trial: Unique key within the study (`proxy_anchor-0017`).
        loss: Registry name of the loss.
        number: Number of the trial within the loss, in the order of starting.
        origin: Why the job is run.
        params: One value per searched hyperparameter.
        seed: Seed of the training.
        split: Classes on which the trial is scored.
        anchor: Sweeps: the point that is varied.
        swept: Sweeps: the hyperparameter that varies.
    """

    trial: str
    loss: str
    number: int
    origin: TrialOrigin
    params: Mapping[str, ParamValue]
    seed: int
    split: Split = "validation"
    anchor: str = ""
    swept: str = ""

    @property
    def point(self) -> str:
        """Key of the point: trials that differ only in their seed share it."""
        return point_key(self.loss, self.params)

    @property
    def identity_key(self) -> str:
        """Key that is equal for jobs of the same training; a repeated request runs once."""
        return "/".join(
            [self.origin, self.split, self.anchor, self.swept, self.point, str(self.seed)]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; the journal stores `params` under the key `values`."""
        fields = asdict(self)
        return {("values" if name == "params" else name): fields[name] for name in fields}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Job:
        """Return the job that `to_dict` wrote."""
        return cls(**{("params" if name == "values" else name): fields[name] for name in fields})


@dataclass(frozen=True)
class TrialOutcome:
    """How a trial ended.

    Args:
        state: Finished, stopped early, diverged or failed.
        epochs: Number of completed epochs.
        score: Objective after the last epoch; NaN if diverged or failed.
        score_std: Standard deviation over the seeds of the trial; NaN with one seed.
        seconds: Training and evaluation time.
        error: Last line of the exception, if any.
        host: Node that ran the first rank.
        metrics: All metrics after the last epoch.
    """

    state: TrialStateName
    epochs: int
    score: float
    score_std: float = float("nan")
    seconds: float = 0.0
    error: str = ""
    host: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


def point_key(loss: str, params: Mapping[str, ParamValue]) -> str:
    """Return a short key that is equal for equal points of a loss."""
    text = json.dumps([loss, sorted(params.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def trial_key(loss: str, number: int) -> str:
    """Return the key of a trial within its study."""
    return f"{loss}-{number:04d}"


@dataclass(frozen=True)
class LossProgress:
    """Progress of one loss.

    Args:
        loss: Registry name of the loss.
        planned: Number of trials, including those that have ended.
        ended: Trials that have ended, in whatever state.
        running: Trials that are running.
        stopped: Trials that were stopped early.
        diverged: Trials that diverged.
        failed: Trials that failed.
        best: Score of the incumbent; NaN if there is none.
        best_trial: Key of the incumbent; empty if there is none.
        epochs_done: Completed epochs of all trials.
        epochs_planned: Completed epochs and the epochs still planned.
    """

    loss: str
    planned: int
    ended: int
    running: int
    stopped: int
    diverged: int
    failed: int
    best: float
    best_trial: str
    epochs_done: int
    epochs_planned: int
