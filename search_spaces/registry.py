"""Which space belongs to which loss?"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from search_spaces import (
    am_softmax,
    arcface,
    circle,
    circle_pair,
    contrastive,
    margin,
    multi_similarity,
    norm_softmax,
    proxy_anchor,
    proxy_nca,
    proxy_nca_pp,
    soft_triple,
    softmax,
    synthesis,
    triplet,
    unified,
)
from search_spaces.space import Space
from search_spaces.training import PAIR_RATES

SPACES: Mapping[str, Space] = {
    "softmax": softmax.SPACE,
    "norm_softmax": norm_softmax.SPACE,
    "am_softmax": am_softmax.SPACE,
    "arcface": arcface.SPACE,
    "proxy_nca": proxy_nca.SPACE,
    "proxy_nca_pp": proxy_nca_pp.SPACE,
    "soft_triple": soft_triple.SPACE,
    "proxy_anchor": proxy_anchor.SPACE,
    "circle": circle.SPACE,
    "circle_pair": circle_pair.SPACE,
    "unified": unified.CLASS_SPACE,
    "unified_pair": unified.PAIR_SPACE,
    "triplet": triplet.SPACE,
    "contrastive": contrastive.SPACE,
    "multi_similarity": multi_similarity.SPACE,
    "margin": margin.SPACE,
}

LIBRARY = "pml:"

# Other ready-made questions about a loss, by (loss, variant): `space: official` in a study file.
VARIANTS: Mapping[tuple[str, str], Space] = {
    ("norm_softmax", "normface"): norm_softmax.NORMFACE,
    ("proxy_nca_pp", "official"): proxy_nca_pp.OFFICIAL,
    ("triplet", "semihard"): triplet.SEMIHARD,
}


def get_space(name: str, *, variant: str = "") -> Space:
    """The space of a loss; `HOST+synthesis` is composed from the host's and the plug-in's.

    Of a loss of pytorch-metric-learning (`pml:ClassName`) nothing is known but the rates of its
    training: the ranges of its own knobs are for the study file to say.

    Raises:
        ValueError: No such loss or variant, or a host without proxies.
    """
    host = name.removesuffix(synthesis.SUFFIX)
    if name.startswith(LIBRARY) and host == name and not variant:
        return Space(loss=name, paper="pytorch-metric-learning", scientific={}, nuisance=PAIR_RATES)
    if host not in SPACES:
        raise ValueError(f"No search space for {name!r}; {_hint(host)}.")
    if variant and (host, variant) not in VARIANTS:
        known = [v for loss, v in VARIANTS if loss == host]
        raise ValueError(
            f"{host} has no other space {variant!r}; known: {', '.join(known) or 'none'}."
        )
    space = VARIANTS[host, variant] if variant else SPACES[host]
    if host == name:
        return space
    if "proxy_lr" not in space.searched:
        raise ValueError(f"Proxy Synthesis needs a loss with proxies, but {host!r} has none.")
    return synthesis.compose(space)


def _hint(name: str) -> str:
    if name.startswith(LIBRARY):
        return "a loss of pytorch-metric-learning has no other spaces and takes no plug-in"
    close = difflib.get_close_matches(name, SPACES, n=1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"known: {', '.join(SPACES)}"
