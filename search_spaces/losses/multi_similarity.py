"""Multi-Similarity: how sharp over positives, over negatives, and around which similarity?"""

from __future__ import annotations

from search_spaces.shared.training import COMMON_PAIR_RATES, COMMON_RATES_NOTE, PAIR_RATE_PARAMS
from search_spaces.space import Float, Hyperparameter, PublishedPoint, SearchSpace

SPACE = SearchSpace(
    loss="multi_similarity",
    paper="Wang et al., CVPR 2019, arXiv:1904.06627",
    scientific={
        "alpha": Hyperparameter(
            Float(0.01, 50.0, log=True),
            symbol="α",
            latex=r"\alpha",
            reason="Common 2; a tuned one on record sat on a lower bound of 0.01, so the range "
            "starts there. Acts by its ratio.",
        ),
        "beta": Hyperparameter(
            Float(2.0, 200.0, log=True),
            symbol="β",
            latex=r"\beta",
            reason="Common 50; a factor 4 above and 25 below. Acts by its ratio.",
        ),
        "base": Hyperparameter(
            Float(0.0, 1.0),
            symbol="λ",
            latex=r"\lambda",
            reason="The similarity that parts positives from negatives; common 0.5.",
        ),
    },
    nuisance=PAIR_RATE_PARAMS,
    published=(
        PublishedPoint(
            "pytorch-metric-learning's defaults",
            {"alpha": 2.0, "beta": 50.0, "base": 0.5, **COMMON_PAIR_RATES},
            note=COMMON_RATES_NOTE + "the library sets none.",
        ),
    ),
)
