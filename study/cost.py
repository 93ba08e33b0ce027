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


def estimate(plan: Plan, bench: Bench) -> dict[str, Any]:
    """Slot-hours of the whole plan, measured by a few training steps of each loss here.

    An upper bound: early stopping only shortens it. GPU hours are these hours on a machine as
    fast as this one.
    """
    seconds = {loss: epoch_seconds(plan, bench, loss) for loss in plan.losses}
    epochs = {loss: plan.trials(loss) * plan.epochs(loss) for loss in plan.losses}
    total = sum(seconds[loss] * epochs[loss] for loss in plan.losses)
    resources = plan.file.resources
    return {
        "seconds_per_epoch": seconds,
        "epochs_at_most": sum(epochs.values()),
        "slot_hours_at_most": total / 3600,
        # Measured in one process; ranks share the work, each with its GPU.
        "gpu_hours_at_most": total / 3600 * resources.gpus_per_trial / resources.ranks_per_trial,
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
    """The cost in one line."""
    hours = cost["slot_hours_at_most"]
    gpu = cost["gpu_hours_at_most"]
    text = f"cost: at most {cost['epochs_at_most']} epochs, {clock(hours * 3600)} of one slot"
    return text + (f", {gpu:.1f} GPU hours" if gpu else "") + " at this machine's speed"
