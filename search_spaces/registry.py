"""Search spaces by name of the loss."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from search_spaces.losses import (
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
from search_spaces.shared.training import PAIR_RATE_PARAMS
from search_spaces.space import SearchSpace

SPACES: Mapping[str, SearchSpace] = {
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

PML_PREFIX = "pml:"

# Alternative spaces of a loss, by (loss, variant): `space: official` in a study file.
SPACE_VARIANTS: Mapping[tuple[str, str], SearchSpace] = {
    ("norm_softmax", "normface"): norm_softmax.NORMFACE_SPACE,
    ("proxy_nca_pp", "official"): proxy_nca_pp.OFFICIAL_SPACE,
    ("triplet", "semihard"): triplet.SEMIHARD_SPACE,
}


def get_space(name: str, *, variant: str = "") -> SearchSpace:
    """Return the space of a loss; `HOST+synthesis` combines those of the host and the plug-in.

    The space of a pytorch-metric-learning loss (`pml:ClassName`) contains only learning rates; the
    study file gives the ranges of its own hyperparameters.

    Raises:
        ValueError: The loss or the variant is unknown, or the host has no proxies.
    """
    host = name.removesuffix(synthesis.SYNTHESIS_SUFFIX)
    if name.startswith(PML_PREFIX) and host == name and not variant:
        return SearchSpace(
            loss=name, paper="pytorch-metric-learning", scientific={}, nuisance=PAIR_RATE_PARAMS
        )
    if host not in SPACES:
        raise ValueError(f"no search space for {name!r}; {_known_spaces_hint(host)}")
    if variant and (host, variant) not in SPACE_VARIANTS:
        variants = [v for loss, v in SPACE_VARIANTS if loss == host]
        raise ValueError(
            f"{host} has no space variant {variant!r}; known: {', '.join(variants) or 'none'}"
        )
    space = SPACE_VARIANTS[host, variant] if variant else SPACES[host]
    if host == name:
        return space
    if "proxy_lr" not in space.searched_params:
        raise ValueError(f"Proxy Synthesis needs a loss with proxies, but {host!r} has none")
    return synthesis.add_synthesis(space)


def _known_spaces_hint(name: str) -> str:
    if name.startswith(PML_PREFIX):
        return "a pytorch-metric-learning loss has no space variants and takes no plug-in"
    close = difflib.get_close_matches(name, SPACES, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(SPACES)}"
