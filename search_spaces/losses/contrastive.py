"""Contrastive loss: how far apart, and how close together?"""

from __future__ import annotations

from search_spaces.shared.training import COMMON_PAIR_RATES, COMMON_RATES_NOTE, PAIR_RATE_PARAMS
from search_spaces.space import Float, Hyperparameter, PublishedPoint, SearchSpace

SPACE = SearchSpace(
    loss="contrastive",
    paper="Hadsell et al., CVPR 2006",
    scientific={
        "margin": Hyperparameter(
            Float(0.1, 1.8),
            symbol="m",
            reason="Distances of unit vectors end at 2, unrelated ones lie near 1.41; below 0.1 "
            "hardly any pair is pushed.",
        ),
        "pos_margin": Hyperparameter(
            Float(0.0, 0.6),
            symbol="m₊",
            latex="m_+",
            reason="0 pulls a class into a point; beyond 0.6 hardly any pair is pulled.",
        ),
    },
    nuisance=PAIR_RATE_PARAMS,
    published=(
        PublishedPoint(
            "pytorch-metric-learning's defaults",
            {"margin": 1.0, "pos_margin": 0.0, **COMMON_PAIR_RATES},
            note=COMMON_RATES_NOTE + "the library sets none.",
        ),
    ),
)
