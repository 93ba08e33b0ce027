"""The unified loss: what do the Circle loss's weights add to plain similarities?"""

from __future__ import annotations

from dataclasses import replace

from search_spaces.am_softmax import GAMMA, M
from search_spaces.am_softmax import SPACE as AM_SOFTMAX
from search_spaces.circle import PAPER
from search_spaces.space import Published, Space
from search_spaces.training import COMMON_PAIR_RATES, PAIR_RATES, PROXY_RATES

# The same range under this paper's letter: AM-softmax writes s, eq. 1 of the Circle paper gamma.
_KNOBS = {"gamma": replace(GAMMA, symbol="γ", latex=r"\gamma"), "m": M}
_SAME = "At class level the unified loss is AM-softmax: its setting."

CLASS_SPACE = Space(
    loss="unified",
    paper=PAPER,
    scientific=_KNOBS,
    nuisance=PROXY_RATES,
    published=tuple(
        Published(point.source, point.values, note=f"{_SAME} {point.note}")
        for point in AM_SOFTMAX.published
    ),
)

PAIR_SPACE = Space(
    loss="unified_pair",
    paper=PAPER,
    scientific=_KNOBS,
    nuisance=PAIR_RATES,
    published=(
        Published(
            "AM-softmax's code, faces",
            {"gamma": 30.0, "m": 0.35, **COMMON_PAIR_RATES},
            note="Borrowed: the paper prints no setting of eq. 1 with pairs; at class level this "
            "one is the same function.",
        ),
    ),
)
