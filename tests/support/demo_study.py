"""A study with the losses, knobs and dirt of a real one, and known answers."""

from __future__ import annotations

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from search_spaces.claims import (
    BetterLoss,
    BetterValue,
    Claim,
    CostRatio,
    FasterLoss,
    GoodValue,
    HigherMetric,
    Sensitive,
    StableRange,
)
from search_spaces.space import Knob, Published, Space
from study.table import TrialTable
from tests.study.synthetic import Array, Plan, Problem, make_table


def anchor_space(claims: bool = True) -> Space:
    said = (
        Claim(
            "alpha-stable",
            "The score is stable for α of 16 and more.",
            "Kim et al. 2020, Fig. 6",
            StableRange("alpha", low=16.0),
        ),
        Claim(
            "delta-stable",
            "The score is stable for δ between 0.1 and 0.4.",
            "Kim et al. 2020, Fig. 6",
            StableRange("delta", 0.1, 0.4),
        ),
        Claim("better-than-circle", "Better than Circle.", "made up", BetterLoss("circle")),
        Claim("faster", "Converges faster than Circle.", "made up", FasterLoss("circle")),
        Claim("batch", "Depends on the batch size.", "made up", Sensitive("batch_size")),
        Claim(
            "pooling",
            "Max pooling is better than average pooling.",
            "made up",
            BetterValue("pooling", "max", "avg"),
        ),
        Claim(
            "lr-good", "A learning rate of 1e-4 is good.", "made up", GoodValue("backbone_lr", 1e-4)
        ),
        Claim(
            "cheap",
            "An epoch costs at most 1.05 times Circle's.",
            "made up",
            CostRatio("circle", 1.05),
        ),
        Claim(
            "recall",
            "Recall@1 is higher than Circle's.",
            "made up",
            HigherMetric("recall_at_1", "circle"),
        ),
    )
    return Space(
        loss="proxy_anchor",
        paper="Kim et al., CVPR 2020",
        scientific={
            "alpha": Knob(FloatDistribution(4.0, 128.0, log=True), "α", "decades", "\\alpha"),
            "delta": Knob(FloatDistribution(0.0, 0.6), "δ", "cosine", "\\delta"),
        },
        nuisance={
            "backbone_lr": Knob(FloatDistribution(1e-6, 1e-3, log=True), "η", "decades", "\\eta"),
            "batch_size": Knob(IntDistribution(32, 192, step=32), "B", "memory", unit="images"),
            "pooling": Knob(CategoricalDistribution(["avg", "max", "avg+max"]), "pooling", "all"),
            "layer_norm": Knob(CategoricalDistribution([True, False]), "layer_norm", "both"),
        },
        published=(
            Published(
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
        claims=said if claims else (),
    )


def anchor_response(u: Array) -> Array:
    """α matters below 16 (0.4), δ little, the learning rate most, pooling max helps."""
    score = 0.62 - 0.5 * np.maximum(0.4 - u[:, 0], 0) ** 2 / 0.16
    score -= 0.03 * (u[:, 1] - 0.4) ** 2 + 0.9 * (u[:, 2] - 0.65) ** 2 * (1 + 0.8 * u[:, 0])
    score += 0.02 * (u[:, 3] - 1.0) + np.where((u[:, 4] > 0.34) & (u[:, 4] < 0.66), 0.02, 0.0)
    return np.asarray(score)


def circle_space() -> Space:
    return Space(
        loss="circle",
        paper="Sun et al., CVPR 2020",
        scientific={
            "gamma": Knob(FloatDistribution(16.0, 1024.0, log=True), "γ", "decades", "\\gamma"),
            "m": Knob(FloatDistribution(-0.2, 0.6), "m", "relaxation"),
        },
        nuisance={
            "backbone_lr": Knob(FloatDistribution(1e-6, 1e-3, log=True), "η", "decades", "\\eta"),
        },
        published=(Published("paper, face", {"gamma": 256.0, "m": 0.25, "backbone_lr": 1e-4}),),
        claims=(
            Claim(
                "gamma-robust",
                "Robust in γ.",
                "Sun et al. 2020, Fig. 4",
                StableRange("gamma", 64.0, 1024.0),
            ),
            Claim(
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


def circle_diverges(u: Array) -> Array:
    return np.where((u[:, 0] > 0.7) & (u[:, 2] > 0.75), 0.95, 0.02)


def triplet_space() -> Space:
    return Space(
        loss="triplet",
        paper="Hermans et al., 2017",
        scientific={"margin": Knob(FloatDistribution(0.02, 1.0), "m", "hinge")},
        nuisance={
            "backbone_lr": Knob(FloatDistribution(1e-6, 1e-3, log=True), "η", "decades", "\\eta"),
        },
        published=(Published("paper", {"margin": 0.2, "backbone_lr": 1e-4}),),
    )


def triplet_response(u: Array) -> Array:
    return np.asarray(0.53 - 0.02 * (u[:, 0] - 0.2) ** 2 - 0.5 * (u[:, 1] - 0.6) ** 2)


def demo_problems() -> list[Problem]:
    return [
        Problem(anchor_space(), anchor_response, noise=0.006, tau=4.0, seconds=1.02),
        Problem(circle_space(), circle_response, noise=0.006, diverges=circle_diverges),
        Problem(triplet_space(), triplet_response, noise=0.006, tau=8.0, seconds=0.9),
    ]


def demo_table(
    *, trials: int = 70, seed: int = 0, study: str = "glyphs-demo", confirm: int = 5
) -> TrialTable:
    """Three losses with confirmation, sweeps and divergence."""
    plan = Plan(trials=trials, confirm=confirm, sweep={"alpha": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)})
    return make_table(demo_problems(), plan, seed=seed, study=study)
