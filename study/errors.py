"""What may go wrong that is not a bug of ours?"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class StudyError(Exception):
    """The user's input is wrong; the message is one line and the command ends with exit code 2."""


class RayError(Exception):
    """Ray cannot be had; the study's record is in order, and the message is one line."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint naming the closest known word, or all of them when none is close.

    >>> nearest("proxy_ancor", ["proxy_anchor", "circle"])
    "did you mean 'proxy_anchor'?"
    """
    words = sorted(map(str, known))
    close = difflib.get_close_matches(str(name), words, n=1, cutoff=0.6)
    if not close and len(str(name)) >= 3:
        close = [word for word in words if str(name) in word]
    if len(close) == 1:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(words)}"
