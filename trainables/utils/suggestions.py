"""Which known name did the user probably mean?"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def unknown_name(what: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name nobody knows: the rule, the name, the nearest and the known ones."""
    names = sorted(known)
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    listed = f"known: {', '.join(names)}" if len(names) <= 24 else f"{len(names)} names are known"
    return ValueError(f"unknown {what} {name!r}; {' '.join(p for p in (hint, listed) if p)}.")
