"""NormSoftmax: which temperature?"""

from __future__ import annotations

from dataclasses import replace

from search_spaces.shared.training import COMMON_PROXY_RATES, COMMON_RATES_NOTE, PROXY_RATE_PARAMS
from search_spaces.space import Float, Hyperparameter, PublishedPoint, SearchSpace

SPACE = SearchSpace(
    loss="norm_softmax",
    paper="Zhai & Wu, BMVC 2019, arXiv:1811.12649",
    scientific={
        "temperature": Hyperparameter(
            Float(0.005, 0.5, log=True),
            symbol="σ",
            latex=r"\sigma",
            reason="Cosine scales 200 to 2, exactly the range of proxy_nca_pp, which is the same "
            "function; tuned ones on record are 0.06 to 0.11, published 0.05. Acts by its ratio.",
        ),
    },
    nuisance=PROXY_RATE_PARAMS,
    published=(
        PublishedPoint(
            "official code, all data sets",
            {"temperature": 0.05, **COMMON_PROXY_RATES},
            note=COMMON_RATES_NOTE + "the authors use SGD at 1e-3 to 1e-2 for all parameters.",
        ),
        PublishedPoint(
            "Proxy Synthesis's code, its NormSoftmax baseline on Cars-196",
            {"temperature": 1 / 23, **COMMON_PROXY_RATES},
            note="Rates as published, with L2 decay and Adam's eps at 0.01.",
        ),
    ),
)

# The scale is a parameter of the loss; its initial value is searched.
NORMFACE_SPACE = replace(
    SPACE,
    paper="Wang et al., ACM MM 2017, arXiv:1704.06369",
    fixed={"temperature_mode": "learned"},
    published=(
        PublishedPoint(
            "official code, faces",
            {"temperature": 0.1, **COMMON_PROXY_RATES},
            note=COMMON_RATES_NOTE
            + "the authors use SGD, with class weights 100 times as fast as the "
            "rest. The scale starts at 10.",
        ),
    ),
)
