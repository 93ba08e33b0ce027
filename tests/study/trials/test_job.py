"""Jobs have stable keys and survive JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from study.trials.job import Job, point_key, trial_key

pytestmark = pytest.mark.split

JOB = Job("triplet-0003", "triplet", 3, "sweep", {"margin": 0.2, "batch_size": 64}, seed=7)


def test_a_job_survives_json() -> None:
    """The journal stores `params` under the key `values`."""
    job = replace(JOB, split="test", anchor="published", swept="margin")
    content = json.loads(json.dumps(job.to_dict()))
    assert content["values"] == {"margin": 0.2, "batch_size": 64}
    assert "params" not in content
    assert Job.from_dict(content) == job


def test_the_key_of_a_point_depends_on_the_loss_and_the_values_only() -> None:
    reordered = {"batch_size": 64, "margin": 0.2}
    assert (
        JOB.point == point_key("triplet", reordered) == replace(JOB, seed=8, origin="bayes").point
    )
    assert JOB.point != point_key("contrastive", reordered)
    assert JOB.point != replace(JOB, params={"margin": 0.2, "batch_size": 32}).point
    assert len(JOB.point) == 10


def test_the_key_of_a_point_never_changes() -> None:
    """Stored studies are compared by it."""
    assert point_key("triplet", {"margin": 0.2, "batch_size": 64}) == "d4de20da4e"


@pytest.mark.parametrize(
    "change",
    [{"seed": 8}, {"origin": "confirm"}, {"split": "test"}, {"anchor": "x"}, {"swept": "y"}],
)
def test_jobs_of_another_training_have_another_identity(change: dict[str, object]) -> None:
    assert replace(JOB, **change).identity_key != JOB.identity_key  # type: ignore[arg-type]


def test_the_trial_of_a_job_is_not_part_of_its_identity() -> None:
    assert replace(JOB, trial="triplet-0009", number=9).identity_key == JOB.identity_key


def test_trial_keys_sort_by_number() -> None:
    keys = [trial_key("circle", number) for number in (2, 10, 9999)]
    assert keys == sorted(keys) == ["circle-0002", "circle-0010", "circle-9999"]
