"""Schema of study files, as frozen pydantic models.

A validated file is complete: it contains every default. `study.config.loader` reads one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from study.config.ranges import ConfigModel, ParamRange, ScalarValue, ValueOrRange
from study.errors import StudyError, suggest_nearest_name
from study.utils.tracking_uri import check_tracking_uri

STUDY_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
STUDY_NAME_RULE = (
    "a study name must start with a letter or digit and consist of at most 100 letters, digits, "
    "'.', '_' or '-'"
)


class LossSection(ConfigModel):
    """Changes to the default search space of a loss.

    A hyperparameter in `search` without a range uses its default range. `space` names a variant of
    the loss's search space, whose values and ranges take precedence over the study's `training`
    section; empty is the default space.
    """

    space: str = ""
    search: Mapping[str, ParamRange | None] = Field(default_factory=dict)
    fixed: Mapping[str, ScalarValue] = Field(default_factory=dict)

    @field_validator("search", mode="before")
    @classmethod
    def _search_from_names(cls, value: Any) -> Any:
        """Accept a list of hyperparameters without ranges: `[label_smoothing, pooling]`."""
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            return dict.fromkeys(value)
        return value


class DataSection(BaseModel):
    """Data set; further keys are options of its reader."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def reader_options(self) -> dict[str, Any]:
        """Options of the reader."""
        return dict(self.model_extra or {})


class BackboneSection(ConfigModel):
    """Backbone: any timm name; `image_size` None derives the size from the stored images."""

    name: str = "conv4"
    image_size: int | None = Field(default=None, ge=1)
    pretrained: bool | str = False
    frozen: bool = False


class StopSection(ConfigModel):
    """Early stopping, separately for each loss.

    ASHA with the epoch as its resource, until enough trials have finished; after that, trials are
    stopped whose predicted final score stays below the best.
    """

    enabled: bool = True
    grace_epochs: int = Field(default=1, ge=1)
    reduction: int = Field(default=3, ge=2)


class SearchSection(ConfigModel):
    """Number of points per loss, and how they are chosen.

    The sampler `auto` is gp for a loss with few hyperparameters and a few hundred points, else tpe.
    """

    trials: int = Field(default=30, ge=1)
    sampler: Literal["auto", "tpe", "gp", "random", "sobol", "grid", "cmaes"] = "auto"
    sobol_share: float = Field(default=0.4, ge=0.0, le=1.0)
    repeats: int = Field(default=3, ge=1)
    repeat_share: float = Field(default=0.1, ge=0.0, le=1.0)
    seeds_per_point: int = Field(default=1, ge=1)
    seed: int = Field(default=0, ge=0)
    stop_early: StopSection = StopSection()

    @field_validator("stop_early", mode="before")
    @classmethod
    def _stop_early_from_bool(cls, value: Any) -> Any:
        return {"enabled": value} if isinstance(value, bool) else value


class ProtocolSection(ConfigModel):
    """Metrics, and the classes on which they are measured.

    `nmi` adds the clustering score of older papers: normalised mutual information between k-means
    clusters and classes. k-means is random, which makes it a poor objective.
    """

    objective: str = "map_at_r"
    recall_at: tuple[int, ...] = (1, 2, 4, 8)
    nmi: bool = False
    folds: Literal[1, 2, 4] = 1
    confirm_seeds: int = Field(default=5, ge=2)
    tolerance: float | None = Field(default=None, gt=0)

    @field_validator("recall_at")
    @classmethod
    def _check_recall_at(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1:
            raise ValueError(f"must be a list of integers above 0, but got {list(value)}")
        return tuple(sorted(set(value)))

    @model_validator(mode="after")
    def _check_objective(self) -> ProtocolSection:
        measured = ["map_at_r", "r_precision", *(f"recall_at_{k}" for k in self.recall_at)]
        measured += ["nmi"] if self.nmi else []
        if self.objective not in measured:
            hint = suggest_nearest_name(self.objective, measured)
            raise ValueError(f"objective {self.objective!r} is not measured; {hint}")
        return self


class ResourcesSection(ConfigModel):
    """Resources of one trial.

    A trial is trained by `ranks_per_trial` processes on `nodes_per_trial` nodes, equally many on
    each. `cpus_per_trial` and `gpus_per_trial` are totals over all ranks; each rank has an equal
    share. A rank computes on one GPU or on CPUs; a trial of one rank may use a fraction of a GPU.
    `shard_proxies` distributes the proxies over the ranks instead of copying them. `keep_mib` is
    the memory limit for the similarities of a batch to all proxies: above it, losses stream over
    the proxies and compute the similarities twice; None uses the default of the losses. `compile`
    compiles the network with torch.compile. `checkpoint_activations` computes activations twice
    instead of keeping them. `deterministic` uses kernels whose results do not vary on a GPU.
    """

    cpus_per_trial: float = Field(default=1, gt=0)
    gpus_per_trial: float = Field(default=0, ge=0)
    ranks_per_trial: int = Field(default=1, ge=1)
    nodes_per_trial: int = Field(default=1, ge=1)
    shard_proxies: bool = False
    keep_mib: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_concurrent: int | None = Field(default=None, ge=1)
    compile: bool = False
    checkpoint_activations: bool = False
    deterministic: bool = False

    @model_validator(mode="after")
    def _check_divisible(self) -> ResourcesSection:
        cpus, gpus, ranks = self.cpus_per_trial, self.gpus_per_trial, self.ranks_per_trial
        if ranks % self.nodes_per_trial:
            raise ValueError(
                "`ranks_per_trial` must be a multiple of `nodes_per_trial`, but got "
                f"ranks_per_trial={ranks}, nodes_per_trial={self.nodes_per_trial}"
            )
        if self.compile and ranks > 1:
            raise ValueError(
                f"`compile` needs trials of one rank, but got ranks_per_trial={ranks}; batch norms "
                "of several ranks cannot be compiled"
            )
        if ranks == 1 and gpus > 1:
            raise ValueError(
                f"a rank computes on at most one GPU, but got gpus_per_trial={gpus:g}; "
                f"set ranks_per_trial: {math.ceil(gpus)} to train on several"
            )
        if ranks > 1 and gpus not in (0, ranks):
            raise ValueError(
                "`gpus_per_trial` must be 0 or equal to `ranks_per_trial`, but got "
                f"gpus_per_trial={gpus:g}, ranks_per_trial={ranks}"
            )
        if cpus > ranks and cpus % ranks:
            raise ValueError(
                "`cpus_per_trial` must be a multiple of `ranks_per_trial`, or at most 1 per rank, "
                f"but got cpus_per_trial={cpus:g}, ranks_per_trial={ranks}"
            )
        return self


class TrackingSection(ConfigModel):
    """MLflow server or database; None uses an SQLite store in the study's directory."""

    uri: str | None = None

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, value: str | None) -> str | None:
        try:
            if value is not None:
                check_tracking_uri(value)
        except StudyError as error:
            raise ValueError(str(error)) from None
        return value


