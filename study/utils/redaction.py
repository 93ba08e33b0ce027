"""How are addresses and messages shown without the passwords in them?"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

# SQLAlchemy takes any character but @ for a password, so a user with a password ends at the last @,
# unless what follows the colon is a port.
_USERINFO = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*://)"
    r"(?P<info>[^\s/?#'\":@]*:(?!\d{1,5}[/?#])[^\s'\"]*|[^\s/?#'\"]*)@"
)
_WORDS = (
    r"password|passwd|passphrase|pwd|token|secret|credential|signature|authorization"
    r"|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key"
)
_NAMED = re.compile(
    rf"(?i)\b((?:[\w-]{{0,40}}(?:{_WORDS})[\w-]{{0,20}}|sig)"
    r"['\"]?\s?[=:]\s?['\"]?(?:basic\s+|bearer\s+)?)([^&\s'\",;})\]]+)"
)
_SCHEMED = re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}")
# Keys whose first letters say what they are: AWS, GitHub, GitLab, Hugging Face, Databricks.
_KNOWN = re.compile(
    r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}"
    r"|hf_[A-Za-z0-9]{16,}|dapi[0-9a-f]{16,})"
)
_NOT_SECRET = ("", "x-oauth-basic")  # words beside which a user is the token
_SECRET_VARIABLE = re.compile(rf"(?i)(?!tokenizer)(?:{_WORDS})")
_SHORTEST = 8  # letters of a word that is looked for everywhere


def redact(text: str) -> str:
    """The text with every password, token and key that addresses and settings show made stars.

    A user's name beside a password stays; alone it may be a token, so it goes too. The values of
    this process's secret environment variables (`MLFLOW_TRACKING_TOKEN`, ...) go wherever they are.

    >>> redact("postgresql://ada:s3cret@db:5432/mlflow?sslmode=require")
    'postgresql://ada:***@db:5432/mlflow?sslmode=require'
    >>> redact("https://ghp_1234@host/x")
    'https://***@host/x'
    """
    return _redact(text, secrets_of_environment())


def redact_all(value: Any, secrets: Sequence[str] | None = None) -> Any:
    """The same for every text inside of JSON values; names of settings stay.

    Args:
        value: JSON types.
        secrets: What `secrets_of_environment` gave before; None asks it again.
    """
    return _walk(value, secrets_of_environment() if secrets is None else secrets)


def _walk(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str):
        return _redact(value, secrets)
    if isinstance(value, Mapping):
        return {key: _entry(key, item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(item, secrets) for item in value]
    return value


def _entry(key: Any, value: Any, secrets: Sequence[str]) -> Any:
    """A setting by its name: an option called `token` is secret whatever it looks like."""
    if isinstance(key, str) and isinstance(value, str) and _SECRET_VARIABLE.search(key):
        return "***" if value else value
    return _walk(value, secrets)


def _redact(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    if "@" in text:
        text = _USERINFO.sub(_without_word, text)
    text = _NAMED.sub(r"\1***", text)
    text = _SCHEMED.sub(r"\1***", text)
    return _KNOWN.sub("***", text)


def secrets_of_environment() -> list[str]:
    """Words that this process was given to keep, longest first."""
    found = {
        value
        for name, value in os.environ.items()
        # A variable may also name a file or hold a switch: those are no secrets.
        if len(value) >= _SHORTEST
        and _SECRET_VARIABLE.search(name)
        and not value.startswith(("/", "~", "."))
    }
    return sorted(found, key=len, reverse=True)


def _without_word(found: re.Match[str]) -> str:
    user, _, word = found["info"].partition(":")
    shown = "***" if word in _NOT_SECRET else f"{user}:***"
    return f"{found['scheme']}{shown}@"
