"""Proxy-Anchor: is it as stable in alpha and delta as its paper says?"""

from __future__ import annotations

from search_spaces.claims import (
    BetterLoss,
    BetterValue,
    FasterLoss,
    PaperClaim,
    Sensitive,
    StableRange,
)
from search_spaces.shared.training import PROXY_RATE_PARAMS
from search_spaces.space import Float, Hyperparameter, PublishedPoint, SearchSpace

PAPER = "Kim et al., CVPR 2020, arXiv:2003.13911"

SPACE = SearchSpace(
    loss="proxy_anchor",
    paper=PAPER,
    scientific={
        "alpha": Hyperparameter(
            Float(4.0, 128.0, log=True),
            symbol="α",
            latex=r"\alpha",
            reason="Claimed stable from 16 on: two octaves below, to see it fail, and two above "
            "the published 32. A scale acts by its ratio.",
        ),
        "delta": Hyperparameter(
            Float(0.0, 0.6),
            symbol="δ",
            latex=r"\delta",
            reason="A cosine margin; claimed stable in 0.1 to 0.4, searched beyond both ends.",
        ),
    },
    nuisance=PROXY_RATE_PARAMS,
    published=(
        PublishedPoint(
            "official code, CUB-200-2011 and Cars-196",
            {
                "alpha": 32.0,
                "delta": 0.1,
                "backbone_lr": 1e-4,
                "head_lr": 1e-4,
                "proxy_lr": 1e-2,
            },
        ),
        PublishedPoint(
            "official code, SOP and In-Shop",
            {
                "alpha": 32.0,
                "delta": 0.1,
                "backbone_lr": 6e-4,
                "head_lr": 6e-4,
                "proxy_lr": 6e-2,
            },
        ),
    ),
    claims=(
        PaperClaim(
            "alpha-stable",
            "For alpha >= 16 the score hardly depends on alpha.",
            f"{PAPER}, section on hyperparameters",
            StableRange("alpha", low=16.0),
        ),
        PaperClaim(
            "delta-stable",
            "For delta from 0.1 to 0.4 the score hardly depends on delta.",
            f"{PAPER}, section on hyperparameters",
            StableRange("delta", low=0.1, high=0.4),
        ),
        PaperClaim(
            "better-than-proxy-nca",
            "Retrieves better than Proxy-NCA.",
            f"{PAPER}, result tables",
            BetterLoss("proxy_nca"),
        ),
        PaperClaim(
            "faster-than-proxy-nca",
            "Converges in fewer epochs than Proxy-NCA.",
            f"{PAPER}, convergence figure",
            FasterLoss("proxy_nca"),
        ),
        PaperClaim(
            "faster-than-multi-similarity",
            "Converges in fewer epochs than Multi-Similarity.",
            f"{PAPER}, convergence figure",
            FasterLoss("multi_similarity"),
        ),
        PaperClaim(
            "batch-size-matters",
            "The score depends on the batch size.",
            f"{PAPER}, batch-size table",
            Sensitive("batch_size"),
        ),
        PaperClaim(
            "large-batches",
            "Batches of 300 and more do better than small ones.",
            f"{PAPER}, batch-size table",
            BetterValue("batch_size", better=(300.0, 512.0), worse=(16.0, 64.0)),
        ),
    ),
)
