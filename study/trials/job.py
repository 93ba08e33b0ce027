"""One training to run, and how it ended."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from search_spaces.space import Value
from study.table import Origin, State

Split = Literal["validation", "test"]


@dataclass(frozen=True)
class Job:
    """A point of a loss, a seed, and why it is run.

    Args:
        trial: Unique key within the study (`proxy_anchor-0017`).
        loss: Registry name.
        number: Order of asking within the loss.
        origin: Why it is run.
        values: One value per searched knob.
        seed: Seed of the training.
        split: Which classes are scored.
        anchor: Sweeps: what the point varies around.
        swept: Sweeps: the knob that varies.
    """

    trial: str
    loss: str
    number: int
    origin: Origin
    values: Mapping[str, Value]
    seed: int
    split: Split = "validation"
    anchor: str = ""
    swept: str = ""

    @property
    def point(self) -> str:
        """Key of the point: trials that differ only in their seed share it."""
        return point_key(self.loss, self.values)

    @property
    def identity(self) -> str:
        """What makes two jobs the same training: asking for it twice runs it once."""
        return "/".join(
            [self.origin, self.split, self.anchor, self.swept, self.point, str(self.seed)]
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Args:
        state: Finished, stopped early, diverged or failed.
        epochs: Epochs done.
        score: Objective after the last epoch; NaN when diverged or failed.
        score_std: Spread over the seeds inside the trial; NaN with one.
        seconds: Training and evaluation time.
        error: Last line of the exception, if any.
        host: Node that ran the first rank.
    """

    state: State
    epochs: int
    score: float
    score_std: float = float("nan")
    seconds: float = 0.0
    error: str = ""
    host: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


def point_key(loss: str, values: Mapping[str, Value]) -> str:
    """A short key that is equal for equal values of a loss."""
    text = json.dumps([loss, sorted(values.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def trial_key(loss: str, number: int) -> str:
    """A trial's key within its study."""
    return f"{loss}-{number:04d}"


@dataclass(frozen=True)
class Progress:
    """How far a loss is."""

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
