"""Circle loss with pair labels: is it robust in gamma and m, and better than triplets?"""

from __future__ import annotations

from search_spaces.circle import GAMMA, PAPER, STABLE_CLAIMS, M
from search_spaces.claims import BetterLoss, Claim
from search_spaces.space import Published, Space
from search_spaces.training import COMMON_PAIR_RATES, PAIR_RATES, STAND_IN

SPACE = Space(
    loss="circle_pair",
    paper=PAPER,
    scientific={"gamma": GAMMA, "m": M},
    nuisance=PAIR_RATES,
    published=(
        Published(
            "paper, fine-grained retrieval",
            {"gamma": 80.0, "m": 0.4, **COMMON_PAIR_RATES},
            note=STAND_IN + "no official code exists to take others from.",
        ),
    ),
    claims=(
        *STABLE_CLAIMS,
        Claim(
            "better-than-triplet",
            "Scores higher than the triplet loss.",
            f"{PAPER}, section 4.4",
            BetterLoss("triplet"),
        ),
    ),
)
