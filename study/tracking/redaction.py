"""How is a store's address shown without its password?"""

from __future__ import annotations

import re

_USERINFO = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*://)(?P<user>[^\s/?#:@]*):(?P<word>[^\s/?#]*)@"
)
_QUERY = re.compile(r"(?i)\b(password|passwd|pwd|token|secret|sslpassword)=([^&\s'\"]+)")


def redact(text: str) -> str:
    """The text with the password of every address in it replaced by stars.

    >>> redact("postgresql://ada:s3cret@db:5432/mlflow?sslmode=require")
    'postgresql://ada:***@db:5432/mlflow?sslmode=require'
    """
    if "://" not in text and "=" not in text:
        return text
    text = _USERINFO.sub(r"\g<scheme>\g<user>:***@", text)
    return _QUERY.sub(r"\1=***", text)
