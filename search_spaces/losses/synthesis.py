"""Proxy Synthesis: does it help every host, and how much do alpha and mu matter?

`add_synthesis(host)` returns the space of `HOST+synthesis`.
"""

from __future__ import annotations

from search_spaces.claims import BetterLoss, CostRatio, HigherMetric, PaperClaim, Sensitive
from search_spaces.space import Float, Hyperparameter, PublishedPoint, SearchSpace

PAPER = "Gu et al., AAAI 2021, arXiv:2103.15454"
SYNTHESIS_SUFFIX = "+synthesis"

SYNTHESIS_PARAMS = {
    "synthesis_alpha": Hyperparameter(
        Float(0.05, 5.0, log=True),
        symbol="α_PS",
        latex=r"\alpha_{\mathrm{PS}}",
        reason="lambda ~ Beta(alpha, alpha): near 0 copies of real classes, 1 uniform, large "
        "always halfway. Published 0.4; an octave scale with 1 in the middle third.",
    ),
    "synthesis_mu": Hyperparameter(
        Float(0.0, 2.0),
        symbol="μ",
        latex=r"\mu",
        reason="Synthetic classes per sample: 0 is the host itself, published 1 (where the "
        "official code ends), 2 doubles it.",
    ),
}

SYNTHESIS_CLAIMS = (
    PaperClaim(
        "improves-host",
        "Synthetic classes improve the host loss.",
        f"{PAPER}, result tables",
        BetterLoss("HOST"),
    ),
    PaperClaim(
        "improves-recall",
        "They raise Recall@1 too.",
        f"{PAPER}, result tables",
        HigherMetric("recall_at_1", "HOST"),
    ),
    PaperClaim(
        "improves-r-precision",
        "They raise R-precision too.",
        f"{PAPER}, evaluation in the manner of the Reality Check",
        HigherMetric("r_precision", "HOST"),
    ),
    PaperClaim(
        "alpha-matters",
        "The score is sensitive to alpha.",
        f"{PAPER}, hyperparameter figure",
        Sensitive("synthesis_alpha"),
    ),
    PaperClaim(
        "mu-matters",
        "The score is sensitive to mu.",
        f"{PAPER}, hyperparameter figure",
        Sensitive("synthesis_mu"),
    ),
    PaperClaim(
        "costs-nothing",
        "An epoch costs almost nothing more than the host's.",
        f"{PAPER}, discussion of cost",
        CostRatio("HOST", at_most=1.1),
    ),
)

_PUBLISHED_VALUES = {"synthesis_alpha": 0.4, "synthesis_mu": 1.0}


def add_synthesis(host: SearchSpace) -> SearchSpace:
    """Return the host's space with the hyperparameters and the claims of the plug-in."""
    return SearchSpace(
        loss=host.loss + SYNTHESIS_SUFFIX,
        paper=f"{PAPER}; host: {host.paper}",
        scientific={**host.scientific, **SYNTHESIS_PARAMS},
        nuisance=host.nuisance,
        fixed=host.fixed,
        published=tuple(
            PublishedPoint(
                f"{point.source}; synthesis: official code, Cars-196",
                {**point.values, **_PUBLISHED_VALUES},
                " ".join(
                    part for part in (point.note, "The two papers' settings side by side.") if part
                ),
            )
            for point in host.published
        ),
        claims=SYNTHESIS_CLAIMS,
    )
