"""What does the study tell its tracking store, and under which names does it find it again?

Nothing here imports MLflow: the driver builds records, another process ships them.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from search_spaces.space import Knob, Space, Value
from study.table import State

Split = Literal["validation", "test"]
RunStatus = Literal["RUNNING", "FINISHED", "KILLED", "FAILED"]

STATUS: Mapping[State, RunStatus] = {
    "finished": "FINISHED",
    "stopped": "KILLED",
    "diverged": "FAILED",
    "failed": "FAILED",
    "running": "RUNNING",
}

# Tags of the machinery carry a prefix; those people filter by (`tags.origin = "sobol"`) do not.
KIND, STUDY, TRIAL, GROUP = "dml.kind", "dml.study", "dml.trial", "dml.group"
OBJECTIVE = "dml.objective"
STUDY_ID = "dml.study_id"
GALLERY = "dml.gallery"
"""On a loss: the trial whose gallery it shows."""
PLAN_FILE = "plan.json"
_PLAN_TAG, _PLAN_PART = "mlflow.dml.plan.", 4500
TEST_PREFIX = "test/"
"""Keeps test scores from being sorted among validation scores in MLflow's run table."""

TRAINING = re.compile(r"loss|seconds|images_per_second|lr_\w+")
"""Metrics of training itself, which never sees the classes that a trial is scored on."""

SYSTEM_PREFIX = "system/"
"""What MLflow's UI shows on a page of its own, apart from the scores."""
SYSTEM = frozenset({"memory_mib", "node_memory_percent", "gpu_memory_mib", "gpu_use_percent"})

INFINITY = 1.7976931348623157e308
"""MLflow's databases keep an infinite metric as the largest double."""


@dataclass(frozen=True)
class TrialRecord:
    """What is known about a trial when it starts.

    Args:
        trial: Key within the study (`proxy_anchor-0017`); the same key is always the same run.
        loss: Registry name.
        number: Order of asking within the loss.
        origin: One of `study.table.ORIGINS`.
        seed: Seed of initialisation, sampling and augmentation.
        split: Where it is scored.
        point: Key shared by trials that differ only in their seed.
        anchor: Sweeps: what the point varies around; of single points what asked for them
            (`refine`, `claim`); else empty.
        swept: Sweeps: the knob that varies; else empty.
        knobs: Values of the searched knobs.
        fixed: All other settings of the trial.
        tags: Space version, data fingerprint, code version and the like.
        started: Seconds since the epoch, UTC.
    """

    trial: str
    loss: str
    number: int
    origin: str
    seed: int
    split: Split
    point: str
    anchor: str
    swept: str
    knobs: Mapping[str, Value]
    fixed: Mapping[str, Value] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    started: float = 0.0

    @property
    def group(self) -> str:
        """The branch of the loss's tree it hangs on; empty for the search itself."""
        if self.origin == "sweep" and not self.swept:
            return self.anchor  # points that an analysis asked for: `refine`, `claim`
        if self.origin == "sweep":
            return f"sweep {self.swept}" + (f" around {self.anchor}" if self.anchor else "")
        return "confirm" if self.origin == "confirm" else ""


def plan_tags(plan: Mapping[str, Any]) -> dict[str, str]:
    """A study's plan as tags: whoever reaches the database has it, wherever its artifacts are.

    MLflow's UI shows no tags of its own prefix, and keeps a few thousand letters of each.
    """
    text = json.dumps(plan, ensure_ascii=False).encode()
    packed = base64.b85encode(zlib.compress(text, 9)).decode()
    parts = [packed[i : i + _PLAN_PART] for i in range(0, len(packed), _PLAN_PART)]
    return {
        f"{_PLAN_TAG}{i}": f"{len(parts)} {part}" if i == 0 else part
        for i, part in enumerate(parts)
    }


def plan_of(tags: Mapping[str, str]) -> dict[str, Any] | None:
    """The inverse of `plan_tags`; None where they are missing, as in stores of earlier versions."""
    count, _, first = tags.get(f"{_PLAN_TAG}0", "0").partition(" ")
    if not first:
        return None
    rest = [tags.get(f"{_PLAN_TAG}{i}", "") for i in range(1, int(count))]
    plan = json.loads(zlib.decompress(base64.b85decode("".join([first, *rest]))))
    assert isinstance(plan, dict)
    return plan


def encode(value: Value) -> str:
    """A setting as MLflow stores it: text that `decode` turns back into the same value.

    >>> encode(0.1), encode(True), encode("avg")
    ('0.1', 'true', 'avg')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))
    return str(value)


def decode(text: str, distribution: BaseDistribution) -> Value:
    """The inverse of `encode` for a knob with this distribution.

    Raises:
        ValueError: The text is no value of the distribution's type.
    """
    if isinstance(distribution, CategoricalDistribution):
        for choice in distribution.choices:
            if isinstance(choice, bool | int | float | str) and encode(choice) == text:
                return choice
        raise ValueError(f"{text!r} is none of the choices {list(distribution.choices)}.")
    if isinstance(distribution, IntDistribution):
        return int(text)
    return float(text)


def param_key(name: str, unit: str) -> str:
    """The name of a setting in MLflow, with its unit.

    The unit is in the name and not in the value, which stays a number that MLflow sorts, filters
    and draws; and two knobs of one name but of different units are two columns.

    >>> param_key("m", "rad"), param_key("warmup_epochs", "epochs"), param_key("alpha", "")
    ('m in rad', 'warmup_epochs', 'alpha')
    """
    unit = unit.strip()
    # MLflow takes no other characters; a name that ends in its unit, or begins with it, says it.
    if not re.fullmatch(r"[\w.\- ]+", unit) or unit in name.split("_"):
        return name
    return f"{name} in {unit}"


def metric_key(name: str, split: Split) -> str:
    """The name of a metric in MLflow.

    >>> metric_key("map_at_r", "test"), metric_key("memory_mib", "test"), metric_key("loss", "test")
    ('test/map_at_r', 'system/memory_mib', 'loss')
    """
    if name in SYSTEM:
        return SYSTEM_PREFIX + name
    if TRAINING.fullmatch(name):
        return name
    return TEST_PREFIX + name if split == "test" else name


def metric_name(key: str) -> str:
    """The inverse of `metric_key`, whatever the split."""
    return key.removeprefix(TEST_PREFIX).removeprefix(SYSTEM_PREFIX)


def run_name(record: TrialRecord, space: Space | None) -> str:
    """A short name for MLflow's run list, easy to type: `proxy_anchor-017 alpha=41 delta=0.12`."""
    shown = space.scientific if space is not None else {}
    if record.swept and space is not None and record.swept in space.searched:
        shown = {record.swept: space.searched[record.swept]}
    words = [
        f"{name}={_shown(knob, record.knobs[name])}"
        for name, knob in shown.items()
        if name in record.knobs
    ]
    return " ".join([re.sub(r"-0(\d{3})$", r"-\1", record.trial), *words])


def _shown(knob: Knob, value: Value) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = encode(value)
    elif 1000 <= abs(value) < 1e6:
        text = f"{value:.0f}"  # 1024, not 1.02e+03
    else:
        text = f"{value:.3g}"
    unit = knob.unit.strip()
    return text + (f" {unit}" if len(unit) > 3 else unit)
