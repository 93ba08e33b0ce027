"""The unified loss: what do the Circle loss's weights add to plain similarities?"""

from __future__ import annotations

from dataclasses import replace

from search_spaces.losses.am_softmax import GAMMA_PARAM, MARGIN_PARAM
from search_spaces.losses.am_softmax import SPACE as AM_SOFTMAX
from search_spaces.losses.circle import CIRCLE_PAPER
from search_spaces.shared.training import COMMON_PAIR_RATES, PAIR_RATE_PARAMS, PROXY_RATE_PARAMS
from search_spaces.space import PublishedPoint, SearchSpace

# The same range under this paper's letter: AM-softmax writes s, eq. 1 of the Circle paper gamma.
_UNIFIED_PARAMS = {"gamma": replace(GAMMA_PARAM, symbol="γ", latex=r"\gamma"), "m": MARGIN_PARAM}
_SAME_FUNCTION_NOTE = "At class level the unified loss is AM-softmax: its setting."

CLASS_SPACE = SearchSpace(
    loss="unified",
    paper=CIRCLE_PAPER,
    scientific=_UNIFIED_PARAMS,
    nuisance=PROXY_RATE_PARAMS,
    published=tuple(
        PublishedPoint(point.source, point.values, note=f"{_SAME_FUNCTION_NOTE} {point.note}")
        for point in AM_SOFTMAX.published
    ),
)

PAIR_SPACE = SearchSpace(
    loss="unified_pair",
    paper=CIRCLE_PAPER,
    scientific=_UNIFIED_PARAMS,
    nuisance=PAIR_RATE_PARAMS,
    published=(
        PublishedPoint(
            "AM-softmax's code, faces",
            {"gamma": 30.0, "m": 0.35, **COMMON_PAIR_RATES},
            note="Borrowed: the paper prints no setting of eq. 1 with pairs; at class level this "
            "one is the same function.",
        ),
    ),
)
