"""Which space belongs to which loss?"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from search_spaces import (
    circle,
    proxy_anchor,
    proxy_nca_pp,
    synthesis,
    triplet,
)
from search_spaces.space import Space

SPACES: Mapping[str, Space] = {
    "proxy_nca_pp": proxy_nca_pp.SPACE,
    "proxy_anchor": proxy_anchor.SPACE,
    "circle": circle.SPACE,
    "triplet": triplet.SPACE,
}

# Other ready-made questions about a loss, by (loss, variant).
VARIANTS: Mapping[tuple[str, str], Space] = {
    ("proxy_nca_pp", "official"): proxy_nca_pp.OFFICIAL,
}


def get_space(name: str, *, variant: str = "") -> Space:
    """The space of a loss; `HOST+synthesis` is composed from the host's and the plug-in's.

    Raises:
        ValueError: No such loss or variant, or a host without proxies.
    """
    host = name.removesuffix(synthesis.SUFFIX)
    if host not in SPACES:
        close = difflib.get_close_matches(host, SPACES, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"No search space for {name!r}; {hint}known: {', '.join(SPACES)}.")
    if variant and (host, variant) not in VARIANTS:
        known = [v for loss, v in VARIANTS if loss == host]
        raise ValueError(f"{host} has no variant {variant!r}; known: {', '.join(known) or 'none'}.")
    space = VARIANTS[host, variant] if variant else SPACES[host]
    if host == name:
        return space
    if "proxy_lr" not in space.searched:
        raise ValueError(f"Proxy Synthesis needs a loss with proxies, but {host!r} has none.")
    return synthesis.compose(space)
