"""What will be run: losses, spaces, stages, trial specs.

A plan is made by `planning` and holds all that a study needs to go on later: it is written to the
study's directory once and read back by every other command.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from search_spaces.space import Space, Value
from study.errors import StudyError
from study.file import StudyFile
from study.jobs import Job
from study.read_file import parse_study
from study.tracking.redaction import redact
from trainables.settings import Settings, TrialSpec, settings_from

PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class Stage:
    """One stretch of the search: how many points it adds to every loss.

    `study run` makes the first stage, each `study extend` one more.
    """

    points: int


@dataclass(frozen=True)
class Plan:
    """Everything that shapes a study.

    Args:
        file: The checked study file.
        spaces: The space of each loss, with the file's changes.
        stages: Stretches of the search.
        study_id: Tells this study from others of its name, wherever its directory is; empty in
            plans of earlier versions.
    """

    file: StudyFile
    spaces: Mapping[str, Space]
    stages: tuple[Stage, ...]
    study_id: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The study's name."""
        return self.file.name

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses, in the file's order."""
        return tuple(self.spaces)

    def settings(self, loss: str, values: Mapping[str, Value]) -> tuple[Settings, dict[str, Value]]:
        """A point as training settings and arguments of the loss."""
        merged: dict[str, Value] = {
            **self.file.conditions,
            **self.spaces[loss].fixed,
            **values,
        }
        from trainables.losses import loss_knobs  # torch; readers of a plan need none

        own = loss_knobs(loss)
        arguments = {k: v for k, v in merged.items() if k in own}
        training = {k: v for k, v in merged.items() if k not in own}
        return settings_from(training), arguments

    def trial_spec(self, job: Job, *, cache_dir: Path, checkpoint_dir: str) -> TrialSpec:
        """What the trial of a job is told."""
        settings, arguments = self.settings(job.loss, job.values)
        resources = self.file.resources
        return TrialSpec(
            trial=job.trial,
            loss=job.loss,
            loss_knobs=arguments,
            settings=settings,
            seed=job.seed,
            # Scores of one study are the mean of as many seeds, so that they can be compared;
            # confirmations give an interval over single ones.
            replicas=1 if job.split == "test" else self.file.search.seeds_per_point,
            split=job.split,
            folds=self.file.protocol.folds,
            objective=self.file.protocol.objective,
            recall_at=self.file.protocol.recall_at,
            nmi=self.file.protocol.nmi,
            dataset={"name": self.file.data.name, **self.file.data.options},
            backbone=self.file.backbone.model_dump(),
            cache_dir=str(cache_dir),
            checkpoint_dir=checkpoint_dir,
            checkpoint_every=self.file.storage.checkpoint_every,
            threads=max(1, math.floor(resources.cpus_per_trial / resources.ranks_per_trial)),
            resources=resources.model_dump(),
        )

    def published(self, loss: str) -> list[dict[str, Value]]:
        """The published points that are run first, at most as many as there is budget for."""
        points = [dict(p.values) for p in self.spaces[loss].published]
        unique = [p for i, p in enumerate(points) if p not in points[:i]]
        return unique[: self.stages[0].points]

    def left_out(self) -> list[str]:
        """Published points that are not run because the ranges do not hold them, one line each."""
        return [f"{loss}: {why}" for loss, space in self.spaces.items() for why in space.left_out]

    def sobol(self, loss: str, stage: int) -> int:
        """Space-filling points of a loss up to the end of a stage."""
        share = 1.0 if self.file.search.sampler == "sobol" else self.file.search.sobol_share
        free = [s.points for s in self.stages[: stage + 1]]
        free[0] -= len(self.published(loss))
        wanted = zip(free, self.stages, strict=False)
        return sum(min(n, math.floor(s.points * share + 0.5)) for n, s in wanted)

    def chosen(self, loss: str, stage: int) -> int:
        """Points that the sampler chooses for a loss up to the end of a stage."""
        points = sum(s.points for s in self.stages[: stage + 1])
        return points - len(self.published(loss)) - self.sobol(loss, stage)

    def points(self, loss: str) -> int:
        """Points of a loss that are searched: published, Sobol and chosen; equal for all."""
        return sum(stage.points for stage in self.stages)

    def repeated_sobol(self, loss: str) -> int:
        """How many Sobol points have their seeds repeated."""
        first = self.sobol(loss, 0)
        return math.ceil(self.file.search.repeat_share * first) if first >= 3 else 0

    def trials(self, loss: str) -> int:
        """Trainings of a loss at most: its points, and repeated seeds of some of them."""
        repeated = min(len(self.published(loss)), 1) + self.repeated_sobol(loss) + len(self.stages)
        return self.points(loss) + repeated * (self.file.search.repeats - 1)

    def epochs(self, loss: str) -> int:
        """Epochs of a full trial."""
        return self.settings(loss, self.example(loss))[0].epochs

    def example(self, loss: str) -> dict[str, Value]:
        """Some valid point: the published one, or the middle of every range."""
        from search_spaces.scale import from_unit

        space = self.spaces[loss]
        if space.published:
            return dict(space.published[0].values)
        return {k: from_unit(d, 0.5) for k, d in space.distributions.items()}

    def extended(self, trials: int) -> Plan:
        """This plan with one more stage of `trials` points per loss."""
        return replace(self, stages=(*self.stages, Stage(trials)))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "file": self.file.model_dump(mode="json"),
            "spaces": {loss: space.to_dict() for loss, space in self.spaces.items()},
            "stages": [vars(stage) for stage in self.stages],
            "study_id": self.study_id,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """The inverse of `to_dict`."""
        return cls(
            file=parse_study(data["file"]),
            spaces={loss: Space.from_dict(space) for loss, space in data["spaces"].items()},
            stages=tuple(Stage(**stage) for stage in data["stages"]),
            study_id=str(data.get("study_id", "")),
        )


def save_plan(plan: Plan, directory: Path) -> None:
    """Write the plan to the study's directory, replacing an older one atomically.

    A power cut leaves the old or the new one whole.
    """
    temporary = directory / f".{PLAN_FILE}.new"
    write_private(temporary, json.dumps(plan.to_dict(), indent=1), plan.file.tracking.uri)
    temporary.replace(directory / PLAN_FILE)
    folder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_private(path: Path, text: str, uri: str | None) -> None:
    """Write a file to the disk; for its owner alone when the tracking URI holds a password."""
    secret = uri is not None and redact(uri) != uri
    path.unlink(missing_ok=True)  # an older file would keep its mode
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o666)
    with os.fdopen(file, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def load_plan(directory: Path) -> Plan:
    """Read the plan of a study's directory.

    Raises:
        StudyError: There is no study, or its plan cannot be read.
    """
    path = directory / PLAN_FILE
    try:
        return Plan.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise StudyError(f"{directory} holds no study (no {PLAN_FILE})") from None
    except (StudyError, ValueError, KeyError, TypeError, OSError) as error:
        raise StudyError(f"{path} is damaged: {error}") from None
