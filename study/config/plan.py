"""Plan of a study: losses, search spaces, stages, and the trial specs derived from them.

`study.config.planner` builds the plan from a study file. The plan contains everything needed to
resume the study: it is written to the study's directory once, and every other command reads it
there.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from search_spaces.space import ParamValue, SearchSpace
from study.config.loader import parse_config
from study.config.schema import StudyConfig
from study.errors import StudyError
from study.trials.job import Job
from study.utils.files import write_owner_only
from trainables.config import Split, TrainingSettings, TrialSpec, parse_settings

PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class SearchStage:
    """One stage of the search, with the number of points it adds to every loss.

    `study run` creates the first stage, each `study extend` a further one.
    """

    points: int


@dataclass(frozen=True)
class Plan:
    """Everything that defines a study.

    Args:
        file: The validated study file.
        spaces: Search space of each loss, with the changes of the study file.
        stages: Stages of the search.
        study_id: Identifies the study among others of the same name, independent of its directory;
            empty in plans of earlier versions.
    """

    file: StudyConfig
    spaces: Mapping[str, SearchSpace]
    stages: tuple[SearchStage, ...]
    study_id: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.file.name

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses, in the order of the study file."""
        return tuple(self.spaces)

    @cached_property
    def _loss_param_names(self) -> Mapping[str, frozenset[str]]:
        """Names of each loss's own hyperparameters; all others belong to the training."""
        # Imported late because it imports torch, which commands that only read a plan do not need.
        from trainables.losses import loss_params

        return {loss: frozenset(loss_params(loss)) for loss in self.losses}

    def resolve_settings(
        self, loss: str, params: Mapping[str, ParamValue]
    ) -> tuple[TrainingSettings, dict[str, ParamValue]]:
        """Split a point and the fixed values into training settings and loss arguments.

        Raises:
            ValueError: If a training setting is unknown or has an invalid value.
        """
        merged: dict[str, ParamValue] = {
            **self.file.fixed_training_params,
            **self.spaces[loss].fixed,
            **params,
        }
        loss_param_names = self._loss_param_names[loss]
        arguments = {k: v for k, v in merged.items() if k in loss_param_names}
        training = {k: v for k, v in merged.items() if k not in loss_param_names}
        return parse_settings(training), arguments

    def build_trial_spec(self, job: Job, *, cache_dir: Path, checkpoint_dir: str) -> TrialSpec:
        """Return the spec of a job's trial."""
        return self.build_spec(
            job.loss,
            job.params,
            trial=job.trial,
            seed=job.seed,
            split=job.split,
            cache_dir=cache_dir,
            checkpoint_dir=checkpoint_dir,
        )

    def build_spec(
        self,
        loss: str,
        params: Mapping[str, ParamValue],
        *,
        trial: str,
        seed: int,
        split: Split = "validation",
        cache_dir: Path,
        checkpoint_dir: str,
    ) -> TrialSpec:
        """Return the spec of a training of `loss` at a point.

        Args:
            loss: Registry name.
            params: One value per searched hyperparameter.
            trial: Key of the trial.
            seed: Seed of the training.
            split: Which classes are scored.
            cache_dir: Where nodes keep decoded data.
            checkpoint_dir: Where checkpoints go: a folder or an S3 prefix; empty for none.
        """
        settings, arguments = self.resolve_settings(loss, params)
        resources = self.file.resources
        return TrialSpec(
            trial=trial,
            loss=loss,
            loss_knobs=arguments,
            settings=settings,
            seed=seed,
            # Scores of one study are means over equally many seeds, so that they are comparable;
            # confirmations give an interval over single seeds.
            replicas=1 if split == "test" else self.file.search.seeds_per_point,
            split=split,
            folds=self.file.protocol.folds,
            objective=self.file.protocol.objective,
            recall_at=self.file.protocol.recall_at,
            nmi=self.file.protocol.nmi,
            dataset={"name": self.file.data.name, **self.file.data.reader_options},
            backbone=self.file.backbone.model_dump(),
            cache_dir=str(cache_dir),
            checkpoint_dir=checkpoint_dir,
            checkpoint_every=self.file.storage.checkpoint_every,
            threads=max(1, math.floor(resources.cpus_per_trial / resources.ranks_per_trial)),
            resources=resources.model_dump(),
        )

    def published_points(self, loss: str) -> list[dict[str, ParamValue]]:
        """Return the published points, which run first, up to the budget of the first stage."""
        points = [dict(p.values) for p in self.spaces[loss].published]
        unique = [p for i, p in enumerate(points) if p not in points[:i]]
        return unique[: self.stages[0].points]

    def describe_excluded_points(self) -> list[str]:
        """Return one line per published point that is not run because it is out of range."""
        return [
            f"{loss}: {reason}"
            for loss, space in self.spaces.items()
            for reason in space.excluded_points
        ]

    def n_sobol_points(self, loss: str, stage: int) -> int:
        """Return the number of Sobol points of a loss up to the end of a stage."""
        share = 1.0 if self.file.search.sampler == "sobol" else self.file.search.sobol_share
        free = [s.points for s in self.stages[: stage + 1]]
        free[0] -= len(self.published_points(loss))
        budgets = zip(free, self.stages, strict=False)
        return sum(min(n, math.floor(s.points * share + 0.5)) for n, s in budgets)

    def n_sampler_points(self, loss: str, stage: int) -> int:
        """Return the number of sampled points of a loss up to the end of a stage."""
        points = sum(s.points for s in self.stages[: stage + 1])
        return points - len(self.published_points(loss)) - self.n_sobol_points(loss, stage)

    @property
    def n_points(self) -> int:
        """Number of searched points per loss: published, Sobol and sampled; equal for all."""
        return sum(stage.points for stage in self.stages)

    def n_repeated_sobol_points(self, loss: str) -> int:
        """Return the number of Sobol points that are repeated with other seeds."""
        first = self.n_sobol_points(loss, 0)
        return math.ceil(self.file.search.repeat_share * first) if first >= 3 else 0

    def max_trials(self, loss: str) -> int:
        """Return the largest number of trials of a loss: its points and their repeats."""
        repeated = (
            min(len(self.published_points(loss)), 1)
            + self.n_repeated_sobol_points(loss)
            + len(self.stages)
        )
        return self.n_points + repeated * (self.file.search.repeats - 1)

    def epochs_per_trial(self, loss: str) -> int:
        """Return the number of epochs of a full trial."""
        return self.resolve_settings(loss, self.example_point(loss))[0].epochs

    def example_point(self, loss: str) -> dict[str, ParamValue]:
        """Return a valid point: the published one, or the centre of every range."""
        from search_spaces.unit_scale import from_unit

        space = self.spaces[loss]
        if space.published:
            return dict(space.published[0].values)
        return {k: from_unit(d, 0.5) for k, d in space.distributions.items()}

    def with_extra_stage(self, trials: int) -> Plan:
        """Return this plan with a further stage of `trials` points per loss."""
        return replace(self, stages=(*self.stages, SearchStage(trials)))

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON types."""
        return {
            "file": self.file.model_dump(mode="json"),
            "spaces": {loss: space.to_dict() for loss, space in self.spaces.items()},
            "stages": [vars(stage) for stage in self.stages],
            "study_id": self.study_id,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_dict` wrote."""
        return cls(
            file=parse_config(data["file"]),
            spaces={loss: SearchSpace.from_dict(space) for loss, space in data["spaces"].items()},
            stages=tuple(SearchStage(**stage) for stage in data["stages"]),
            study_id=str(data.get("study_id", "")),
        )


def save_plan(plan: Plan, directory: Path) -> None:
    """Write the plan to the study's directory, replacing an older one atomically.

    After a power cut either the old or the new plan is complete.
    """
    temporary = directory / f".{PLAN_FILE}.new"
    write_owner_only(temporary, json.dumps(plan.to_dict(), indent=1), plan.file.tracking.uri)
    temporary.replace(directory / PLAN_FILE)
    folder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load_plan(directory: Path) -> Plan:
    """Read the plan from a study's directory.

    Raises:
        StudyError: If there is no plan, or it cannot be read.
    """
    path = directory / PLAN_FILE
    try:
        return Plan.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise StudyError(f"{directory} is not a study directory: no {PLAN_FILE}") from None
    except (StudyError, ValueError, KeyError, TypeError, OSError) as error:
        raise StudyError(f"{path} is damaged: {error}") from None
