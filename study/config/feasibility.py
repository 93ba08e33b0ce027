"""Can every value of a plan be trained? Asked before a study exists, not when a trial starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces.space import Value
from study.errors import StudyError, nearest
from trainables.data.augment import PRESETS
from trainables.losses import build_loss, loss_knobs

if TYPE_CHECKING:
    from study.plan import Plan


def check_values(plan: Plan, loss: str) -> None:
    """Build settings and loss at some point, and at both ends or each choice of every knob.

    Raises:
        StudyError: The first value that cannot be trained, in one line.
    """
    example = plan.example(loss)
    arguments = _check_point(plan, loss, example, "")
    missing = [k for k, info in loss_knobs(loss).items() if info.required and k not in arguments]
    if missing:
        raise StudyError(f"{loss}: no value or range for {', '.join(missing)}")
    _build(loss, arguments, "")
    for knob, distribution in plan.spaces[loss].distributions.items():
        for value in corners(distribution):
            if value != example[knob]:
                where = f" (at {knob}={value} of its range)"
                moved = {**example, knob: value}
                _build(loss, _check_point(plan, loss, moved, where), where)
    _check_batches(plan, loss, example)


def corners(distribution: BaseDistribution) -> tuple[Value, ...]:
    """Both ends of a range, or every choice."""
    if isinstance(distribution, CategoricalDistribution):
        return tuple(distribution.choices)  # type: ignore[arg-type]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return (distribution.low, distribution.high)


def _check_point(
    plan: Plan, loss: str, values: Mapping[str, Value], where: str
) -> dict[str, Value]:
    """The loss's arguments at a point whose settings are possible."""
    try:
        settings, arguments = plan.settings(loss, values)
    except ValueError as error:
        raise StudyError(f"{loss}: {error}{where}") from None
    if settings.augment not in PRESETS:
        hint = nearest(settings.augment, PRESETS)
        raise StudyError(f"{loss}: unknown `augment` {settings.augment!r}; {hint}{where}")
    return arguments


def _build(loss: str, arguments: Mapping[str, Value], where: str) -> None:
    knobs: dict[str, Any] = dict(arguments)
    try:
        build_loss(loss, n_classes=4, dim=4, **knobs)
    except (ValueError, TypeError) as error:
        text = " ".join(str(error).split())
        named = text if text.startswith(f"{loss}:") else f"{loss}: {text}"
        raise StudyError(f"{named}{where}") from None


def _check_batches(plan: Plan, loss: str, example: Mapping[str, Value]) -> None:
    """The most images of a class must fit the smallest batch: the sampler may meet both."""
    settings, _ = plan.settings(loss, example)
    known: Mapping[str, BaseDistribution] = plan.spaces[loss].distributions
    sizes, images = list(_whole(known, "batch_size")), list(_whole(known, "images_per_class"))
    smallest = min(sizes, default=settings.batch_size)
    most = max(images, default=settings.images_per_class)
    if most > smallest:
        raise StudyError(
            f"{loss}: `images_per_class <= batch_size` must hold, but got "
            f"images_per_class={most}, batch_size={smallest}"
        )


def _whole(distributions: Mapping[str, BaseDistribution], knob: str) -> Iterator[int]:
    if knob in distributions:
        yield from (int(value) for value in corners(distributions[knob]))
