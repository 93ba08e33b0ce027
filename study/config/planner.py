"""Does a study file fit the losses, knobs and ranges that are known, and what does it mean?

What it says is laid over each loss's own space: ranges to search, values to fix, and knobs that can
have no effect here.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces import extra_knob, get_space
from search_spaces.space import Knob, Space, Value
from search_spaces.training import PROXY_RATES, TRAINING_KNOBS
from study.corners import check_values
from study.errors import StudyError, nearest
from study.file import BackboneSection, StudyFile
from study.plan import Plan, Stage
from study.ranges import Range
from trainables.data.array_files import holds_features
from trainables.losses import loss_knobs, pml, samples_classes
from trainables.losses.knobs import KnobInfo
from trainables.settings import Settings

SHARE, PROXY_RATE = "negative_share", "proxy_lr"
OF_PROXIES = {
    SHARE: "only our losses with proxies compare with a part of the classes",
    PROXY_RATE: "it is the rate of proxies, and there are none",
}


def build_plan(file: StudyFile) -> Plan:
    """Check a study file against the known losses, knobs and ranges.

    Raises:
        StudyError: The first thing that is wrong, in one line.
    """
    _check_backbone(file)
    still = _without_effect(file)
    spaces = {loss: _space(loss, file, still) for loss in file.losses}
    _check_proxies(file)
    stages = (Stage(file.search.trials),)
    plan = Plan(file=file, spaces=spaces, stages=stages, study_id=secrets.token_hex(8))
    for loss in plan.losses:
        check_values(plan, loss)
    return plan


def ready_made(loss: str, *, variant: str = "") -> tuple[Space, dict[str, KnobInfo]]:
    """The space of a loss before a study file changes it, and all knobs the loss takes.

    Raises:
        ValueError: No such loss or variant, or its library is missing or has no use for it.
    """
    space, own = get_space(loss, variant=variant), loss_knobs(loss)
    if loss.startswith(pml.PREFIX) and pml.has_proxies(loss):
        space = replace(space, nuisance=PROXY_RATES)
    return space, own


def _space(loss: str, file: StudyFile, still: Mapping[str, Value]) -> Space:
    """The loss's space with the study file's changes; `still` are knobs without effect."""
    section = file.losses[loss]
    try:
        base, own = ready_made(loss, variant=section.space)
    except ValueError as error:
        raise StudyError(f"losses: {error}") from None
    _check_names(loss, file, own)
    # What is true of all losses yields to what a ready-made space says of this one.
    said = {*base.searched, *base.fixed} if section.space else set()
    said |= {knob for knob in OF_PROXIES if not _reaches(knob, loss)}
    for_all = {k: r for k, r in file.searched_for_all.items() if k not in said}
    ranges = {k: r for k, r in {**for_all, **section.search}.items() if k not in section.fixed}
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


def _check_names(loss: str, file: StudyFile, own: Mapping[str, KnobInfo]) -> None:
    """Refuse knobs that nobody knows, and those that a study cannot search."""
    section = file.losses[loss]
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
    if "epochs" in {**file.searched_for_all, **section.search} and "epochs" not in section.fixed:
        raise StudyError(
            f"losses.{loss}: epochs cannot be searched, because trials of different length cannot "
            "be compared; give one value"
        )


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


def _check_backbone(file: StudyFile) -> None:
    """Refuse a backbone for data that are features: nothing would pass through it."""
    if file.backbone.name != "none" and file.backbone != BackboneSection() and _on_features(file):
        raise StudyError(
            f"backbone: {file.backbone.name} sees no picture, because the data are features; "
            "leave the section out"
        )


def _check_proxies(file: StudyFile) -> None:
    """Refuse what is asked of proxies where there are none, or none to spread.

    What is said of proxies for all losses is left out of those without; if it reaches none of them
    it is refused.
    """
    for knob, why in OF_PROXIES.items():
        others = [loss for loss in file.losses if not _reaches(knob, loss)]
        places = {f"losses.{o}": {**file.losses[o].search, **file.losses[o].fixed} for o in others}
        if len(others) == len(file.losses):
            places["training"] = {**file.training}
        for place, said in places.items():
            if knob in said and (knob, said[knob]) != (SHARE, 1):  # which is all of them
                raise StudyError(f"{place}: {knob} changes nothing, because {why}")
    if file.resources.shard_proxies and file.resources.ranks_per_trial == 1:
        raise StudyError(
            "resources: shard_proxies spreads proxies over the ranks of a trial, but "
            "ranks_per_trial is 1"
        )


def _reaches(knob: str, loss: str) -> bool:
    """Whether a knob of proxies changes the training of a loss."""
    if knob == SHARE:
        return samples_classes(loss)
    return pml.has_proxies(loss) if loss.startswith(pml.PREFIX) else samples_classes(loss)


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
