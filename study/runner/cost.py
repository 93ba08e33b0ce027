"""Cost estimate: trials times epochs times measured seconds, and the GPU memory of a step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from study.config.plan import Plan
from study.utils.format import format_duration
from trainables.config import TrialSpec
from trainables.training.context import TrainingContext
from trainables.training.memory_estimate import estimate_memory
from trainables.training.trial_trainer import TrialTrainer
from trainables.utils.precision_names import Precision

N_MEASURED_STEPS = 4


def estimate_cost(
    plan: Plan, context: TrainingContext, *, gpu_price: float | None = None
) -> dict[str, Any]:
    """Estimate the cost of a plan from a few training steps of each loss on this machine.

    The estimate is an upper bound for trials of one rank with whole GPUs, because early stopping
    only shortens trials. GPU hours assume GPUs as fast as this machine.

    Args:
        plan: What would be run.
        context: Its data and backbone.
        gpu_price: Price of one GPU for one hour, in any currency.
    """
    seconds = {loss: measure_epoch_seconds(plan, context, loss) for loss in plan.losses}
    return total_cost(plan, seconds, gpu_price=gpu_price)


def estimate_gpu_memory(plan: Plan, context: TrainingContext) -> dict[str, Any] | None:
    """Estimate the GPU memory of a training step with the largest batch of each loss.

    Returns:
        By loss the batch size, GiB of weights with their moments, MiB per image, and total GiB of
        a rank; and the precision. None if trials have no GPU.
    """
    resources = plan.file.resources
    if not resources.gpus_per_trial:
        return None
    by_loss: dict[str, Any] = {}
    for loss in plan.losses:
        spec = _build_timing_spec(plan, context, loss)
        precision: Precision = "bf16" if spec.settings.precision in ("auto", "bf16") else "fp32"
        trainer = TrialTrainer(replace(spec, replicas=1), context)
        n_replicas = spec.replicas * len(trainer.replicas)
        estimate = estimate_memory(trainer.replicas[0], precision)
        state_bytes = n_replicas * estimate.state_bytes
        searched = plan.spaces[loss].distributions.get("batch_size")
        batch_size = int(getattr(searched, "high", spec.settings.batch_size))
        share = -(-batch_size // resources.ranks_per_trial)
        if spec.settings.micro_batch != "auto":
            share = min(share, spec.settings.micro_batch)
        by_loss[loss] = {
            "batch_size": batch_size,
            "precision": precision,
            "state_gib": state_bytes / 2**30,
            "mib_per_image": estimate.bytes_per_image / 2**20,
            "total_gib": (state_bytes + share * estimate.bytes_per_image) / 2**30,
        }
    return by_loss


def format_gpu_memory(by_loss: Mapping[str, Any]) -> str:
    """Format the memory of the loss that needs most."""
    loss, most = max(by_loss.items(), key=lambda item: float(item[1]["total_gib"]))
    return (
        f"GPU memory of a step, at most about {most['total_gib']:.1f} GiB ({loss}, batch_size "
        f"{most['batch_size']}, {most['precision']}: {most['state_gib']:.1f} GiB of weights and "
        f"moments, {most['mib_per_image']:.0f} MiB per image), besides resident data; a GPU with "
        "less memory trains the batch in parts"
    )


def total_cost(
    plan: Plan, seconds: dict[str, float], *, gpu_price: float | None = None
) -> dict[str, Any]:
    """Return the cost of a plan from the seconds per epoch of each loss in one process.

    Ranks share that work, and trials may share a GPU; `assumes` states what the estimate then
    assumes (empty: nothing).
    """
    resources = plan.file.resources
    ranks = resources.ranks_per_trial
    seconds = {loss: measured / ranks for loss, measured in seconds.items()}
    trials = {loss: plan.max_trials(loss) for loss in plan.losses}
    epochs = {loss: plan.epochs_per_trial(loss) for loss in plan.losses}
    total = sum(trials[loss] * epochs[loss] * seconds[loss] for loss in plan.losses)
    gpu_hours = total / 3600 * resources.gpus_per_trial
    assumes = f"if the {ranks} ranks of a trial scale perfectly" if ranks > 1 else ""
    if 0 < resources.gpus_per_trial < 1:
        assumes = "if trials that share a GPU do not slow each other"
    return {
        "assumes": assumes,
        "seconds_per_epoch": seconds,
        "trials": trials,
        "epochs": epochs,
        "epochs_at_most": sum(trials[loss] * epochs[loss] for loss in plan.losses),
        "slot_hours": total / 3600,
        "gpu_hours": gpu_hours,
        "price": None if gpu_price is None else gpu_hours * gpu_price,
    }


def measure_epoch_seconds(plan: Plan, context: TrainingContext, loss: str) -> float:
    """Measure the seconds of one epoch from a few training steps and one evaluation."""
    spec = _build_timing_spec(plan, context, loss)
    training = TrialTrainer(replace(spec, replicas=1), context)
    total = 0.0
    for replica in training.replicas:
        seconds, share = replica.time_training_steps(N_MEASURED_STEPS)
        started = time.perf_counter()
        replica.compute_metrics()
        total += seconds / share + time.perf_counter() - started
    return total * spec.replicas


def _build_timing_spec(plan: Plan, context: TrainingContext, loss: str) -> TrialSpec:
    return plan.build_spec(
        loss,
        plan.example_point(loss),
        trial="timing",
        seed=0,
        cache_dir=context.cache_dir,
        checkpoint_dir="",
    )


def format_cost(cost: dict[str, Any]) -> str:
    """Format the cost as one line per loss and one line for the total."""
    bound = cost["assumes"] or "at most"
    lines = [f"cost at this machine's speed, {bound} (early stopping only shortens it):"]
    width = max(map(len, cost["trials"]))
    for loss, trials in cost["trials"].items():
        seconds, epochs = cost["seconds_per_epoch"][loss], cost["epochs"][loss]
        total = format_duration(trials * epochs * seconds)
        lines.append(
            f"  {loss:<{width}}  {trials} trials x {epochs} epochs x {seconds:.3g} s = {total}"
        )
    slot_time = format_duration(cost["slot_hours"] * 3600)
    text = f"  total: {cost['epochs_at_most']} epochs, {slot_time} of one slot"
    if cost["gpu_hours"]:
        text += f", {cost['gpu_hours']:.1f} GPU hours"
    if cost["price"] is not None:
        text += f", {cost['price']:.2f} at the given price"
    return "\n".join([*lines, text])
