"""Do settings survive being text, names stay short, and passwords stay out of sight?"""

from __future__ import annotations

import subprocess
import sys
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.space import Choice, Float, Int, Value
from study.tracking.records import (
    Split,
    decode,
    encode,
    metric_key,
    metric_name,
    param_key,
    run_name,
)
from study.tracking.redaction import redact, redact_all


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back_exactly(value: float) -> None:
    assert decode(encode(value), Float(-1e308, 1e308)) == value


@pytest.mark.parametrize("value", [True, False, 1, 2, "avg", "true-ish"])
def test_choices_come_back_with_their_type(value: Value) -> None:
    back = decode(encode(value), Choice([True, False, 1, 2, "avg", "true-ish"]))
    assert back == value
    assert type(back) is type(value)


def test_integers_come_back_as_integers() -> None:
    assert decode(encode(180), Int(1, 200)) == 180
    with pytest.raises(ValueError, match="none of the choices"):
        decode("sum", Choice(["avg", "max"]))


def test_a_run_is_named_by_trial_and_scientific_knobs(story: Any) -> None:
    name = run_name(story.record("proxy_anchor", 17), story.spaces["proxy_anchor"])
    assert name == "proxy_anchor-017 alpha=9.33 delta=0.1"
    name = run_name(story.record("circle", 3), story.spaces["circle"])
    assert name == "circle-003 alpha=22.4 m=0.1rad"
    large = story.record("circle", 3, knobs={"alpha": 1024.3, "m": 0.00012})
    assert run_name(large, story.spaces["circle"]) == "circle-003 alpha=1024 m=0.00012rad"
    swept = story.record("circle", 3, origin="sweep", swept="batch_size")
    assert run_name(swept, story.spaces["circle"]) == "circle-003 batch_size=177 images"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada:s3c@db/x", "postgresql://ada:***@db/x"),
        ("https://ada:p%40ss@host:5000/a?b=c", "https://ada:***@host:5000/a?b=c"),
        ("two http://a:b@c and http://d:e@f", "two http://a:***@c and http://d:***@f"),
        ("mysql+pymysql://u:p@ss@host/db", "mysql+pymysql://u:***@host/db"),
        ("host=db password=s3c user=ada", "host=db password=*** user=ada"),
        ("https://host/x?token=abc&y=1", "https://host/x?token=***&y=1"),
        ("https://ghp_t0ken@host/x", "https://***@host/x"),
        ("https://ghp_t0ken:@host/x", "https://***@host/x"),
        ("https://ghp_t0ken:x-oauth-basic@host/x", "https://***@host/x"),
        ("aws_secret_access_key=ab/cd+e region=eu", "aws_secret_access_key=*** region=eu"),
        ("AWS_ACCESS_KEY_ID='AKIA12'", "AWS_ACCESS_KEY_ID='***'"),
        ("https://host/x?api_key=abc&y=1", "https://host/x?api_key=***&y=1"),
        ("Authorization: Bearer eyJh.bGci-_1=", "Authorization: Bearer ***"),
        ("sqlite:////tmp/a.db", "sqlite:////tmp/a.db"),
        ("http://host:5000/at@sign", "http://host:5000/at@sign"),
        # SQLAlchemy takes such passwords as they are.
        ("postgresql://ada:p/a?s#s@db/x", "postgresql://ada:***@db/x"),
        ("Authorization: Basic YWRhOnMz", "Authorization: Basic ***"),
        ("{'password': 's3c', 'user': 'ada'}", "{'password': '***', 'user': 'ada'}"),
        ('{"api-key": "s3c"}', '{"api-key": "***"}'),
        ("s3://b/k?X-Amz-Signature=ff&e=1", "s3://b/k?X-Amz-Signature=***&e=1"),
        ("az://c/d?sv=1&sig=a%2Bb&se=3", "az://c/d?sv=1&sig=***&se=3"),
        ("no access for AKIAIOSFODNN7EXAMPLE", "no access for ***"),
        ("clone with ghp_0123456789abcdef", "clone with ***"),
        ("lambda_=0.1 centers=10", "lambda_=0.1 centers=10"),
        ("RuntimeError: 3 tokens per image", "RuntimeError: 3 tokens per image"),
    ],
)
def test_passwords_are_not_shown(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_secrets_of_the_environment_and_of_options_are_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "from-the-environment")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/home/ada/.aws/credentials")
    assert redact("401: from-the-environment is expired") == "401: *** is expired"
    assert redact("no /home/ada/.aws/credentials") == "no /home/ada/.aws/credentials"
    options = {"path": "s3://k:w@b/x", "token": "x", "sizes": [1, 2.5], "nested": {"pwd": "y"}}
    assert redact_all(options) == {
        "path": "s3://k:***@b/x",
        "token": "***",
        "sizes": [1, 2.5],
        "nested": {"pwd": "***"},
    }


def test_units_are_in_the_names_of_settings() -> None:
    assert param_key("batch_size", " images") == "batch_size in images"
    assert param_key("m", "") == "m"
    assert param_key("images_per_class", "images") == "images_per_class"
    assert param_key("m", "°") == "m"  # MLflow takes no such name


@pytest.mark.parametrize("split", get_args(Split))
@pytest.mark.parametrize("name", ["map_at_r", "loss", "gpu_use_percent"])
def test_metrics_have_their_names_back(name: str, split: Split) -> None:
    assert metric_name(metric_key(name, split)) == name


def test_recording_does_not_import_mlflow() -> None:
    code = (
        "import sys, study.tracking.records, study.tracking.writer, study.tracking.local; "
        "sys.exit('mlflow' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_points_that_were_asked_for_hang_under_what_asked(story: Any) -> None:
    asked = story.record("circle", 3, origin="sweep", swept="", anchor="refine")
    assert asked.group == "refine"
    swept = story.record("circle", 3, origin="sweep", swept="alpha", anchor="published")
    assert swept.group == "sweep alpha around published"
