"""What the tracking store is told of a study before its trials: plan, protocol, words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from study.code_version import code_version
from study.plan import Plan
from study.tracking.writer import Tracker
from study.tuning.sampling import sampler_name


def open_tracking(
    tracker: Tracker,
    plan: Plan,
    data: Mapping[str, Any],
    samplers: Mapping[str, Any],
    lists: Sequence[Path] = (),
) -> None:
    """Begin the study in its store, or go on with it.

    Args:
        tracker: Writes.
        plan: The study.
        data: As `describe_data` says.
        samplers: The sampler of each loss, with every setting.
        lists: Files that name all images which the notes on the data name only some of.
    """
    tracker.open_study(
        name=plan.name,
        plan={
            "spaces": {loss: space.to_dict() for loss, space in plan.spaces.items()},
            "protocol": protocol_record(plan, data),
            "baseline": {},
            "dataset": dict(data),
            "samplers": dict(samplers),
            "file": plan.file.model_dump(mode="json", exclude={"tracking"}),
        },
        losses=plan.losses,
        note=study_note(plan, data),
    )
    for file in lists:
        tracker.artifact(file, to="study", folder="data")


def protocol_record(plan: Plan, data: Mapping[str, Any]) -> dict[str, Any]:
    """What a report's header needs to know of the protocol."""
    file = plan.file
    return {
        "objective": file.protocol.objective,
        "folds": file.protocol.folds,
        "epochs": max(plan.epochs(loss) for loss in plan.losses),
        "tolerance": file.protocol.tolerance,
        "dataset": data["name"],
        "backbone": "features" if data["kind"] == "features" else file.backbone.name,
        "pretrained": bool(file.backbone.pretrained),
        "frozen": file.backbone.frozen,
        "sampler": ", ".join(sorted({_sampler(plan, loss) for loss in plan.losses})),
        "trials_per_loss": file.search.trials,
        "seeds_per_point": file.search.seeds_per_point,
        "seed": file.search.seed,
        "recall_at": ", ".join(map(str, file.protocol.recall_at)),
        "notes": list(data["notes"]),
    }


def _sampler(plan: Plan, loss: str) -> str:
    return sampler_name(plan.file.search.sampler, plan.spaces[loss], plan.points(loss))


def study_note(plan: Plan, data: Mapping[str, Any]) -> str:
    """What the study is, in words."""
    losses = ", ".join(plan.losses)
    return (
        f"Study **{plan.name}**: {losses} on {data['name']} "
        f"({data['train_classes']} training, {data['validation_classes']} validation and "
        f"{data['test_classes']} test classes), {plan.file.search.trials} points per loss, "
        f"objective {plan.file.protocol.objective} on validation classes."
    )


def trial_tags(data: Mapping[str, Any]) -> dict[str, str]:
    """What every trial of the study carries."""
    return {"data_fingerprint": str(data["fingerprint"]), "code_version": code_version()}
