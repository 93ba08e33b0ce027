"""Ranges of optional hyperparameters of the losses.

Every space leaves these at the default of the loss. A study file that searches `label_smoothing`
without a range gets the distribution below.
"""

from __future__ import annotations

from collections.abc import Mapping

from search_spaces.space import Choice, Float, Hyperparameter, Int

OPTIONAL_PARAMS: Mapping[str, Hyperparameter] = {
    "label_smoothing": Hyperparameter(
        Float(0.0, 0.3),
        symbol="ε",
        latex=r"\epsilon",
        reason="0 in most codes, 0.1 in the Proxy-NCA reference code; three times that.",
    ),
    "proxies_per_class": Hyperparameter(
        Int(1, 5),
        symbol="K",
        reason="1 in the papers; every further proxy costs as much as the first.",
    ),
    "temperature_mode": Hyperparameter(
        Choice(["fixed", "learned", "annealed"]),
        symbol="T mode",
        reason="Fixed in most papers, learned in NormFace, annealed as the obvious third. A "
        "learned one moves at the head's rate and, as NormFace's, without weight decay.",
    ),
    "anneal_ratio": Hyperparameter(
        Float(1.0, 16.0, log=True),
        symbol="T₀/T",
        latex="T_0/T",
        reason="How much hotter an annealed temperature starts; 1 does not anneal.",
    ),
    "synthesis_draw": Hyperparameter(
        Choice(["batch", "sample"]),
        symbol="λ per",
        latex=r"\lambda\ \mathrm{per}",
        reason="One lambda per batch is the official code, one per sample the plain reading.",
    ),
    "synthesis_path": Hyperparameter(
        Choice(["linear", "spherical"]),
        symbol="path",
        reason="Linear is the paper; spherical spreads lambda evenly over the angle.",
    ),
    "reduction": Hyperparameter(
        Choice(["valid", "all", "batch"]),
        symbol="reduction",
        reason="Three public codes, three reductions.",
    ),
    "epsilon": Hyperparameter(
        Float(0.0, 0.5),
        symbol="ε",
        latex=r"\epsilon",
        reason="Slack of the pair mining, on cosines; 0.1 by default.",
    ),
    "learn_beta": Hyperparameter(
        Choice([False, True]),
        symbol="β learned",
        latex=r"\beta\ \mathrm{learned}",
        reason="The paper learns the boundary; a constant is the simpler loss. A learned one moves "
        "at the head's rate and without weight decay.",
    ),
    "nu": Hyperparameter(
        Float(0.0, 0.1),
        symbol="ν",
        latex=r"\nu",
        reason="Only counts with a learned boundary, whose gradient it must not drown.",
    ),
}

# Hyperparameters whose choices depend on the loss.
_OPTIONAL_PARAMS_BY_LOSS: Mapping[tuple[str, str], Hyperparameter] = {
    ("triplet", "mining"): Hyperparameter(
        Choice(["hard", "semihard"]),
        symbol="mining",
        reason="Batch-hard and semi-hard are both called the triplet loss.",
    ),
    ("multi_similarity", "mining"): Hyperparameter(
        Choice(["margin", "none"]),
        symbol="mining",
        reason="The paper mines; many codes do not.",
    ),
}


def find_optional_param(loss: str, param: str) -> Hyperparameter | None:
    """Return an optional hyperparameter of a loss (also `HOST+synthesis`); None if unknown."""
    host = loss.split("+", maxsplit=1)[0]
    return _OPTIONAL_PARAMS_BY_LOSS.get((host, param)) or OPTIONAL_PARAMS.get(param)
