"""Safe file names, and files that only their owner may read."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from study.utils.redaction import redact


def write_owner_only(path: Path, text: str, uri: str | None) -> None:
    """Write a file and flush it to disk; owner-only if the tracking URI contains a password.

    Args:
        path: The file; replaced if it exists.
        text: Its content.
        uri: Tracking URI in the content, if any.
    """
    has_secret = uri is not None and redact(uri) != uri
    path.unlink(missing_ok=True)  # an existing file would keep its permissions
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if has_secret else 0o666)
    with os.fdopen(file, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def safe_filename(key: str) -> str:
    """Return a key as a file name; loss names come from the user and may contain slashes."""
    plain = re.sub(r"[^A-Za-z0-9._+-]", "_", key).lstrip(".") or "_"
    if plain == key:
        return plain
    return f"{plain[:80]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
