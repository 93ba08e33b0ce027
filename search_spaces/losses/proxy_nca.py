"""Proxy-NCA: which scale, in the paper's form?"""

from __future__ import annotations

from search_spaces.shared.training import COMMON_PROXY_RATES, PROXY_RATE_PARAMS
from search_spaces.space import Float, Hyperparameter, PublishedPoint, SearchSpace

_REFERENCE_CODE_NOTE = (
    "Scale as in the reference code, which keeps the own class in the sum and smooths labels by "
    "0.1. Its Adam has eps = 1, so its rates (0.045; proxies 1 to 10) have no equal here; those "
    "common to three official codes with Adam stand in."
)

SPACE = SearchSpace(
    loss="proxy_nca",
    paper="Movshovitz-Attias et al., ICCV 2017, arXiv:1703.07464",
    scientific={
        "scale": Hyperparameter(
            Float(1.0, 100.0, log=True),
            symbol="s",
            reason="The factor of the squared distance: cosine scales 2 to 200, as for the other "
            "softmax losses. Published 8 (SOP), 9 and 12, tuned ones on record 8 to 14. Acts by "
            "its ratio.",
        ),
    },
    nuisance=PROXY_RATE_PARAMS,
    published=(
        PublishedPoint(
            "reference code (dichotomies), CUB-200-2011 and Cars-196",
            {"scale": 9.0, **COMMON_PROXY_RATES},
            note=_REFERENCE_CODE_NOTE,
        ),
        PublishedPoint(
            "Proxy Synthesis's code, its Proxy-NCA baseline on Cars-196",
            {"scale": 12.0, **COMMON_PROXY_RATES},
            note="Rates as published, with Adam's eps at 0.01; keeps the own class in the sum.",
        ),
    ),
)
