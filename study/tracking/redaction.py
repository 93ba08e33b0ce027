"""How is a store's address shown without its password?"""

from __future__ import annotations

import re

_USERINFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*://)(?P<info>[^\s/?#'\"]*)@")
_NAMED = re.compile(
    r"(?i)\b([\w-]{0,40}(?:password|passwd|pwd|token|secret|api[_-]?key|access[_-]?key)[\w-]{0,20}"
    r"\s?=\s?['\"]?)([^&\s'\"]+)"
)
_BEARER = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{6,}")
_NOT_SECRET = ("", "x-oauth-basic")  # words beside which a user is the token


def redact(text: str) -> str:
    """The text with every password, token and key that addresses and settings show made stars.

    A user's name beside a password stays; alone it may be a token, so it goes too.

    >>> redact("postgresql://ada:s3cret@db:5432/mlflow?sslmode=require")
    'postgresql://ada:***@db:5432/mlflow?sslmode=require'
    >>> redact("https://ghp_1234@host/x")
    'https://***@host/x'
    """
    text = _USERINFO.sub(_without_word, text)
    text = _NAMED.sub(r"\1***", text)
    return _BEARER.sub(r"\1***", text)


def _without_word(found: re.Match[str]) -> str:
    user, _, word = found["info"].partition(":")
    shown = "***" if word in _NOT_SECRET else f"{user}:***"
    return f"{found['scheme']}{shown}@"
