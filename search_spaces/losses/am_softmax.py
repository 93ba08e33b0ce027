"""AM-softmax (CosFace): which scale, and how much margin?"""

from __future__ import annotations

from search_spaces.shared.training import COMMON_PROXY_RATES, COMMON_RATES_NOTE, PROXY_RATE_PARAMS
from search_spaces.space import Float, Hyperparameter, PublishedPoint, SearchSpace

GAMMA_PARAM = Hyperparameter(
    Float(2.0, 200.0, log=True),
    symbol="s",
    reason="The range of norm_softmax, which is the same function at m = 0. Published 30 and 64; "
    "tuned ones on record lie between 88 and 162, three of them on a bound of 100. A scale acts "
    "by its ratio.",
)
MARGIN_PARAM = Hyperparameter(
    Float(0.0, 0.7),
    symbol="m",
    reason="A cosine margin: 0 is NormSoftmax, published 0.35 and 0.4, tuned up to 0.62.",
)
_SGD_NOTE = COMMON_RATES_NOTE + "the authors train faces with SGD at 0.1."

SPACE = SearchSpace(
    loss="am_softmax",
    paper="Wang et al., 2018, arXiv:1801.05599; CosFace: Wang et al., CVPR 2018, arXiv:1801.09414",
    scientific={"gamma": GAMMA_PARAM, "m": MARGIN_PARAM},
    nuisance=PROXY_RATE_PARAMS,
    published=(
        PublishedPoint(
            "AM-softmax's code, faces",
            {"gamma": 30.0, "m": 0.35, **COMMON_PROXY_RATES},
            note=_SGD_NOTE,
        ),
        PublishedPoint(
            "InsightFace's CosFace, faces",
            {"gamma": 64.0, "m": 0.4, **COMMON_PROXY_RATES},
            note=_SGD_NOTE,
        ),
    ),
)
