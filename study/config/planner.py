"""Planner: builds the plan of a study file, after checking it against the known losses.

The study file changes the default search space of each loss: ranges to search, values to fix, and
hyperparameters that have no effect in this study.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from search_spaces import find_optional_param, get_space
from search_spaces.shared.training import PROXY_RATE_PARAMS, TRAINING_PARAMS
from search_spaces.space import Hyperparameter, ParamValue, SearchSpace
from study.config.feasibility import check_feasible
from study.config.plan import Plan, SearchStage
from study.config.schema import BackboneSection, StudyConfig
from study.errors import StudyError, suggest_nearest_name
from trainables.config import TrainingSettings
from trainables.data.readers.array_files import holds_features
from trainables.losses import loss_params, pml, supports_negative_share
from trainables.losses.base.hyperparameters import ParamInfo

NEGATIVE_SHARE_PARAM, PROXY_LR_PARAM = "negative_share", "proxy_lr"
PROXY_ONLY_PARAMS = {
    NEGATIVE_SHARE_PARAM: "only the built-in proxy losses sample negative classes",
    PROXY_LR_PARAM: "it is the learning rate of proxies, and the loss has none",
}
"""Training hyperparameters that affect losses with proxies only, with the reason."""


def build_plan(file: StudyConfig) -> Plan:
    """Check a study file against the known losses, hyperparameters and ranges; return its plan.

    Raises:
        StudyError: The first problem, in one line.
    """
    _check_backbone(file)
    inert = _inert_params(file)
    spaces = {loss: _build_space(loss, file, inert) for loss in file.losses}
    _check_proxy_params(file)
    stages = (SearchStage(file.search.trials),)
    plan = Plan(file=file, spaces=spaces, stages=stages, study_id=secrets.token_hex(8))
    for loss in plan.losses:
        check_feasible(plan, loss)
    return plan


def default_space(loss: str, *, variant: str = "") -> tuple[SearchSpace, dict[str, ParamInfo]]:
    """Return the search space of a loss without a study file, and the loss's hyperparameters.

    Raises:
        ValueError: If the loss or variant is unknown, or the loss's library is not installed or
            cannot be used with it.
    """
    space, loss_info = get_space(loss, variant=variant), loss_params(loss)
    if loss.startswith(pml.PML_PREFIX) and pml.has_proxies(loss):
        space = replace(space, nuisance=PROXY_RATE_PARAMS)
    return space, loss_info


def _build_space(loss: str, file: StudyConfig, inert: Mapping[str, ParamValue]) -> SearchSpace:
    """Return the loss's search space with the changes of the study file.

    Args:
        loss: Registry name of the loss.
        file: The study file.
        inert: Hyperparameters without effect in this study, with the values to fix them at.
    """
    section = file.losses[loss]
    try:
        base, own = default_space(loss, variant=section.space)
    except ValueError as error:
        raise StudyError(f"losses: {error}") from None
    _check_param_names(loss, file, own)
    # Training values of the study do not apply where a named variant of the space has its own.
    exempt = {*base.searched_params, *base.fixed} if section.space else set()
    exempt |= {param for param in PROXY_ONLY_PARAMS if not _affects_loss(param, loss)}
    common = {k: r for k, r in file.searched_training_params.items() if k not in exempt}
    ranges = {k: r for k, r in {**common, **section.search}.items() if k not in section.fixed}
    if useless := [k for k in ranges if k in inert]:
        raise StudyError(
            f"losses.{loss}: {useless[0]} is searched but has no effect because "
            f"{_explain_inert_params(file)}"
        )
    conditions = {k: v for k, v in file.fixed_training_params.items() if k not in exempt}
    given = {**conditions, **section.fixed}
    if useless := [k for k in inert if k in given and given[k] != inert[k]]:
        raise StudyError(
            f"losses.{loss}: {useless[0]} is set to {given[useless[0]]} but has no effect because "
            f"{_explain_inert_params(file)}"
        )
    fixed = {**conditions, **{k: v for k, v in inert.items() if k in base.searched_params}}
    fixed = {k: v for k, v in {**fixed, **section.fixed}.items() if k not in ranges}
    integers = {*_integer_setting_names(), *(k for k, info in own.items() if info.type is int)}
    hints = {k: info for k in ranges if (info := _find_known_param(loss, k, base)) is not None}
    if unknown := [k for k, r in ranges.items() if r is None and k not in hints]:
        raise StudyError(
            f"losses.{loss}: {unknown[0]} has no default range; specify one under `search`"
        )
    search = {
        k: hints[k].distribution if r is None else r.to_distribution(k, is_integer=k in integers)
        for k, r in ranges.items()
    }
    # Authors used the default of a hyperparameter that they do not mention; so do their points.
    defaults = {**vars(TrainingSettings()), **{k: info.default for k, info in own.items()}}
    unmentioned = {
        k: defaults[k] for k in search if k not in base.searched_params and defaults[k] is not None
    }
    try:
        base = replace(base, fixed={**unmentioned, **base.fixed})
        space = base.with_changes(search=search, fixed=fixed, hints=hints)
    except ValueError as error:
        raise StudyError(f"losses.{loss}: {error}") from None
    if not space.searched_params:
        raise StudyError(
            f"losses.{loss}: every hyperparameter is fixed, so there is nothing to search"
        )
    return space


def _check_param_names(loss: str, file: StudyConfig, own: Mapping[str, ParamInfo]) -> None:
    """Reject unknown hyperparameters and those that a study cannot search."""
    section = file.losses[loss]
    known = {*own, *TRAINING_PARAMS, *_setting_names()}
    for param in (*section.search, *section.fixed):
        if param not in known:
            raise StudyError(
                f"losses.{loss}: unknown hyperparameter {param!r}; "
                f"{suggest_nearest_name(param, known)}"
            )
    for param in file.training:
        if param not in _setting_names():
            raise StudyError(
                f"training: unknown hyperparameter {param!r}; "
                f"{suggest_nearest_name(param, _setting_names())}"
            )
    both = sorted(set(section.search) & set(section.fixed))
    if both:
        raise StudyError(f"losses.{loss}: {', '.join(both)} cannot be both searched and fixed")
    if (
        "epochs" in {**file.searched_training_params, **section.search}
        and "epochs" not in section.fixed
    ):
        raise StudyError(
            f"losses.{loss}: epochs cannot be searched because trials of different lengths are not "
            "comparable; specify a single value"
        )


def _find_known_param(loss: str, param: str, base: SearchSpace) -> Hyperparameter | None:
    """Return what is known about a hyperparameter: its range, symbol and reason."""
    return (
        base.searched_params.get(param)
        or find_optional_param(loss, param)
        or TRAINING_PARAMS.get(param)
    )


def _inert_params(file: StudyConfig) -> dict[str, ParamValue]:
    """Return the hyperparameters of an untrained backbone, with the values to fix them at."""
    on_features = _uses_features(file)
    if not (file.backbone.frozen or on_features):
        return {}
    inert: dict[str, ParamValue] = {
        "backbone_lr": 0.0,
        "warmup_epochs": 0,
        "bn_freeze": "none",
        "augment": "none",
    }
    return {**inert, "pooling": "avg"} if on_features else inert


def _check_backbone(file: StudyConfig) -> None:
    """Reject a backbone section if the data are precomputed features."""
    if file.backbone.name != "none" and file.backbone != BackboneSection() and _uses_features(file):
        raise StudyError(
            f"backbone: {file.backbone.name} is not used because the data are precomputed "
            "features; remove the section"
        )


def _check_proxy_params(file: StudyConfig) -> None:
    """Reject settings of proxies that affect no loss, and sharding of proxies on one rank.

    A setting in `training` does not apply to losses without proxies; it is rejected only if no loss
    has proxies.
    """
    for param, reason in PROXY_ONLY_PARAMS.items():
        unaffected = [loss for loss in file.losses if not _affects_loss(param, loss)]
        sections = {
            f"losses.{loss}": {**file.losses[loss].search, **file.losses[loss].fixed}
            for loss in unaffected
        }
        if len(unaffected) == len(file.losses):
            sections["training"] = {**file.training}
        for section, values in sections.items():
            is_default = param == NEGATIVE_SHARE_PARAM and values.get(param) == 1
            if param in values and not is_default:
                raise StudyError(f"{section}: {param} has no effect because {reason}")
    if file.resources.shard_proxies and file.resources.ranks_per_trial == 1:
        raise StudyError(
            "resources: shard_proxies distributes the proxies over the ranks of a trial, but "
            "ranks_per_trial is 1"
        )


def _affects_loss(param: str, loss: str) -> bool:
    """Whether a hyperparameter of proxies affects the training of a loss."""
    if param == NEGATIVE_SHARE_PARAM:
        return supports_negative_share(loss)
    return (
        pml.has_proxies(loss) if loss.startswith(pml.PML_PREFIX) else supports_negative_share(loss)
    )


def _uses_features(file: StudyConfig) -> bool:
    if file.backbone.name == "none":
        return True
    return file.data.name == "arrays" and holds_features(
        str(file.data.reader_options.get("path", ""))
    )


def _explain_inert_params(file: StudyConfig) -> str:
    return "the data are precomputed features" if _uses_features(file) else "the backbone is frozen"


def _integer_setting_names() -> list[str]:
    return [
        k
        for k, known in TrainingSettings.__dataclass_fields__.items()
        if known.type in (int, "int")
    ]


def _setting_names() -> Sequence[str]:
    return tuple(TrainingSettings.__dataclass_fields__)
