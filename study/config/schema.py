"""The study file: what a user writes, checked once, at the edge.

What comes out is frozen and complete: every default is written down. `study.read_file` reads one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from study.errors import StudyError, nearest
from study.ranges import Range, Scalar, Section, ValueOrRange
from study.tracking.address import check_address

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class LossSection(Section):
    """Changes to a loss's own space; a knob searched without a range has the one we know of it.

    `space` names another ready-made space of the loss, whose values and ranges win over the study's
    training knobs; empty is the usual one.
    """

    space: str = ""
    search: Mapping[str, Range | None] = Field(default_factory=dict)
    fixed: Mapping[str, Scalar] = Field(default_factory=dict)

    @field_validator("search", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """`[label_smoothing, pooling]` are knobs without a range."""
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            return dict.fromkeys(value)
        return value


class DataSection(BaseModel):
    """The data set; further keys are options of its reader."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def options(self) -> dict[str, Any]:
        """The reader's options."""
        return dict(self.model_extra or {})


class BackboneSection(Section):
    """The backbone: any timm name; `image_size` None takes what suits the stored images."""

    name: str = "conv4"
    image_size: int | None = Field(default=None, ge=1)
    pretrained: bool | str = False
    frozen: bool = False


class StopSection(Section):
    """Early stopping, for each loss apart.

    ASHA with the epoch as its time, until enough trials have finished; from then on trials whose
    learning curve says that they will not become the best.
    """

    enabled: bool = True
    grace_epochs: int = Field(default=1, ge=1)
    reduction: int = Field(default=3, ge=2)


class SearchSection(Section):
    """How many points of each loss are tried, and how they are chosen.

    The sampler `auto` is gp for a loss with few knobs and a few hundred points, else tpe.
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
    def _switch(cls, value: Any) -> Any:
        return {"enabled": value} if isinstance(value, bool) else value


class ProtocolSection(Section):
    """What is measured, on which classes.

    `nmi` adds the clustering score of the older papers: normalised mutual information of k-means
    clusters with the classes. k-means has luck of its own, so it is a poor objective.
    """

    objective: str = "map_at_r"
    recall_at: tuple[int, ...] = (1, 2, 4, 8)
    nmi: bool = False
    folds: Literal[1, 2, 4] = 1
    confirm_seeds: int = Field(default=5, ge=2)
    tolerance: float | None = Field(default=None, gt=0)

    @field_validator("recall_at")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1:
            raise ValueError(f"recall_at needs whole numbers from 1 on, but got {list(value)}")
        return tuple(sorted(set(value)))

    @model_validator(mode="after")
    def _objective_is_measured(self) -> ProtocolSection:
        measured = ["map_at_r", "r_precision", *(f"recall_at_{k}" for k in self.recall_at)]
        measured += ["nmi"] if self.nmi else []
        if self.objective not in measured:
            raise ValueError(
                f"objective {self.objective!r} is not measured; {nearest(self.objective, measured)}"
            )
        return self


class ResourcesSection(Section):
    """What one trial occupies.

    A trial is trained by `ranks_per_trial` processes on `nodes_per_trial` nodes, equally many on
    each. `cpus_per_trial` and `gpus_per_trial` are the trial's, over all its ranks: each rank has
    an equal part. A rank computes on one GPU or on CPUs; a trial of one rank may have a part of a
    GPU. `shard_proxies` spreads the proxies over the ranks instead of copying them. `keep_mib` is
    the memory for the similarities of a batch with all proxies: above it, losses stream over the
    proxies and compute them twice; None leaves it to the losses.
    """

    cpus_per_trial: float = Field(default=1, gt=0)
    gpus_per_trial: float = Field(default=0, ge=0)
    ranks_per_trial: int = Field(default=1, ge=1)
    nodes_per_trial: int = Field(default=1, ge=1)
    shard_proxies: bool = False
    keep_mib: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_concurrent: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _divides(self) -> ResourcesSection:
        cpus, gpus, ranks = self.cpus_per_trial, self.gpus_per_trial, self.ranks_per_trial
        if ranks % self.nodes_per_trial:
            raise ValueError(
                "`ranks_per_trial` must be a multiple of `nodes_per_trial`, but got "
                f"ranks_per_trial={ranks}, nodes_per_trial={self.nodes_per_trial}"
            )
        if ranks == 1 and gpus > 1:
            raise ValueError(
                f"one rank computes on one GPU, but got gpus_per_trial={gpus:g}; "
                f"set ranks_per_trial: {math.ceil(gpus)} to train on several"
            )
        if ranks > 1 and gpus not in (0, ranks):
            raise ValueError(
                "`gpus_per_trial` must be 0 or one for each rank, but got "
                f"gpus_per_trial={gpus:g}, ranks_per_trial={ranks}"
            )
        if cpus > ranks and cpus % ranks:
            raise ValueError(
                "`cpus_per_trial` must be a multiple of `ranks_per_trial`, or at most 1 per rank, "
                f"but got cpus_per_trial={cpus:g}, ranks_per_trial={ranks}"
            )
        return self


class TrackingSection(Section):
    """The MLflow server; None keeps an sqlite store in the study's directory."""

    uri: str | None = None

    @field_validator("uri")
    @classmethod
    def _known_scheme(cls, value: str | None) -> str | None:
        try:
            if value is not None:
                check_address(value)
        except StudyError as error:
            raise ValueError(str(error)) from None
        return value


class StorageSection(Section):
    """Where trials keep what must survive their node.

    `checkpoints` is a path that every node has, or an S3 prefix; None keeps them in the study's
    directory, which is enough on one machine. A trial writes one every `checkpoint_every` epochs
    and at its end; a lost node costs it the epochs since. Of the search, the `keep_best` best
    trials of each loss keep theirs; all others are removed when their trial ends.
    """

    checkpoints: str | None = None
    checkpoint_every: int = Field(default=1, ge=1)
    keep_best: int = Field(default=1, ge=1)

    @field_validator("checkpoints")
    @classmethod
    def _shared(cls, value: str | None) -> str | None:
        if value is None or value.startswith("/"):
            return value
        if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", value):
            raise ValueError(
                f"checkpoints are kept at an absolute path or at s3://BUCKET/PREFIX, not {value!r}"
            )
        return value


class StudyFile(Section):
    """A whole study file."""

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
    def _plain_name(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError(
                f"a study name is at most 100 letters, digits, '.', '_' or '-', not {value!r}"
            )
        return value

    @field_validator("data", mode="before")
    @classmethod
    def _data_by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("backbone", mode="before")
    @classmethod
    def _backbone_by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def conditions(self) -> dict[str, Scalar]:
        """Training knobs that are the same in every trial."""
        return {k: v for k, v in self.training.items() if not isinstance(v, Range)}

    @property
    def searched_for_all(self) -> dict[str, Range]:
        """Training knobs that every loss searches in the same range."""
        return {k: v for k, v in self.training.items() if isinstance(v, Range)}

    @field_validator("losses", mode="before")
    @classmethod
    def _losses_as_mapping(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [value]
        if isinstance(value, list):
            if odd := [v for v in value if not isinstance(v, str)]:
                raise ValueError(f"a loss is listed by its name, but got {odd[0]!r:.60}")
            twice = sorted({str(v) for v in value if value.count(v) > 1})
            if twice:
                raise ValueError(f"a loss is listed twice: {', '.join(twice)}")
            value = dict.fromkeys(value)
        if isinstance(value, dict):
            if not value:
                raise ValueError("a study needs at least one loss")
            return {k: {} if v is None else v for k, v in value.items()}
        return value
