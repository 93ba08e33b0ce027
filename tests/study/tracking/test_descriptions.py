"""Fields of spooled records: trials, their ends, losses and data sets."""

from __future__ import annotations

import pytest

from study.tracking.descriptions import (
    TrialEnd,
    describe_dataset,
    describe_trial,
    describe_trial_end,
    format_loss_note,
    is_scalar_value,
    param_units,
)
from study.trials.job import point_key
from tests.support.tracked_study import TrackedStudy, make_tracked_study

pytestmark = pytest.mark.split


@pytest.fixture(scope="module")
def tracked_study() -> TrackedStudy:
    return make_tracked_study()


def test_a_trial_has_the_fields_that_the_shipper_expects(tracked_study: TrackedStudy) -> None:
    record = tracked_study.make_record(
        "circle", 7, origin="sweep", swept="alpha", anchor="published"
    )
    fields = describe_trial(
        record, tracked_study.spaces["circle"], {"m": "rad", "batch_size": "images"}
    )
    assert fields == {
        "trial": "circle-0007",
        "loss": "circle",
        "group": "sweep alpha around published",
        "started": 1_800_000_007.0,
        "name": "circle-007 alpha=16",
        "params": {
            "embedding_dim": "64",
            "warmup_epochs": "1",
            "alpha": "16.0",
            "m in rad": "0.1",
            "batch_size in images": "173",
            "pooling": "avg",
            "layer_norm": "true",
        },
        "tags": {
            "loss": "circle",
            "number": "7",
            "origin": "sweep",
            "seed": "107",
            "split": "validation",
            "point": point_key("circle", record.job.params),
            "anchor": "published",
            "swept": "alpha",
        },
        "more_tags": dict(record.tags),
    }


@pytest.mark.parametrize(
    ("origin", "state", "competes"),
    [
        ("sobol", "finished", True),
        ("published", "finished", True),
        ("repeat", "finished", False),
        ("confirm", "finished", False),
        ("bayes", "stopped", False),
    ],
)
def test_only_finished_search_trials_compete_for_the_best_score(
    tracked_study: TrackedStudy, origin: str, state: str, competes: bool
) -> None:
    job = tracked_study.make_record("circle", 1, origin=origin).job
    end = TrialEnd(state, "", "node-1", 2.5)  # type: ignore[arg-type]
    fields = describe_trial_end(job, 0.5, end, objective="map_at_r", secrets=[])
    assert fields["words"] == {"state": state, "error": "", "host": "node-1", "seconds": "2.5"}
    best = {"best": 0.5, "loss": "circle", "number": 1, "objective": "map_at_r"}
    assert {k: v for k, v in fields.items() if k in best} == (best if competes else {})


def test_the_error_is_the_redacted_and_shortened_last_line() -> None:
    error = "Traceback\nOSError: " + "x" * 490 + "hidden-secret"
    end = TrialEnd("failed", error, "", None)
    words = describe_trial_end(None, None, end, objective="", secrets=["hidden-secret"])["words"]
    assert words["error"].startswith("OSError: xxx")
    assert len(words["error"]) == 500
    assert "hid" not in words["error"]
    assert "seconds" not in words


def test_units_include_hyperparameters_that_the_study_does_not_search(
    tracked_study: TrackedStudy,
) -> None:
    units = param_units("circle", tracked_study.spaces["circle"])
    assert units["m"] == "rad"
    assert units["warmup_epochs"] == "epochs"
    own = param_units("a loss of the user", None)
    assert "m" not in own
    assert own["warmup_epochs"] == "epochs"


def test_a_loss_note_is_a_table_of_its_hyperparameters(tracked_study: TrackedStudy) -> None:
    lines = format_loss_note(tracked_study.spaces["circle"]).splitlines()
    assert lines[0] == "**circle**: A paper, 2020"
    assert lines[4] == "| γ | `alpha` | [8, 128] log | 1 | 32.0 | scientific |"
    assert len(lines) == 4 + len(tracked_study.spaces["circle"].searched_params)


def test_a_data_set_may_be_a_name_or_a_mapping() -> None:
    assert describe_dataset({"protocol": {"dataset": "cub"}}) == {"name": "cub"}
    assert describe_dataset({"dataset": {"name": "cub", "images": 3}, "protocol": {}}) == {
        "name": "cub",
        "images": 3,
    }
    assert describe_dataset({}) == {}


def test_only_scalars_of_the_protocol_become_parameters() -> None:
    values: list[object] = [1, 0.5, "x", True, None, [1], {}]
    assert [is_scalar_value(value) for value in values] == [True] * 4 + [False] * 3
