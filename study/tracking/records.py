"""Tracking records: what a study writes to its tracking store, and the names under which it does.

Nothing here imports MLflow: the driver builds records, and another process ships them.
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

from search_spaces.space import Hyperparameter, ParamValue, SearchSpace
from study.trials.job import Job
from study.trials.table import TrialStateName
from trainables.config import Split

RunStatus = Literal["RUNNING", "FINISHED", "KILLED", "FAILED"]

RUN_STATUS_BY_STATE: Mapping[TrialStateName, RunStatus] = {
    "finished": "FINISHED",
    "stopped": "KILLED",
    "diverged": "FAILED",
    "failed": "FAILED",
    "running": "RUNNING",
}

# Internal tags have a prefix; those that users filter by (`tags.origin = "sobol"`) do not.
KIND_TAG, STUDY_TAG, TRIAL_TAG, GROUP_TAG = "dml.kind", "dml.study", "dml.trial", "dml.group"
OBJECTIVE_TAG = "dml.objective"
STUDY_ID_TAG = "dml.study_id"
GALLERY_TAG = "dml.gallery"
"""Tag of a loss: the trial whose gallery it shows."""
PLAN_FILE = "plan.json"
_PLAN_TAG_PREFIX, _PLAN_TAG_LENGTH = "mlflow.dml.plan.", 4500
TEST_PREFIX = "test/"
"""Keeps test scores apart from validation scores in MLflow's run table."""

TRAINING_METRIC_PATTERN = re.compile(r"loss|seconds|images_per_second|lr_\w+")
"""Names of training metrics, which do not depend on the classes that a trial is scored on."""

SYSTEM_PREFIX = "system/"
"""Prefix of the metrics that MLflow's UI shows on a separate page."""
SYSTEM_METRICS = frozenset(
    {"memory_mib", "node_memory_percent", "gpu_memory_mib", "gpu_use_percent"}
)

SCORE_STD = "score_std"
"""Metric: standard deviation of the score over the seeds inside a trial."""

STORED_INFINITY = 1.7976931348623157e308
"""MLflow's databases store an infinite metric as the largest double."""


@dataclass(frozen=True)
class TrialRecord:
    """A trial that starts, as its MLflow run shows it.

    Args:
        job: The training; its key `job.trial` always names the same run.
        fixed: Settings of the trial that are not searched.
        tags: Space version, data fingerprint, code version and the like.
        started: Seconds since the epoch, UTC.
    """

    job: Job
    fixed: Mapping[str, ParamValue] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    started: float = 0.0

    @property
    def group(self) -> str:
        """Name of the run below the loss that is the trial's parent; empty for the search."""
        job = self.job
        if job.origin == "sweep" and not job.swept:
            return job.anchor  # points that an analysis requested: `refine`, `claim`
        if job.origin == "sweep":
            return f"sweep {job.swept}" + (f" around {job.anchor}" if job.anchor else "")
        return "confirm" if job.origin == "confirm" else ""


def plan_to_tags(plan: Mapping[str, Any]) -> dict[str, str]:
    """Encode a study's plan as tags, so that a reader of the database needs no artifacts.

    MLflow's UI hides tags with MLflow's own prefix. A tag holds a few thousand characters, so the
    text is split.
    """
    text = json.dumps(plan, ensure_ascii=False).encode()
    packed = base64.b85encode(zlib.compress(text, 9)).decode()
    parts = [packed[i : i + _PLAN_TAG_LENGTH] for i in range(0, len(packed), _PLAN_TAG_LENGTH)]
    return {
        f"{_PLAN_TAG_PREFIX}{i}": f"{len(parts)} {part}" if i == 0 else part
        for i, part in enumerate(parts)
    }


def plan_from_tags(tags: Mapping[str, str]) -> dict[str, Any] | None:
    """Decode the tags of `plan_to_tags`; None if missing, as in stores of earlier versions."""
    count, _, first = tags.get(f"{_PLAN_TAG_PREFIX}0", "0").partition(" ")
    if not first:
        return None
    rest = [tags.get(f"{_PLAN_TAG_PREFIX}{i}", "") for i in range(1, int(count))]
    plan = json.loads(zlib.decompress(base64.b85decode("".join([first, *rest]))))
    assert isinstance(plan, dict)
    return plan


def encode_value(value: ParamValue) -> str:
    """Encode a setting as text that `decode_value` turns back into the same value.

    >>> encode_value(0.1), encode_value(True), encode_value("avg")
    ('0.1', 'true', 'avg')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))
    return str(value)


def decode_value(text: str, distribution: BaseDistribution) -> ParamValue:
    """Decode the text of `encode_value` for a hyperparameter with this distribution.

    Raises:
        ValueError: The text is not a value of the distribution's type.
    """
    if isinstance(distribution, CategoricalDistribution):
        for choice in distribution.choices:
            if isinstance(choice, bool | int | float | str) and encode_value(choice) == text:
                return choice
        raise ValueError(f"{text!r} is not one of the choices {list(distribution.choices)}")
    if isinstance(distribution, IntDistribution):
        return int(text)
    return float(text)


def param_key(name: str, unit: str) -> str:
    """Return the name of a setting in MLflow, with its unit.

    The unit is part of the name and not of the value, which stays a number that MLflow can sort,
    filter and plot. Two settings with the same name and different units become two columns.

    >>> param_key("m", "rad"), param_key("warmup_epochs", "epochs"), param_key("alpha", "")
    ('m in rad', 'warmup_epochs', 'alpha')
    """
    unit = unit.strip()
    # MLflow accepts no other characters, and a name that contains its unit needs no suffix.
    if not re.fullmatch(r"[\w.\- ]+", unit) or unit in name.split("_"):
        return name
    return f"{name} in {unit}"


def metric_key(name: str, split: Split) -> str:
    """Return the name of a metric in MLflow.

    >>> metric_key("map_at_r", "test"), metric_key("memory_mib", "test"), metric_key("loss", "test")
    ('test/map_at_r', 'system/memory_mib', 'loss')
    """
    if name in SYSTEM_METRICS:
        return SYSTEM_PREFIX + name
    if TRAINING_METRIC_PATTERN.fullmatch(name):
        return name
    return TEST_PREFIX + name if split == "test" else name


def metric_name(key: str) -> str:
    """Return the name of the metric that `metric_key` encoded, for any split."""
    return key.removeprefix(TEST_PREFIX).removeprefix(SYSTEM_PREFIX)


def run_name(job: Job, space: SearchSpace | None) -> str:
    """Return a short name for MLflow's run list: `proxy_anchor-017 alpha=41 delta=0.12`."""
    shown = space.scientific if space is not None else {}
    if job.swept and space is not None and job.swept in space.searched_params:
        shown = {job.swept: space.searched_params[job.swept]}
    words = [
        f"{name}={_format_param(param, job.params[name])}"
        for name, param in shown.items()
        if name in job.params
    ]
    return " ".join([re.sub(r"-0(\d{3})$", r"-\1", job.trial), *words])


def _format_param(param: Hyperparameter, value: ParamValue) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = encode_value(value)
    elif 1000 <= abs(value) < 1e6:
        text = f"{value:.0f}"  # 1024, not 1.02e+03
    else:
        text = f"{value:.3g}"
    unit = param.unit.strip()
    return text + (f" {unit}" if len(unit) > 3 else unit)
