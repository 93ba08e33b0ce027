"""Device check of `study doctor --gpu`: exactness, ranks and training speed of the GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from search_spaces import get_space
from trainables.device_checks.device_info import describe_device, explain_missing_cuda
from trainables.device_checks.numerics import (
    MAX_GREY_LEVELS,
    compare_image_transforms,
    compare_loss,
    compare_scores,
)
from trainables.device_checks.rank_exactness import RANK_TOLERANCE, RankCase, compare_ranks
from trainables.device_checks.rank_processes import RankProcessError
from trainables.device_checks.training_speed import SpeedCase, measure_device_speed
from trainables.losses import LOSSES, loss_params

MAX_RANKS = 8
MAX_SCORE_DIFFERENCE = 1e-6
_RANK_LOSSES = ("proxy_anchor", "norm_softmax+synthesis", "triplet")

Echo = Callable[[str], None]


def check_gpus(echo: Echo) -> list[str]:
    """Check the GPUs of this machine, or say that there are none, and return the problems."""
    if reason := explain_missing_cuda():
        echo(f"GPU check   skipped: {reason}")
        return []
    problems = []
    for index in range(torch.cuda.device_count()):
        try:
            with torch.cuda.device(index):
                problems += check_device(torch.device("cuda", index), echo)
        except RuntimeError as error:  # a broken device must not hide the state of the others
            problems.append(f"cuda:{index} cannot train: {error}")
    return problems + check_ranks(torch.device("cuda", 0), torch.cuda.device_count(), echo)


def check_device(
    device: torch.device, echo: Echo, speed_case: SpeedCase | None = None
) -> list[str]:
    """Compare a device with the CPU, measure its training speed, and return the problems.

    Args:
        device: Any device of torch.
        echo: Called with each line of the result.
        speed_case: Training whose speed is measured, by default ResNet-50 at 224 px.
    """
    echo(f"device      {describe_device(device)}")
    problems = [*_check_losses(device, echo), *_check_images_and_scores(device, echo)]
    echo(f"training    {_describe_speed(device, speed_case or SpeedCase())}")
    return problems


def check_ranks(device: torch.device, n_devices: int, echo: Echo) -> list[str]:
    """Compare the gradients of several ranks with those of one, and return the problems."""
    n_ranks = min(n_devices, MAX_RANKS)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if n_ranks < 2:
        echo("ranks       not checked: they need two GPUs")
        return []
    cases = [RankCase(loss, published_params(loss)) for loss in _RANK_LOSSES]
    cases.append(replace(cases[0], shard_proxies=True))
    try:
        differences = compare_ranks(cases, n_ranks, device)
    except RankProcessError as error:
        echo(f"ranks       {n_ranks} over {backend}: failed")
        return [f"{n_ranks} ranks over {backend} cannot train: {error}"]
    worst = max(differences.values())
    echo(f"ranks       {n_ranks} over {backend}: gradients differ from one by {worst:.0e} at most")
    return [
        f"gradients of {title} with {n_ranks} ranks differ by {difference:.1e} from those of one"
        for title, difference in differences.items()
        if not difference <= RANK_TOLERANCE
    ]


def list_checked_losses() -> list[str]:
    """Return all losses, and all proxy losses with synthesis."""
    proxy = [name for name, info in LOSSES.items() if info.family == "proxy"]
    return [*LOSSES, *(f"{name}+synthesis" for name in proxy)]


def published_params(loss: str) -> dict[str, Any]:
    """Return the hyperparameters of the first published point of a loss."""
    known = loss_params(loss)
    return {k: v for k, v in get_space(loss).published[0].values.items() if k in known}


def _check_losses(device: torch.device, echo: Echo) -> Iterator[str]:
    names = list_checked_losses()
    found = [compare_loss(device, name, published_params(name)) for name in names]
    n_exact = sum(difference.is_exact for difference in found)
    worst = {
        dtype: max(getattr(difference, dtype) for difference in found)
        for dtype in ("float64", "float32")
    }
    echo(
        f"losses      {n_exact} of {len(found)} equal the CPU's; largest difference "
        f"{worst['float64']:.0e} in float64, {worst['float32']:.0e} in float32"
    )
    for difference in found:
        if not difference.is_exact:
            yield (
                f"{difference.loss} differs from the CPU by {difference.float64:.1e} in float64 "
                f"and {difference.float32:.1e} in float32"
            )


def _check_images_and_scores(device: torch.device, echo: Echo) -> Iterator[str]:
    levels = compare_image_transforms(device)
    echo(f"images      crops differ from the CPU's by {levels:.2f} grey levels at most")
    if not levels <= MAX_GREY_LEVELS:
        yield f"image crops differ from the CPU's by {levels:.2f} grey levels, more than one"
    score = compare_scores(device)
    echo(f"scores      differ from the CPU's by {score:.0e} at most")
    if not score <= MAX_SCORE_DIFFERENCE:
        yield f"retrieval scores differ from the CPU's by {score:.1e}"


def _describe_speed(device: torch.device, case: SpeedCase) -> str:
    """Measure the speed and return a line; a batch that does not fit is halved."""
    while True:
        try:
            speed = measure_device_speed(case, device)
            break
        except torch.OutOfMemoryError:
            if case.batch_size <= 8:
                raise
            case = replace(case, batch_size=case.batch_size // 2)
            torch.get_device_module(device).empty_cache()
    text = f"{case.backbone} at {case.image_size} px, batch {case.batch_size}: "
    text += f"{speed.images_per_second:,.0f} images/s"
    if speed.peak_memory_bytes is not None:
        text += f", {speed.peak_memory_bytes / 2**30:.1f} GiB at the peak"
    return text
