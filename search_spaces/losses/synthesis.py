"""Proxy Synthesis: does it help every host, and how much do alpha and mu matter?

`compose(host)` is the space of `HOST+synthesis`.
"""

from __future__ import annotations

from search_spaces.claims import BetterLoss, Claim, CostRatio, HigherMetric, Sensitive
from search_spaces.space import Float, Knob, Published, Space

PAPER = "Gu et al., AAAI 2021, arXiv:2103.15454"
SUFFIX = "+synthesis"

KNOBS = {
    "synthesis_alpha": Knob(
        Float(0.05, 5.0, log=True),
        symbol="α_PS",
        latex=r"\alpha_{\mathrm{PS}}",
        reason="lambda ~ Beta(alpha, alpha): near 0 copies of real classes, 1 uniform, large "
        "always halfway. Published 0.4; an octave scale with 1 in the middle third.",
    ),
    "synthesis_mu": Knob(
        Float(0.0, 2.0),
        symbol="μ",
        latex=r"\mu",
        reason="Synthetic classes per sample: 0 is the host itself, published 1 (where the "
        "official code ends), 2 doubles it.",
    ),
}

CLAIMS = (
    Claim(
        "improves-host",
        "Synthetic classes improve the host loss.",
        f"{PAPER}, result tables",
        BetterLoss("HOST"),
    ),
    Claim(
        "improves-recall",
        "They raise Recall@1 too.",
        f"{PAPER}, result tables",
        HigherMetric("recall_at_1", "HOST"),
    ),
    Claim(
        "improves-r-precision",
        "They raise R-precision too.",
        f"{PAPER}, evaluation in the manner of the Reality Check",
        HigherMetric("r_precision", "HOST"),
    ),
    Claim(
        "alpha-matters",
        "The score is sensitive to alpha.",
        f"{PAPER}, hyperparameter figure",
        Sensitive("synthesis_alpha"),
    ),
    Claim(
        "mu-matters",
        "The score is sensitive to mu.",
        f"{PAPER}, hyperparameter figure",
        Sensitive("synthesis_mu"),
    ),
    Claim(
        "costs-nothing",
        "An epoch costs almost nothing more than the host's.",
        f"{PAPER}, discussion of cost",
        CostRatio("HOST", at_most=1.1),
    ),
)

_POINT = {"synthesis_alpha": 0.4, "synthesis_mu": 1.0}


def compose(host: Space) -> Space:
    """The host's space with the plug-in's knobs; the claims are the plug-in's."""
    return Space(
        loss=host.loss + SUFFIX,
        paper=f"{PAPER}; host: {host.paper}",
        scientific={**host.scientific, **KNOBS},
        nuisance=host.nuisance,
        fixed=host.fixed,
        published=tuple(
            Published(
                f"{point.source}; synthesis: official code, Cars-196",
                {**point.values, **_POINT},
                " ".join(
                    part for part in (point.note, "The two papers' settings side by side.") if part
                ),
            )
            for point in host.published
        ),
        claims=CLAIMS,
    )