class StorageSection(ConfigModel):
    """Storage of checkpoints.

    `checkpoints` is a path that exists on every node, or an S3 prefix; None uses the study's
    directory, which suffices on one machine. A trial writes a checkpoint every `checkpoint_every`
    epochs and at its end; if its node is lost, it repeats the epochs since. With `auto` it writes
    as often as 1 % of the time allows, at least every five minutes. The `keep_best` best search
    trials of each loss keep their checkpoints; all others are removed when the trial ends.
    """

    checkpoints: str | None = None
    checkpoint_every: int | Literal["auto"] = "auto"
    keep_best: int = Field(default=1, ge=1)

    @field_validator("checkpoint_every", mode="before")
    @classmethod
    def _check_interval(cls, value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value == "auto" or (is_number and value >= 1 and float(value).is_integer()):
            return value
        raise ValueError(f"must be `auto` or a number of epochs >= 1, but got {value!r}")

    @field_validator("checkpoints")
    @classmethod
    def _check_shared_path(cls, value: str | None) -> str | None:
        if value is None or value.startswith("/"):
            return value
        if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", value):
            raise ValueError(f"must be an absolute path or s3://BUCKET/PREFIX, but got {value!r}")
        return value


class StudyConfig(ConfigModel):
    """Complete study file."""

    name: str
    data: DataSection
    backbone: BackboneSection = BackboneSection()
    losses: Mapping[str, LossSection]
    training: Mapping[str, ValueOrRange] = Field(default_factory=dict)
    search: SearchSection = SearchSection()
    protocol: ProtocolSection = ProtocolSection()
    resources: ResourcesSection = ResourcesSection()
    tracking: TrackingSection = TrackingSection()
    storage: StorageSection = StorageSection()

    @field_validator("name")
    @classmethod
    def _check_study_name(cls, value: str) -> str:
        if not STUDY_NAME_PATTERN.fullmatch(value):
            raise ValueError(f"{STUDY_NAME_RULE}, but got {value!r}")
        return value

    @field_validator("data", mode="before")
    @classmethod
    def _data_by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("backbone", mode="before")
    @classmethod
    def _backbone_by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    def with_stored_defaults(self, stored: StudyConfig) -> StudyConfig:
        """Return this file with the stored `storage.checkpoint_every` if the file sets none.

        The default was 1 in earlier versions. A file that has not changed since must still be that
        of its study.
        """
        if "checkpoint_every" in self.storage.model_fields_set:
            return self
        update = {"checkpoint_every": stored.storage.checkpoint_every}
        return self.model_copy(update={"storage": self.storage.model_copy(update=update)})

    @property
    def fixed_training_params(self) -> dict[str, ScalarValue]:
        """Training hyperparameters with the same value in every trial."""
        return {k: v for k, v in self.training.items() if not isinstance(v, ParamRange)}

    @property
    def searched_training_params(self) -> dict[str, ParamRange]:
        """Training hyperparameters that every loss searches in the same range."""
        return {k: v for k, v in self.training.items() if isinstance(v, ParamRange)}

    @field_validator("losses", mode="before")
    @classmethod
    def _losses_as_mapping(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [value]
        if isinstance(value, list):
            if invalid := [v for v in value if not isinstance(v, str)]:
                raise ValueError(f"a loss must be listed by its name, but got {invalid[0]!r:.60}")
            if duplicates := sorted({str(v) for v in value if value.count(v) > 1}):
                raise ValueError(f"a loss is listed twice: {', '.join(duplicates)}")
            value = dict.fromkeys(value)
        if isinstance(value, dict):
            if not value:
                raise ValueError("a study needs at least one loss")
            return {k: {} if v is None else v for k, v in value.items()}
        return value
