"""Softmax: how far does a plain classifier go?"""

from __future__ import annotations

from search_spaces.extra import EXTRA
from search_spaces.space import Published, Space
from search_spaces.training import COMMON_RATES, PROXY_RATES, STAND_IN

SPACE = Space(
    loss="softmax",
    paper="cross-entropy over inner products",
    # It has no knob of its own; smoothing is the one that changes what it asks for.
    scientific={"label_smoothing": EXTRA["label_smoothing"]},
    nuisance=PROXY_RATES,
    published=(
        Published(
            "common practice",
            {"label_smoothing": 0.0, **COMMON_RATES},
            note=STAND_IN + "no paper owns this loss.",
        ),
    ),
)
