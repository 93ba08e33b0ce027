"""Feasibility check: build the settings and the loss at the ends of every range.

It runs before a study is created, so that a value that cannot be trained does not surface only when
a trial starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution

from search_spaces.space import ParamValue, range_endpoints
from study.errors import StudyError, suggest_nearest_name
from trainables.data.augment import AUGMENTATION_PRESETS
from trainables.losses import build_loss, loss_params

if TYPE_CHECKING:
    from study.config.plan import Plan


def check_feasible(plan: Plan, loss: str) -> None:
    """Build settings and loss at one point, and at the ends or choices of every hyperparameter.

    Raises:
        StudyError: The first value that cannot be trained, in one line.
    """
    example = plan.example_point(loss)
    arguments = _check_point(plan, loss, example, "")
    missing = [k for k, info in loss_params(loss).items() if info.required and k not in arguments]
    if missing:
        raise StudyError(
            f"{loss}: no value or range for {', '.join(missing)}; add it under `fixed` or `search`"
        )
    _check_loss_builds(loss, arguments, "")
    for param, distribution in plan.spaces[loss].distributions.items():
        for value in range_endpoints(distribution):
            if value != example[param]:
                where = f" (with {param}={value} from its range)"
                moved = {**example, param: value}
                _check_loss_builds(loss, _check_point(plan, loss, moved, where), where)
    _check_batch_sizes(plan, loss, example)


def _check_point(
    plan: Plan, loss: str, params: Mapping[str, ParamValue], where: str
) -> dict[str, ParamValue]:
    """Return the arguments of the loss at a point, after checking its training settings."""
    try:
        settings, arguments = plan.resolve_settings(loss, params)
    except ValueError as error:
        raise StudyError(f"{loss}: {error}{where}") from None
    if settings.augment not in AUGMENTATION_PRESETS:
        hint = suggest_nearest_name(settings.augment, AUGMENTATION_PRESETS)
        raise StudyError(f"{loss}: unknown `augment` {settings.augment!r}; {hint}{where}")
    return arguments


def _check_loss_builds(loss: str, arguments: Mapping[str, ParamValue], where: str) -> None:
    keywords: dict[str, Any] = dict(arguments)
    try:
        build_loss(loss, n_classes=4, dim=4, **keywords)
    except (ValueError, TypeError) as error:
        text = " ".join(str(error).split())
        message = text if text.startswith(f"{loss}:") else f"{loss}: {text}"
        raise StudyError(f"{message}{where}") from None


def _check_batch_sizes(plan: Plan, loss: str, example: Mapping[str, ParamValue]) -> None:
    """Check that the most images per class fit into the smallest batch."""
    settings, _ = plan.resolve_settings(loss, example)
    distributions = plan.spaces[loss].distributions
    batch_size = min(_integer_endpoints(distributions, "batch_size"), default=settings.batch_size)
    images_per_class = max(
        _integer_endpoints(distributions, "images_per_class"), default=settings.images_per_class
    )
    if images_per_class > batch_size:
        raise StudyError(
            f"{loss}: `images_per_class <= batch_size` must hold, but got "
            f"images_per_class={images_per_class}, batch_size={batch_size}"
        )


def _integer_endpoints(distributions: Mapping[str, BaseDistribution], param: str) -> Iterator[int]:
    if param in distributions:
        yield from (int(value) for value in range_endpoints(distributions[param]))
