"""Margin loss: where is the boundary, and how wide is the band around it?"""

from __future__ import annotations

from search_spaces.shared.training import COMMON_PAIR_RATES, COMMON_RATES_NOTE, PAIR_RATE_PARAMS
from search_spaces.space import Float, Hyperparameter, PublishedPoint, SearchSpace

SPACE = SearchSpace(
    loss="margin",
    paper="Wu et al., ICCV 2017, arXiv:1706.07567",
    scientific={
        "margin": Hyperparameter(
            Float(0.01, 1.0, log=True),
            symbol="α",
            latex=r"\alpha",
            reason="Half the band around the boundary, on distances up to 2; common 0.2.",
        ),
        "beta": Hyperparameter(
            Float(0.2, 1.8),
            symbol="β",
            latex=r"\beta",
            reason="The boundary: unrelated unit vectors lie near 1.41; common 1.2.",
        ),
    },
    nuisance=PAIR_RATE_PARAMS,
    published=(
        PublishedPoint(
            "pytorch-metric-learning's defaults",
            {"margin": 0.2, "beta": 1.2, **COMMON_PAIR_RATES},
            note=COMMON_RATES_NOTE + "the library sets none.",
        ),
    ),
)
