"""ArcFace: which scale, and how wide an angle?"""

from __future__ import annotations

from search_spaces.shared.training import COMMON_PROXY_RATES, COMMON_RATES_NOTE, PROXY_RATE_PARAMS
from search_spaces.space import Float, Hyperparameter, PublishedPoint, SearchSpace

SPACE = SearchSpace(
    loss="arcface",
    paper="Deng et al., CVPR 2019, arXiv:1801.07698",
    scientific={
        "gamma": Hyperparameter(
            Float(4.0, 256.0, log=True),
            symbol="s",
            reason="Published 64; tuned ones on record go from 50 to 220, one of them on a bound "
            "of 100. A scale acts by its ratio.",
        ),
        "m": Hyperparameter(
            Float(0.0, 1.0),
            symbol="m",
            unit="rad",
            reason="0 is NormSoftmax, published 0.5; tuned ones on record are 0.32 to 0.41 "
            "(19 to 23 degrees). Beyond 1 most angles pass the point where the margin turns.",
        ),
    },
    nuisance=PROXY_RATE_PARAMS,
    published=(
        PublishedPoint(
            "official code, faces",
            {"gamma": 64.0, "m": 0.5, **COMMON_PROXY_RATES},
            note=COMMON_RATES_NOTE
            + "the authors train faces with SGD at 0.1, and their code's gradient "
            "is straight-through, not the true one used here.",
        ),
    ),
)
