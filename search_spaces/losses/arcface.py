"""ArcFace: which scale, and how wide an angle?"""

from __future__ import annotations

from search_spaces.space import Float, Knob, Published, Space
from search_spaces.training import COMMON_RATES, PROXY_RATES, STAND_IN

SPACE = Space(
    loss="arcface",
    paper="Deng et al., CVPR 2019, arXiv:1801.07698",
    scientific={
        "gamma": Knob(
            Float(4.0, 256.0, log=True),
            symbol="s",
            reason="Published 64; tuned ones on record go from 50 to 220, one of them on a bound "
            "of 100. A scale acts by its ratio.",
        ),
        "m": Knob(
            Float(0.0, 1.0),
            symbol="m",
            unit="rad",
            reason="0 is NormSoftmax, published 0.5; tuned ones on record are 0.32 to 0.41 "
            "(19 to 23 degrees). Beyond 1 most angles pass the point where the margin turns.",
        ),
    },
    nuisance=PROXY_RATES,
    published=(
        Published(
            "official code, faces",
            {"gamma": 64.0, "m": 0.5, **COMMON_RATES},
            note=STAND_IN + "the authors train faces with SGD at 0.1, and their code's gradient "
            "is straight-through, not the true one used here.",
        ),
    ),
)
