"""Names and text encodings of tracking records."""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.space import Choice, Float, Int, ParamValue
from study.tracking.records import (
    decode_value,
    encode_value,
    metric_key,
    metric_name,
    param_key,
    plan_from_tags,
    plan_to_tags,
    run_name,
)
from tests.support.tracked_study import TrackedStudy
from trainables.config import Split


@pytest.mark.slow
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back_exactly(value: float) -> None:
    assert decode_value(encode_value(value), Float(-1e308, 1e308)) == value


@pytest.mark.parametrize("value", [True, False, 1, 2, "avg", "true-ish"])
def test_choices_come_back_with_their_type(value: ParamValue) -> None:
    back = decode_value(encode_value(value), Choice([True, False, 1, 2, "avg", "true-ish"]))
    assert back == value
    assert type(back) is type(value)


def test_integers_come_back_as_integers() -> None:
    assert decode_value(encode_value(180), Int(1, 200)) == 180
    with pytest.raises(ValueError, match="'sum' is not one of the choices"):
        decode_value("sum", Choice(["avg", "max"]))


def test_a_run_is_named_by_trial_and_scientific_hyperparameters(
    tracked_study: TrackedStudy,
) -> None:
    name = run_name(
        tracked_study.make_record("proxy_anchor", 17).job, tracked_study.spaces["proxy_anchor"]
    )
    assert name == "proxy_anchor-017 alpha=9.33 delta=0.1"
    name = run_name(tracked_study.make_record("circle", 3).job, tracked_study.spaces["circle"])
    assert name == "circle-003 alpha=22.4 m=0.1rad"
    large = tracked_study.make_record("circle", 3, params={"alpha": 1024.3, "m": 0.00012})
    assert (
        run_name(large.job, tracked_study.spaces["circle"]) == "circle-003 alpha=1024 m=0.00012rad"
    )
    swept = tracked_study.make_record("circle", 3, origin="sweep", swept="batch_size")
    assert run_name(swept.job, tracked_study.spaces["circle"]) == "circle-003 batch_size=177 images"


def test_units_are_in_the_names_of_settings() -> None:
    assert param_key("batch_size", " images") == "batch_size in images"
    assert param_key("m", "") == "m"
    assert param_key("images_per_class", "images") == "images_per_class"
    assert param_key("m", "°") == "m"  # MLflow does not accept such a name


@pytest.mark.parametrize("split", get_args(Split))
@pytest.mark.parametrize("name", ["map_at_r", "loss", "gpu_use_percent"])
def test_metric_name_inverts_metric_key(name: str, split: Split) -> None:
    assert metric_name(metric_key(name, split)) == name


def test_recording_does_not_import_mlflow() -> None:
    code = (
        "import sys, study.tracking.records, study.tracking.tracker, study.tracking.sqlite_store; "
        "sys.exit('mlflow' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_requested_points_and_sweeps_have_a_group(tracked_study: TrackedStudy) -> None:
    requested = tracked_study.make_record("circle", 3, origin="sweep", swept="", anchor="refine")
    assert requested.group == "refine"
    swept = tracked_study.make_record(
        "circle", 3, origin="sweep", swept="alpha", anchor="published"
    )
    assert swept.group == "sweep alpha around published"


def test_a_long_plan_takes_several_tags() -> None:
    noise = [uuid.uuid4().hex for _ in range(1000)]
    tags = plan_to_tags({"spaces": {}, "noise": noise})
    assert len(tags) > 3
    assert max(map(len, tags.values())) < 5000
    assert plan_from_tags(tags) == {"spaces": {}, "noise": noise}
    assert plan_from_tags({}) is None
