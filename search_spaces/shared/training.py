"""Ranges of the training hyperparameters, for any loss.

A study file that searches `pooling` without a range gets the distribution below. The learning rates
are nuisance hyperparameters of every loss and searched by default: a comparison at one learning
rate would favour the losses that happen to suit it.
"""

from __future__ import annotations

from collections.abc import Mapping

from search_spaces.space import Choice, Float, Hyperparameter, Int, ParamValue

TRAINING_PARAMS: Mapping[str, Hyperparameter] = {
    "backbone_lr": Hyperparameter(
        Float(1e-5, 1e-2, log=True),
        symbol="η backbone",
        latex=r"\eta_{\mathrm{backbone}}",
        reason="Fine-tuning with Adam is published at 1e-4 to 6e-4; a factor 10 around, and more "
        "above, where divergence starts.",
    ),
    "head_lr": Hyperparameter(
        Float(1e-5, 1e-1, log=True),
        symbol="η head",
        latex=r"\eta_{\mathrm{head}}",
        reason="The embedding layer starts from nothing and bears more than the backbone; the "
        "papers give it the backbone's rate, which is inside.",
    ),
    "proxy_lr": Hyperparameter(
        Float(1e-4, 1.0, log=True),
        symbol="η proxy",
        latex=r"\eta_{\mathrm{proxy}}",
        reason="Published at 1e-2 to 6e-2 with Adam. Proxies start at length one and only their "
        "direction counts: above 1 the first step replaces them and larger rates change nothing, "
        "below 1e-4 they hardly move in a training.",
    ),
    "weight_decay": Hyperparameter(
        Float(1e-6, 1e-1, log=True),
        symbol="wd",
        reason="Published at 1e-4 (decoupled or L2); two factors of 100 around.",
    ),
    "adam_eps": Hyperparameter(
        Float(1e-8, 1.0, log=True),
        symbol="ε Adam",
        latex=r"\epsilon_{\mathrm{Adam}}",
        reason="From Adam's default to the 1.0 of ProxyNCA++'s code, where steps follow the size "
        "of gradients; couples with every learning rate.",
    ),
    "clip_grad": Hyperparameter(
        Float(0.1, 100.0, log=True),
        symbol="clip",
        reason="Proxy-Anchor and ProxyNCA++ clip each gradient value at 10; a factor 10 above, "
        "100 below.",
    ),
    "batch_size": Hyperparameter(
        Int(16, 512, log=True),
        symbol="B",
        unit="images",
        reason="Published from 32 to 192; Proxy-Anchor is said to want 300 and more.",
    ),
    "images_per_class": Hyperparameter(
        Int(0, 8),
        symbol="n/class",
        latex=r"n_{\mathrm{class}}",
        unit="images",
        reason="0 shuffles (Proxy-Anchor), 3 and 4 are ProxyNCA++'s; pair losses need 2 or more.",
    ),
    "pooling": Hyperparameter(
        Choice(["avg", "max", "avg+max"]),
        symbol="pooling",
        reason="ProxyNCA++ takes the maximum, Proxy-Anchor's code the sum of both, others the "
        "average.",
    ),
    "layer_norm": Hyperparameter(
        Choice([False, True]),
        symbol="layer norm",
        reason="ProxyNCA++ and NormSoftmax use it (without affine weights), the others do not.",
    ),
    "embedding_dim": Hyperparameter(
        Choice([64, 128, 256, 512, 1024, 2048]),
        symbol="D",
        reason="The papers' sizes: 64 to 2048.",
    ),
    "warmup_epochs": Hyperparameter(
        Int(0, 10),
        symbol="warm-up",
        unit="epochs",
        reason="Epochs with a frozen backbone: 0, 1 or 5 in the official codes.",
    ),
    "bn_freeze": Hyperparameter(
        Choice(["none", "stats", "all"]),
        symbol="BN freeze",
        reason="Official codes differ: statistics only (Proxy-Anchor, SoftTriple), all, none.",
    ),
    "lr_decay": Hyperparameter(
        Choice(["none", "step", "cosine"]),
        symbol="decay",
        reason="The official codes step; cosine has no step times to choose.",
    ),
}

PAIR_RATE_PARAMS: Mapping[str, Hyperparameter] = {
    name: TRAINING_PARAMS[name] for name in ("backbone_lr", "head_lr")
}
PROXY_RATE_PARAMS: Mapping[str, Hyperparameter] = {
    **PAIR_RATE_PARAMS,
    "proxy_lr": TRAINING_PARAMS["proxy_lr"],
}

# Three official codes with Adam (Proxy-Anchor, SoftTriple, Proxy Synthesis) agree on these rates.
# They replace those of authors who used another optimiser, whose rates are not comparable.
COMMON_PAIR_RATES: Mapping[str, ParamValue] = {"backbone_lr": 1e-4, "head_lr": 1e-4}
COMMON_PROXY_RATES: Mapping[str, ParamValue] = {**COMMON_PAIR_RATES, "proxy_lr": 1e-2}
COMMON_RATES_NOTE = "Rates are those common to three official codes with Adam: "
