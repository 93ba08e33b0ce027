"""Study record: plan, protocol and note of a study, as the tracking store receives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from study.config.plan import Plan
from study.search.optuna_samplers import resolve_sampler_name
from study.tracking.tracker import Tracker
from study.utils.code_version import detect_code_version


def start_tracking(
    tracker: Tracker,
    plan: Plan,
    data: Mapping[str, Any],
    samplers: Mapping[str, Any],
    note_files: Sequence[Path] = (),
) -> None:
    """Create the study in its store, or reopen it.

    Args:
        tracker: Writes to the store.
        plan: The study.
        data: The result of `describe_data`.
        samplers: The sampler of each loss, with every setting.
        note_files: Complete lists of the images that notes on the data name only in part.
    """
    tracker.open_study(
        name=plan.name,
        plan={
            "spaces": {loss: space.to_dict() for loss, space in plan.spaces.items()},
            "protocol": make_protocol_record(plan, data),
            "baseline": {},
            "dataset": dict(data),
            "samplers": dict(samplers),
            "file": plan.file.model_dump(mode="json", exclude={"tracking"}),
        },
        losses=plan.losses,
        note=format_study_note(plan, data),
    )
    for file in note_files:
        tracker.log_artifact(file, to="study", folder="data")


def make_protocol_record(plan: Plan, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol, as the report's header shows it."""
    file = plan.file
    return {
        "objective": file.protocol.objective,
        "folds": file.protocol.folds,
        "epochs": max(plan.epochs_per_trial(loss) for loss in plan.losses),
        "tolerance": file.protocol.tolerance,
        "dataset": data["name"],
        "backbone": "features" if data["kind"] == "features" else file.backbone.name,
        "pretrained": bool(file.backbone.pretrained),
        "frozen": file.backbone.frozen,
        "sampler": ", ".join(sorted({_loss_sampler_name(plan, loss) for loss in plan.losses})),
        "trials_per_loss": file.search.trials,
        "seeds_per_point": file.search.seeds_per_point,
        "seed": file.search.seed,
        "recall_at": ", ".join(map(str, file.protocol.recall_at)),
        "notes": list(data["notes"]),
    }


def _loss_sampler_name(plan: Plan, loss: str) -> str:
    return resolve_sampler_name(plan.file.search.sampler, plan.spaces[loss], plan.n_points)


def format_study_note(plan: Plan, data: Mapping[str, Any]) -> str:
    """Describe the study in one Markdown sentence."""
    losses = ", ".join(plan.losses)
    return (
        f"Study **{plan.name}**: {losses} on {data['name']} "
        f"({data['train_classes']} training, {data['validation_classes']} validation and "
        f"{data['test_classes']} test classes), {plan.file.search.trials} points per loss, "
        f"objective {plan.file.protocol.objective} on validation classes."
    )


def make_trial_tags(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of every trial of the study."""
    return {"data_fingerprint": str(data["fingerprint"]), "code_version": detect_code_version()}
