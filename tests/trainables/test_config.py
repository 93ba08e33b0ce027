"""Configuration of a trial: validation of settings, JSON form and training key."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support import rank_cases as cases
from tests.support.trial_specs import make_spec
from trainables.config import TrainingSettings, TrialSpec, parse_settings
from trainables.utils.precision_names import PRECISIONS

pytestmark = pytest.mark.split


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_sise": 3}, "did you mean 'batch_size'"),
        ({"epochs": 0}, "`epochs >= 1`"),
        ({"adam_eps": 0.0}, "`adam_eps > 0`"),
        ({"lr_decay": "linear"}, "none, step, cosine"),
        ({"layer_norm": 1}, "type bool"),
        ({"batch_size": 2.5}, "type int"),
        ({"head_lr": float("inf")}, "`head_lr` must be finite"),
        ({"negative_share": 1.5}, "`negative_share <= 1`"),
        ({"precision": "fp16"}, "auto, bf16, tf32, fp32"),
        ({"micro_batch": 0}, "`micro_batch >= 1`"),
        ({"micro_batch": "half"}, "type int"),
    ],
)
def test_wrong_settings_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_settings(values)
    assert message in str(error.value)


def test_numbers_are_converted_to_the_type_of_the_setting() -> None:
    settings = parse_settings({"batch_size": 64.0, "clip_grad": 1})
    assert (settings.batch_size, type(settings.batch_size)) == (64, int)
    assert (settings.clip_grad, type(settings.clip_grad)) == (1.0, float)
    assert parse_settings({}) == TrainingSettings()


def test_specs_are_equal_after_a_round_trip_through_json() -> None:
    spec = make_spec("circle")
    assert TrialSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_the_same_training_has_the_same_key_wherever_it_runs() -> None:
    trial = cases.make_rank_spec("proxy_anchor")
    again = replace(
        trial,
        trial="x",
        cache_dir="/elsewhere",
        resources={"ranks_per_trial": 4},
        loss_knobs={k: float(v) for k, v in trial.loss_knobs.items()},
    )
    assert again.training_key() == trial.training_key()
    assert replace(trial, seed=2).training_key() != trial.training_key()


def test_checkpoints_of_version_0_1_keep_their_key() -> None:
    spec = TrialSpec(
        trial="t",
        loss="proxy_anchor",
        loss_knobs={"alpha": 32.0, "delta": 0.1},
        settings=TrainingSettings(epochs=3),
        seed=1,
        dataset={"name": "glyphs"},
        backbone={"name": "conv4"},
        cache_dir="/c",
    )
    assert spec.training_key() == "6e9999233fa0b496"


def test_the_precision_is_part_of_the_key() -> None:
    trial = make_spec("circle")
    keys = {trial.training_key(precision) for precision in PRECISIONS}
    assert len(keys) == 3
    explicit = replace(trial, settings=replace(trial.settings, precision="bf16"))
    assert explicit.training_key("bf16") == trial.training_key("bf16"), "auto became bf16"
