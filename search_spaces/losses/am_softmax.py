"""AM-softmax (CosFace): which scale, and how much margin?"""

from __future__ import annotations

from search_spaces.space import Float, Knob, Published, Space
from search_spaces.training import COMMON_RATES, PROXY_RATES, STAND_IN

GAMMA = Knob(
    Float(2.0, 200.0, log=True),
    symbol="s",
    reason="The range of norm_softmax, which is the same function at m = 0. Published 30 and 64; "
    "tuned ones on record lie between 88 and 162, three of them on a bound of 100. A scale acts "
    "by its ratio.",
)
M = Knob(
    Float(0.0, 0.7),
    symbol="m",
    reason="A cosine margin: 0 is NormSoftmax, published 0.35 and 0.4, tuned up to 0.62.",
)
_SGD = STAND_IN + "the authors train faces with SGD at 0.1."

SPACE = Space(
    loss="am_softmax",
    paper="Wang et al., 2018, arXiv:1801.05599; CosFace: Wang et al., CVPR 2018, arXiv:1801.09414",
    scientific={"gamma": GAMMA, "m": M},
    nuisance=PROXY_RATES,
    published=(
        Published(
            "AM-softmax's code, faces", {"gamma": 30.0, "m": 0.35, **COMMON_RATES}, note=_SGD
        ),
        Published(
            "InsightFace's CosFace, faces", {"gamma": 64.0, "m": 0.4, **COMMON_RATES}, note=_SGD
        ),
    ),
)
