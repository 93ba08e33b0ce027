"""Synthetic study of three losses with realistic spaces, claims, noise and divergence."""

from __future__ import annotations

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from search_spaces.claims import (
    BetterLoss,
    BetterValue,
    CostRatio,
    FasterLoss,
    GoodValue,
    HigherMetric,
    PaperClaim,
    Sensitive,
    StableRange,
)
from search_spaces.space import Hyperparameter, PublishedPoint, SearchSpace
from study.trials.table import TrialTable
from tests.support.synthetic_tables import Array, SyntheticLoss, SyntheticPlan, make_table


def make_anchor_space(claims: bool = True) -> SearchSpace:
    paper_claims = (
        PaperClaim(
            "alpha-stable",
            "The score is stable for α of 16 and more.",
            "Kim et al. 2020, Fig. 6",
            StableRange("alpha", low=16.0),
        ),
        PaperClaim(
            "delta-stable",
            "The score is stable for δ between 0.1 and 0.4.",
            "Kim et al. 2020, Fig. 6",
            StableRange("delta", 0.1, 0.4),
        ),
        PaperClaim("better-than-circle", "Better than Circle.", "synthetic", BetterLoss("circle")),
        PaperClaim("faster", "Converges faster than Circle.", "synthetic", FasterLoss("circle")),
        PaperClaim("batch", "Depends on the batch size.", "synthetic", Sensitive("batch_size")),
        PaperClaim(
            "pooling",
            "Max pooling is better than average pooling.",
            "synthetic",
            BetterValue("pooling", "max", "avg"),
        ),
        PaperClaim(
            "lr-good",
            "A learning rate of 1e-4 is good.",
            "synthetic",
            GoodValue("backbone_lr", 1e-4),
        ),
        PaperClaim(
            "cheap",
            "An epoch costs at most 1.05 times Circle's.",
            "synthetic",
            CostRatio("circle", 1.05),
        ),
        PaperClaim(
            "recall",
            "Recall@1 is higher than Circle's.",
            "synthetic",
            HigherMetric("recall_at_1", "circle"),
        ),
    )
    return SearchSpace(
        loss="proxy_anchor",
        paper="Kim et al., CVPR 2020",
        scientific={
            "alpha": Hyperparameter(
                FloatDistribution(4.0, 128.0, log=True), "α", "decades", "\\alpha"
            ),
            "delta": Hyperparameter(FloatDistribution(0.0, 0.6), "δ", "cosine", "\\delta"),
        },
        nuisance={
            "backbone_lr": Hyperparameter(
                FloatDistribution(1e-6, 1e-3, log=True), "η", "decades", "\\eta"
            ),
            "batch_size": Hyperparameter(
                IntDistribution(32, 192, step=32), "B", "memory", unit="images"
            ),
            "pooling": Hyperparameter(
                CategoricalDistribution(["avg", "max", "avg+max"]), "pooling", "all"
            ),
            "layer_norm": Hyperparameter(
                CategoricalDistribution([True, False]), "layer_norm", "both"
            ),
        },
        published=(
            PublishedPoint(
                "official code, CUB",
                {
                    "alpha": 32.0,
                    "delta": 0.1,
                    "backbone_lr": 1e-4,
                    "batch_size": 160,
                    "pooling": "avg",
                    "layer_norm": True,
                },
            ),
        ),
        claims=paper_claims if claims else (),
    )


def anchor_response(u: Array) -> Array:
    """Return scores that depend on α below 16, little on δ and most on the learning rate.

    Max pooling improves the score.
    """
    score = 0.62 - 0.5 * np.maximum(0.4 - u[:, 0], 0) ** 2 / 0.16
    score -= 0.03 * (u[:, 1] - 0.4) ** 2 + 0.9 * (u[:, 2] - 0.65) ** 2 * (1 + 0.8 * u[:, 0])
    score += 0.02 * (u[:, 3] - 1.0) + np.where((u[:, 4] > 0.34) & (u[:, 4] < 0.66), 0.02, 0.0)
    return np.asarray(score)


def make_circle_space() -> SearchSpace:
    return SearchSpace(
        loss="circle",
        paper="Sun et al., CVPR 2020",
        scientific={
            "gamma": Hyperparameter(
                FloatDistribution(16.0, 1024.0, log=True), "γ", "decades", "\\gamma"
            ),
            "m": Hyperparameter(FloatDistribution(-0.2, 0.6), "m", "relaxation"),
        },
        nuisance={
            "backbone_lr": Hyperparameter(
                FloatDistribution(1e-6, 1e-3, log=True), "η", "decades", "\\eta"
            ),
        },
        published=(
            PublishedPoint("paper, face", {"gamma": 256.0, "m": 0.25, "backbone_lr": 1e-4}),
        ),
        claims=(
            PaperClaim(
                "gamma-robust",
                "Robust in γ.",
                "Sun et al. 2020, Fig. 4",
                StableRange("gamma", 64.0, 1024.0),
            ),
            PaperClaim(
                "better-than-triplet",
                "Better than triplet.",
                "Sun et al. 2020, Tab. 5",
                BetterLoss("triplet"),
            ),
        ),
    )


def circle_response(u: Array) -> Array:
    score = 0.585 - 0.25 * (u[:, 0] - 0.5) ** 2 - 0.3 * (u[:, 1] - 0.5 - 0.4 * (u[:, 0] - 0.5)) ** 2
    return np.asarray(score - 0.6 * (u[:, 2] - 0.6) ** 2)


def circle_divergence_probability(u: Array) -> Array:
    return np.where((u[:, 0] > 0.7) & (u[:, 2] > 0.75), 0.95, 0.02)


def make_triplet_space() -> SearchSpace:
    return SearchSpace(
        loss="triplet",
        paper="Hermans et al., 2017",
        scientific={"margin": Hyperparameter(FloatDistribution(0.02, 1.0), "m", "hinge")},
        nuisance={
            "backbone_lr": Hyperparameter(
                FloatDistribution(1e-6, 1e-3, log=True), "η", "decades", "\\eta"
            ),
        },
        published=(PublishedPoint("paper", {"margin": 0.2, "backbone_lr": 1e-4}),),
    )


def triplet_response(u: Array) -> Array:
    return np.asarray(0.53 - 0.02 * (u[:, 0] - 0.2) ** 2 - 0.5 * (u[:, 1] - 0.6) ** 2)


def make_demo_problems() -> list[SyntheticLoss]:
    return [
        SyntheticLoss(make_anchor_space(), anchor_response, noise=0.006, tau=4.0, seconds=1.02),
        SyntheticLoss(
            make_circle_space(),
            circle_response,
            noise=0.006,
            diverges=circle_divergence_probability,
        ),
        SyntheticLoss(make_triplet_space(), triplet_response, noise=0.006, tau=8.0, seconds=0.9),
    ]


def make_demo_table(
    *, trials: int = 70, seed: int = 0, study: str = "glyphs-demo", confirm: int = 5
) -> TrialTable:
    """Return a study of three losses with confirmation, sweeps and divergence."""
    plan = SyntheticPlan(
        trials=trials, confirm=confirm, sweep={"alpha": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)}
    )
    return make_table(make_demo_problems(), plan, seed=seed, study=study)
