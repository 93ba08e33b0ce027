"""Circle loss with class labels: is it robust in gamma and m, and better than its relatives?"""

from __future__ import annotations

from search_spaces.claims import BetterLoss, HigherMetric, PaperClaim, StableRange
from search_spaces.shared.training import COMMON_PROXY_RATES, COMMON_RATES_NOTE, PROXY_RATE_PARAMS
from search_spaces.space import Float, Hyperparameter, PublishedPoint, SearchSpace

CIRCLE_PAPER = "Sun et al., CVPR 2020, arXiv:2002.10857"

GAMMA_PARAM = Hyperparameter(
    Float(16.0, 1024.0, log=True),
    symbol="γ",
    latex=r"\gamma",
    reason="Published settings are 80, 128 and 256; two octaves to both sides. A scale acts by "
    "its ratio.",
)
MARGIN_PARAM = Hyperparameter(
    Float(-0.2, 0.6),
    symbol="m",
    reason="The radius of the decision circle is sqrt(2) m; published 0.25 and 0.4. Negative "
    "values tighten it beyond the optimum and show where the loss breaks.",
)

# The paper's own settings for its three tasks span these ranges.
STABILITY_CLAIMS = (
    PaperClaim(
        "gamma-robust",
        "The score is robust in gamma over the paper's settings, 80 to 256.",
        f"{CIRCLE_PAPER}, section 4.5",
        StableRange("gamma", low=80.0, high=256.0),
    ),
    PaperClaim(
        "m-robust",
        "The score is robust in m over the paper's settings, 0.25 to 0.4.",
        f"{CIRCLE_PAPER}, section 4.5",
        StableRange("m", low=0.25, high=0.4),
    ),
)

SPACE = SearchSpace(
    loss="circle",
    paper=CIRCLE_PAPER,
    scientific={"gamma": GAMMA_PARAM, "m": MARGIN_PARAM},
    nuisance=PROXY_RATE_PARAMS,
    published=(
        PublishedPoint(
            "paper, face recognition",
            {"gamma": 256.0, "m": 0.25, **COMMON_PROXY_RATES},
            note=COMMON_RATES_NOTE + "no official code exists to take others from.",
        ),
        PublishedPoint(
            "paper, person re-identification",
            {"gamma": 128.0, "m": 0.25, **COMMON_PROXY_RATES},
            note=COMMON_RATES_NOTE + "no official code exists to take others from.",
        ),
    ),
    claims=(
        *STABILITY_CLAIMS,
        PaperClaim(
            "better-than-am-softmax",
            "Scores higher than AM-softmax.",
            f"{CIRCLE_PAPER}, sections 4.2 and 4.3",
            BetterLoss("am_softmax"),
        ),
        PaperClaim(
            "better-than-triplet",
            "Scores higher than the triplet loss.",
            f"{CIRCLE_PAPER}, section 4.3",
            BetterLoss("triplet"),
        ),
        PaperClaim(
            "more-concentrated",
            "Similarities end up more concentrated than with AM-softmax.",
            f"{CIRCLE_PAPER}, section 4.6 and figure 5",
            HigherMetric("similarity_concentration", "am_softmax"),
        ),
    ),
)
