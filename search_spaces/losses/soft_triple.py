"""SoftTriple: do several centres per class help, and how softly are they chosen?"""

from __future__ import annotations

from search_spaces.shared.training import COMMON_PROXY_RATES, PROXY_RATE_PARAMS
from search_spaces.space import Float, Hyperparameter, Int, PublishedPoint, SearchSpace

SPACE = SearchSpace(
    loss="soft_triple",
    paper="Qian et al., ICCV 2019, arXiv:1909.05235",
    scientific={
        "lambda_": Hyperparameter(
            Float(2.0, 200.0, log=True),
            symbol="λ",
            latex=r"\lambda",
            reason="A cosine scale, searched as for the other softmax losses; published 20, tuned "
            "ones on record 18 to 100 (on a bound).",
        ),
        "gamma": Hyperparameter(
            Float(0.01, 10.0, log=True),
            symbol="γ",
            latex=r"\gamma",
            reason="Temperature of the choice among centres: 0.01 takes the nearest, 10 averages "
            "all (several centres switched off); published 0.1.",
        ),
        "tau": Hyperparameter(
            Float(0.0, 1.0),
            symbol="τ",
            latex=r"\tau",
            reason="Weight of drawing centres together; 0 leaves it out, published 0.2.",
        ),
        "delta": Hyperparameter(
            Float(0.0, 0.7),
            symbol="δ",
            latex=r"\delta",
            reason="A cosine margin; published 0.01, tuned ones on record 0.3 to 0.7.",
        ),
        "centers": Hyperparameter(
            Int(1, 10),
            symbol="K",
            reason="1 is AM-softmax; published 10. Must stay below the images per class.",
        ),
    },
    nuisance=PROXY_RATE_PARAMS,
    published=(
        PublishedPoint(
            "official code, CUB-200-2011",
            {
                "lambda_": 20.0,
                "gamma": 0.1,
                "tau": 0.2,
                "delta": 0.01,
                "centers": 10,
                **COMMON_PROXY_RATES,
            },
            note="Rates as published; the authors' Adam has eps = 0.01.",
        ),
    ),
)
