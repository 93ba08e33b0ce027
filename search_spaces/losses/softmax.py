"""Softmax: how far does a plain classifier go?"""

from __future__ import annotations

from search_spaces.shared.optional import OPTIONAL_PARAMS
from search_spaces.shared.training import COMMON_PROXY_RATES, COMMON_RATES_NOTE, PROXY_RATE_PARAMS
from search_spaces.space import PublishedPoint, SearchSpace

SPACE = SearchSpace(
    loss="softmax",
    paper="cross-entropy over inner products",
    # The loss has no hyperparameter of its own; label smoothing changes its target.
    scientific={"label_smoothing": OPTIONAL_PARAMS["label_smoothing"]},
    nuisance=PROXY_RATE_PARAMS,
    published=(
        PublishedPoint(
            "common practice",
            {"label_smoothing": 0.0, **COMMON_PROXY_RATES},
            note=COMMON_RATES_NOTE + "no paper owns this loss.",
        ),
    ),
)
