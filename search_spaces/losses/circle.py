"""Circle loss with class labels: is it robust in gamma and m, and better than its relatives?"""

from __future__ import annotations

from search_spaces.claims import BetterLoss, Claim, HigherMetric, StableRange
from search_spaces.space import Float, Knob, Published, Space
from search_spaces.training import COMMON_RATES, PROXY_RATES, STAND_IN

PAPER = "Sun et al., CVPR 2020, arXiv:2002.10857"

GAMMA = Knob(
    Float(16.0, 1024.0, log=True),
    symbol="γ",
    latex=r"\gamma",
    reason="Published settings are 80, 128 and 256; two octaves to both sides. A scale acts by "
    "its ratio.",
)
M = Knob(
    Float(-0.2, 0.6),
    symbol="m",
    reason="The radius of the decision circle is sqrt(2) m; published 0.25 and 0.4. Negative "
    "values tighten it beyond the optimum and show where the loss breaks.",
)

# The paper's own settings for its three tasks span these ranges.
STABLE_CLAIMS = (
    Claim(
        "gamma-robust",
        "The score is robust in gamma over the paper's settings, 80 to 256.",
        f"{PAPER}, section 4.5",
        StableRange("gamma", low=80.0, high=256.0),
    ),
    Claim(
        "m-robust",
        "The score is robust in m over the paper's settings, 0.25 to 0.4.",
        f"{PAPER}, section 4.5",
        StableRange("m", low=0.25, high=0.4),
    ),
)

SPACE = Space(
    loss="circle",
    paper=PAPER,
    scientific={"gamma": GAMMA, "m": M},
    nuisance=PROXY_RATES,
    published=(
        Published(
            "paper, face recognition",
            {"gamma": 256.0, "m": 0.25, **COMMON_RATES},
            note=STAND_IN + "no official code exists to take others from.",
        ),
        Published(
            "paper, person re-identification",
            {"gamma": 128.0, "m": 0.25, **COMMON_RATES},
            note=STAND_IN + "no official code exists to take others from.",
        ),
    ),
    claims=(
        *STABLE_CLAIMS,
        Claim(
            "better-than-am-softmax",
            "Scores higher than AM-softmax.",
            f"{PAPER}, sections 4.2 and 4.3",
            BetterLoss("am_softmax"),
        ),
        Claim(
            "better-than-triplet",
            "Scores higher than the triplet loss.",
            f"{PAPER}, section 4.3",
            BetterLoss("triplet"),
        ),
        Claim(
            "more-concentrated",
            "Similarities end up more concentrated than with AM-softmax.",
            f"{PAPER}, section 4.6 and figure 5",
            HigherMetric("similarity_concentration", "am_softmax"),
        ),
    ),
)
