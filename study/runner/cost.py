"""What will a study cost? Trials times epochs times measured seconds."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from study.display import clock
from study.jobs import Job
from study.plan import Plan
from trainables.training import Training
from trainables.workbench import Bench

MEASURED_STEPS = 4


def estimate(plan: Plan, bench: Bench, *, gpu_price: float | None = None) -> dict[str, Any]:
    """Slot-hours of the whole plan, measured by a few training steps of each loss here.

    An upper bound for trials of one rank with whole GPUs: early stopping only shortens it. GPU
    hours are these hours on a machine as fast as this one.

    Args:
        plan: What would be run.
        bench: Its data and backbone.
        gpu_price: Of one GPU for one hour, in any currency.
    """
    seconds = {loss: epoch_seconds(plan, bench, loss) for loss in plan.losses}
    return spread(plan, seconds, gpu_price=gpu_price)


def spread(
    plan: Plan, seconds: dict[str, float], *, gpu_price: float | None = None
) -> dict[str, Any]:
    """The cost of a plan whose losses take so many seconds per epoch, measured in one process.

    Ranks share that work, and trials may share a GPU; `assumes` says what is then taken for granted
    (empty: nothing).
    """
    resources = plan.file.resources
    ranks = resources.ranks_per_trial
    seconds = {loss: measured / ranks for loss, measured in seconds.items()}
    trials = {loss: plan.trials(loss) for loss in plan.losses}
    epochs = {loss: plan.epochs(loss) for loss in plan.losses}
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


def epoch_seconds(plan: Plan, bench: Bench, loss: str) -> float:
    """Seconds of one epoch, from a few steps and one scoring."""
    job = Job("timing", loss, 0, "published", plan.example(loss), seed=0)
    spec = plan.trial_spec(job, cache_dir=bench.cache_dir, checkpoint_dir="")
    training = Training(replace(spec, replicas=1), bench)
    total = 0.0
    for replica in training.replicas:
        seconds, share = replica.time_steps(MEASURED_STEPS)
        started = time.perf_counter()
        replica.score()
        total += seconds / share + time.perf_counter() - started
    return total * spec.replicas


def in_words(cost: dict[str, Any]) -> str:
    """The cost, a line per loss and a line in all."""
    bound = cost["assumes"] or "at most"
    lines = [f"cost at this machine's speed, {bound} (early stopping only shortens it):"]
    width = max(map(len, cost["trials"]))
    for loss, trials in cost["trials"].items():
        seconds, epochs = cost["seconds_per_epoch"][loss], cost["epochs"][loss]
        whole = clock(trials * epochs * seconds)
        lines.append(
            f"  {loss:<{width}}  {trials} trials x {epochs} epochs x {seconds:.3g} s = {whole}"
        )
    text = f"  in all {cost['epochs_at_most']} epochs, {clock(cost['slot_hours'] * 3600)}"
    text += " of one slot"
    if cost["gpu_hours"]:
        text += f", {cost['gpu_hours']:.1f} GPU hours"
    if cost["price"] is not None:
        text += f", {cost['price']:.2f} at the given price"
    return "\n".join([*lines, text])
