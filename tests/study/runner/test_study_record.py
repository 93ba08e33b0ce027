"""Study record: what the tracking store receives before the trials."""

from __future__ import annotations

from typing import Any

from study.runner.study_record import format_study_note, make_protocol_record, make_trial_tags
from tests.support.scheduler_simulation import make_plan

DATA: dict[str, Any] = {
    "name": "glyphs",
    "fingerprint": "0123abcd",
    "kind": "images",
    "train_classes": 30,
    "validation_classes": 10,
    "test_classes": 40,
    "notes": ["3 images are enlarged"],
}


def test_the_protocol_is_the_files() -> None:
    plan = make_plan(protocol={"folds": 2, "tolerance": 0.01}, search={"trials": 11, "seed": 5})
    record = make_protocol_record(plan, DATA)
    assert (record["folds"], record["tolerance"], record["seed"]) == (2, 0.01, 5)
    assert record["trials_per_loss"] == 11
    assert record["epochs"] == max(plan.epochs_per_trial(loss) for loss in plan.losses)
    assert record["backbone"] == plan.file.backbone.name
    assert record["notes"] == DATA["notes"]
    assert make_protocol_record(plan, {**DATA, "kind": "features"})["backbone"] == "features"


def test_the_note_names_losses_and_classes() -> None:
    plan = make_plan()
    note = format_study_note(plan, DATA)
    for word in (plan.name, *plan.losses, "30", "10", "40", plan.file.protocol.objective):
        assert word in note


def test_every_trial_carries_the_data_and_the_code() -> None:
    tags = make_trial_tags(DATA)
    assert tags["data_fingerprint"] == "0123abcd"
    assert tags["code_version"]
