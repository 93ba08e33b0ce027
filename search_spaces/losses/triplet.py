"""Triplet loss: which margin, for hard triplets?"""

from __future__ import annotations

from dataclasses import replace

from search_spaces.shared.training import COMMON_PAIR_RATES, COMMON_RATES_NOTE, PAIR_RATE_PARAMS
from search_spaces.space import Float, Hyperparameter, PublishedPoint, SearchSpace

SPACE = SearchSpace(
    loss="triplet",
    paper="Hermans et al., 2017, arXiv:1703.07737",
    scientific={
        "margin": Hyperparameter(
            Float(0.01, 1.0, log=True),
            symbol="m",
            reason="Distances of unit vectors end at 2. Tuned margins on record are 0.045 to "
            "0.14 and used ones 0.05 to 0.2, so small values need the resolution.",
        ),
    },
    nuisance=PAIR_RATE_PARAMS,
    published=(
        PublishedPoint(
            "Proxy-Anchor's code, its triplet baseline",
            {"margin": 0.1, **COMMON_PAIR_RATES},
            note=COMMON_RATES_NOTE
            + "that baseline shares Proxy-Anchor's. Its margin only: it mines "
            "semi-hard triplets, as the space `semihard` does.",
        ),
    ),
)

# FaceNet's choice of negatives (Schroff et al., CVPR 2015, arXiv:1503.03832): not too hard.
SEMIHARD_SPACE = replace(
    SPACE,
    fixed={"mining": "semihard"},
    published=(
        PublishedPoint(
            "Proxy-Anchor's code, its triplet baseline",
            {"margin": 0.1, **COMMON_PAIR_RATES},
            note=COMMON_RATES_NOTE + "that baseline shares Proxy-Anchor's.",
        ),
    ),
)
