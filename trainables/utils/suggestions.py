"""Hints for misspelt names: the nearest known name, or the list of known names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_LISTED_NAMES = 50
"""Longer lists of known names are not printed; their number is."""


def suggest_nearest_name(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the nearest known name, or all of them if none is near.

    >>> suggest_nearest_name("proxy_ancor", ["proxy_anchor", "circle"])
    "did you mean 'proxy_anchor'?"
    >>> suggest_nearest_name("x", ["proxy_anchor", "circle"])
    'known: circle, proxy_anchor'
    """
    names = sorted(map(str, known))
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    if not near and len(str(name)) >= 3:
        near = [candidate for candidate in names if str(name) in candidate]
    if len(near) == 1:
        return f"did you mean {near[0]!r}?"
    if len(names) > MAX_LISTED_NAMES:
        return f"{len(names)} names are known"
    return f"known: {', '.join(names)}"


def unknown_name_error(what: str, name: str, known: Iterable[str]) -> ValueError:
    """Return the error for an unknown name, with a hint.

    Args:
        what: Kind of the name, e.g. "backbone".
        name: The unknown name.
        known: All known names.
    """
    return ValueError(f"unknown {what} {name!r}; {suggest_nearest_name(name, known)}")
