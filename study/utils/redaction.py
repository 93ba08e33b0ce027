"""Redaction of passwords, tokens and keys in URIs, messages and settings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

# SQLAlchemy accepts any character but @ in a password, so user and password end at the last @,
# unless the colon is followed by a port.
_URL_USERINFO = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*://)"
    r"(?P<info>[^\s/?#'\":@]*:(?!\d{1,5}[/?#])[^\s'\"]*|[^\s/?#'\"]*)@"
)
_SECRET_WORDS = (
    r"password|passwd|passphrase|pwd|token|secret|credential|signature|authorization"
    r"|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key"
)
_NAMED_SECRET = re.compile(
    rf"(?i)\b((?:[\w-]{{0,40}}(?:{_SECRET_WORDS})[\w-]{{0,20}}|sig)"
    r"['\"]?\s?[=:]\s?['\"]?(?:basic\s+|bearer\s+)?)([^&\s'\",;})\]]+)"
)
_AUTH_HEADER_SECRET = re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}")
# Keys with a known prefix: AWS, GitHub, GitLab, Hugging Face, Databricks.
_KNOWN_TOKEN = re.compile(
    r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}"
    r"|hf_[A-Za-z0-9]{16,}|dapi[0-9a-f]{16,})"
)
_NON_SECRET_PASSWORDS = ("", "x-oauth-basic")  # with these passwords the user name is the token
_SECRET_VARIABLE = re.compile(rf"(?i)(?!tokenizer)(?:{_SECRET_WORDS})")
_MIN_SECRET_LENGTH = 8  # shorter values would match ordinary words


def redact(text: str) -> str:
    """Replace every password, token and key in URIs and settings by stars.

    A user name with a password is kept; a user name alone may be a token and is replaced. The
    values of secret environment variables (`MLFLOW_TRACKING_TOKEN`, ...) are replaced everywhere.

    >>> redact("postgresql://ada:s3cret@db:5432/mlflow?sslmode=require")
    'postgresql://ada:***@db:5432/mlflow?sslmode=require'
    >>> redact("https://ghp_1234@host/x")
    'https://***@host/x'
    """
    return _redact_text(text, environment_secrets())


def redact_json(value: Any, secrets: Sequence[str] | None = None) -> Any:
    """Redact every string in a JSON value; keys are kept.

    Args:
        value: JSON types.
        secrets: An earlier result of `environment_secrets`; None computes it again.
    """
    return _redact_nested(value, environment_secrets() if secrets is None else secrets)


def _redact_nested(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str):
        return _redact_text(value, secrets)
    if isinstance(value, Mapping):
        return {key: _redact_entry(key, item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_nested(item, secrets) for item in value]
    return value


def _redact_entry(key: Any, value: Any, secrets: Sequence[str]) -> Any:
    """Redact a setting; the value of an option called `token` is always secret."""
    if isinstance(key, str) and isinstance(value, str) and _SECRET_VARIABLE.search(key):
        return "***" if value else value
    return _redact_nested(value, secrets)


def _redact_text(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    if "@" in text:
        text = _URL_USERINFO.sub(_mask_password, text)
    text = _NAMED_SECRET.sub(r"\1***", text)
    text = _AUTH_HEADER_SECRET.sub(r"\1***", text)
    return _KNOWN_TOKEN.sub("***", text)


def environment_secrets() -> list[str]:
    """Return the values of secret environment variables, longest first."""
    secrets = {
        value
        for name, value in os.environ.items()
        # A variable may also contain a path or a switch, which is not secret.
        if len(value) >= _MIN_SECRET_LENGTH
        and _SECRET_VARIABLE.search(name)
        and not value.startswith(("/", "~", "."))
    }
    return sorted(secrets, key=len, reverse=True)


def _mask_password(match: re.Match[str]) -> str:
    user, _, password = match["info"].partition(":")
    masked = "***" if password in _NON_SECRET_PASSWORDS else f"{user}:***"
    return f"{match['scheme']}{masked}@"
