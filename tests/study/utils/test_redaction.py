"""Passwords, tokens and keys are redacted; ordinary text is not."""

from __future__ import annotations

import pytest

from study.utils.redaction import environment_secrets, redact, redact_json

pytestmark = pytest.mark.split


@pytest.mark.parametrize(
    ("text", "redacted"),
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
        # SQLAlchemy accepts such passwords unquoted.
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
def test_passwords_are_not_shown(text: str, redacted: str) -> None:
    assert redact(text) == redacted


def test_secrets_of_the_environment_and_of_options_are_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "from-the-environment")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/home/ada/.aws/credentials")
    assert redact("401: from-the-environment is expired") == "401: *** is expired"
    assert redact("no /home/ada/.aws/credentials") == "no /home/ada/.aws/credentials"
    options = {"path": "s3://k:w@b/x", "token": "x", "sizes": [1, 2.5], "nested": {"pwd": "y"}}
    assert redact_json(options) == {
        "path": "s3://k:***@b/x",
        "token": "***",
        "sizes": [1, 2.5],
        "nested": {"pwd": "***"},
    }


def test_short_values_paths_and_other_variables_are_not_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_TOKEN", "short")
    monkeypatch.setenv("MY_SECRET", "./a/file/with/a/secret")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "a-long-enough-value")
    monkeypatch.setenv("MY_PASSWORD", "long-enough")
    monkeypatch.setenv("MY_API_KEY", "even-longer-than-that")
    secrets = environment_secrets()
    assert secrets.index("even-longer-than-that") < secrets.index("long-enough")
    assert not {"short", "./a/file/with/a/secret", "a-long-enough-value"} & set(secrets)


def test_secrets_can_be_computed_once_for_many_values() -> None:
    assert redact_json(["my word", {"a": "word"}, 3, None], ["word"]) == [
        "my ***",
        {"a": "***"},
        3,
        None,
    ]
    assert redact_json({"token": "", "password": 5}, []) == {"token": "", "password": 5}
