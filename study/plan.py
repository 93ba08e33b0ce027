"""From a study file to what will be run: losses, spaces, stages, trial specs.

A plan is checked against everything the three packages know, and holds all that a study needs to
go on later: it is written to the study's directory once and read back by every other command.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces import extra_knob, get_space
from search_spaces.space import Knob, Space, Value
from search_spaces.training import PROXY_RATES, TRAINING_KNOBS
from study.errors import StudyError, nearest
from study.file import Range, StudyFile
from study.jobs import Job
from study.read_file import parse_study
from study.tracking.redaction import redact
from trainables.data.array_files import holds_features
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


def build_plan(file: StudyFile) -> Plan:
    """Check a study file against the known losses, knobs and ranges.

    Raises:
        StudyError: The first thing that is wrong, in one line.
    """
    from study.corners import check_values

    still = _without_effect(file)
    spaces = {loss: _space(loss, file, still) for loss in file.losses}
    stages = (Stage(file.search.trials),)
    plan = Plan(file=file, spaces=spaces, stages=stages, study_id=secrets.token_hex(8))
    for loss in plan.losses:
        check_values(plan, loss)
    return plan


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


def _space(loss: str, file: StudyFile, still: Mapping[str, Value]) -> Space:
    """The loss's space with the study file's changes; `still` are knobs without effect."""
    from trainables.losses import loss_knobs, pml

    section = file.losses[loss]
    try:
        base = get_space(loss, variant=section.space)
        own = loss_knobs(loss)
        if loss.startswith(pml.PREFIX) and pml.has_proxies(loss):
            base = replace(base, nuisance=PROXY_RATES)
    except ValueError as error:
        raise StudyError(f"losses: {error}") from None
    known = {*own, *TRAINING_KNOBS, *_setting_names()}
    for knob in (*section.search, *section.fixed):
        if knob not in known:
            raise StudyError(f"losses.{loss}: unknown knob {knob!r}; {nearest(knob, known)}")
    for knob in file.training:
        if knob not in _setting_names():
            raise StudyError(f"training: unknown knob {knob!r}; {nearest(knob, _setting_names())}")
    both = sorted(set(section.search) & set(section.fixed))
    if both:
        raise StudyError(f"losses.{loss}: {', '.join(both)} cannot be both searched and fixed")
    # What is true of all losses yields to what a ready-made space says of this one.
    said = {*base.searched, *base.fixed} if section.space else set()
    for_all = {k: r for k, r in file.searched_for_all.items() if k not in said}
    ranges = {k: r for k, r in {**for_all, **section.search}.items() if k not in section.fixed}
    if "epochs" in ranges:
        raise StudyError(
            f"losses.{loss}: epochs cannot be searched, because trials of different length cannot "
            "be compared; give one value"
        )
    if dead := [k for k in ranges if k in still]:
        raise StudyError(
            f"losses.{loss}: {dead[0]} is searched but changes nothing, because {_why(file)}"
        )
    conditions = {k: v for k, v in file.conditions.items() if k not in said}
    given = {**conditions, **section.fixed}
    if dead := [k for k in still if k in given and given[k] != still[k]]:
        raise StudyError(
            f"losses.{loss}: {dead[0]} is set to {given[dead[0]]} but changes nothing, because "
            f"{_why(file)}"
        )
    fixed = {**conditions, **{k: v for k, v in still.items() if k in base.searched}}
    fixed = {k: v for k, v in {**fixed, **section.fixed}.items() if k not in ranges}
    whole = {*_whole_settings(), *(k for k, info in own.items() if info.type is int)}
    hints = {k: info for k in ranges if (info := _known_knob(loss, k, base)) is not None}
    if unknown := [k for k, r in ranges.items() if r is None and k not in hints]:
        raise StudyError(f"losses.{loss}: no range of {unknown[0]} is known; give one")
    search = {
        k: hints[k].distribution if r is None else _distribution(k, r, whole=k in whole)
        for k, r in ranges.items()
    }
    # A knob that authors did not mention was at its default: so are the published points.
    defaults = {**vars(Settings()), **{k: info.default for k, info in own.items()}}
    silent = {k: defaults[k] for k in search if k not in base.searched and defaults[k] is not None}
    try:
        base = replace(base, fixed={**silent, **base.fixed})
        space = base.with_changes(search=search, fixed=fixed, hints=hints)
    except ValueError as error:
        raise StudyError(f"losses.{loss}: {error}") from None
    if not space.searched:
        raise StudyError(f"losses.{loss}: every knob is fixed, so there is nothing to search")
    return space


def _known_knob(loss: str, knob: str, base: Space) -> Knob | None:
    """What we know of a knob: its range, symbol and reason."""
    return base.searched.get(knob) or extra_knob(loss, knob) or TRAINING_KNOBS.get(knob)


def _without_effect(file: StudyFile) -> dict[str, Value]:
    """Knobs of a backbone that does not train, with a value to fix them at."""
    on_features = _on_features(file)
    if not (file.backbone.frozen or on_features):
        return {}
    still: dict[str, Value] = {
        "backbone_lr": 0.0,
        "warmup_epochs": 0,
        "bn_freeze": "none",
        "augment": "none",
    }
    return {**still, "pooling": "avg"} if on_features else still


def _on_features(file: StudyFile) -> bool:
    if file.backbone.name == "none":
        return True
    return file.data.name == "arrays" and holds_features(str(file.data.options.get("path", "")))


def _why(file: StudyFile) -> str:
    return "the data are features" if _on_features(file) else "the backbone is frozen"


def _distribution(knob: str, given: Range, *, whole: bool) -> BaseDistribution:
    """Optuna's distribution of a range; whole numbers stay whole where the knob is one."""
    if given.choices is not None:
        return CategoricalDistribution(given.choices)
    assert given.low is not None
    assert given.high is not None
    if given.integer or whole:
        step = 1 if given.step is None else given.step
        if any(number != int(number) for number in (given.low, given.high, step)):
            steps = "" if given.step is None else f" in steps of {given.step:g}"
            raise StudyError(
                f"`{knob}` is a whole number, but its range is {given.low:g}..{given.high:g}{steps}"
            )
        return IntDistribution(int(given.low), int(given.high), given.log, int(step))
    return FloatDistribution(given.low, given.high, given.log, given.step)


def _whole_settings() -> list[str]:
    return [k for k, known in Settings.__dataclass_fields__.items() if known.type in (int, "int")]


def _setting_names() -> Sequence[str]:
    return tuple(Settings.__dataclass_fields__)
