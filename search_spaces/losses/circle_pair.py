"""Circle loss with pair labels: is it robust in gamma and m, and better than triplets?"""

from __future__ import annotations

from search_spaces.claims import BetterLoss, PaperClaim
from search_spaces.losses.circle import CIRCLE_PAPER, GAMMA_PARAM, MARGIN_PARAM, STABILITY_CLAIMS
from search_spaces.shared.training import COMMON_PAIR_RATES, COMMON_RATES_NOTE, PAIR_RATE_PARAMS
from search_spaces.space import PublishedPoint, SearchSpace

SPACE = SearchSpace(
    loss="circle_pair",
    paper=CIRCLE_PAPER,
    scientific={"gamma": GAMMA_PARAM, "m": MARGIN_PARAM},
    nuisance=PAIR_RATE_PARAMS,
    published=(
        PublishedPoint(
            "paper, fine-grained retrieval",
            {"gamma": 80.0, "m": 0.4, **COMMON_PAIR_RATES},
            note=COMMON_RATES_NOTE + "no official code exists to take others from.",
        ),
    ),
    claims=(
        *STABILITY_CLAIMS,
        PaperClaim(
            "better-than-triplet",
            "Scores higher than the triplet loss.",
            f"{CIRCLE_PAPER}, section 4.4",
            BetterLoss("triplet"),
        ),
    ),
)
