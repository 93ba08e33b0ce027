"""Registry of the losses: their hyperparameters and how to build them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from trainables.distributed.world import SingleProcessWorld, World
from trainables.losses.am_softmax import build_am_softmax
from trainables.losses.arcface import build_arcface
from trainables.losses.base.hyperparameters import (
    ParamInfo,
    builder_params,
    check_params,
    is_number,
)
from trainables.losses.base.proxy_loss import LossSetup, ProxyLoss
from trainables.losses.base.synthesis import ProxySynthesis, SynthesisDraw, SynthesisPath
from trainables.losses.circle import build_circle
from trainables.losses.circle_pair import build_circle_pair
from trainables.losses.contrastive import build_contrastive
from trainables.losses.kernels.blocks import DEFAULT_KEEP_MIB, MemoryBudget
from trainables.losses.margin import build_margin
from trainables.losses.multi_similarity import build_multi_similarity
from trainables.losses.norm_softmax import build_norm_softmax
from trainables.losses.pml import PML_PREFIX as PML
from trainables.losses.pml import build_pml_loss, pml_params
from trainables.losses.proxy_anchor import build_proxy_anchor
from trainables.losses.proxy_nca import build_proxy_nca
from trainables.losses.proxy_nca_pp import build_proxy_nca_pp
from trainables.losses.soft_triple import build_soft_triple
from trainables.losses.softmax import build_softmax
from trainables.losses.triplet import build_triplet
from trainables.losses.unified import build_unified, build_unified_pair
from trainables.utils.suggestions import suggest_nearest_name

SYNTHESIS_SUFFIX = "+synthesis"
SYNTHESIS_PAPER = "Gu et al., AAAI 2021, arXiv:2103.15454"

LossFamily = Literal["proxy", "pair"]


@dataclass(frozen=True)
class LossInfo:
    """One loss of the registry.

    Args:
        builder: `builder(setup, *, hyperparameters...)` returns the module.
        family: "proxy" (learned proxies, takes the synthesis plug-in) or "pair".
        title: Name in tables.
        paper: Authors, venue, arXiv number.
        on_sphere: Whether the loss depends only on the directions of embeddings and proxies.
    """

    builder: Callable[..., nn.Module]
    family: LossFamily
    title: str
    paper: str
    on_sphere: bool = True


_CIRCLE_PAPER = "Sun et al., CVPR 2020, arXiv:2002.10857"

LOSSES: Mapping[str, LossInfo] = {
    "softmax": LossInfo(build_softmax, "proxy", "Softmax", "cross-entropy", on_sphere=False),
    "norm_softmax": LossInfo(
        build_norm_softmax, "proxy", "NormSoftmax", "Zhai & Wu, BMVC 2019, arXiv:1811.12649"
    ),
    "am_softmax": LossInfo(
        build_am_softmax, "proxy", "AM-softmax (CosFace)", "Wang et al., 2018, arXiv:1801.05599"
    ),
    "arcface": LossInfo(
        build_arcface, "proxy", "ArcFace", "Deng et al., CVPR 2019, arXiv:1801.07698"
    ),
    "proxy_nca": LossInfo(
        build_proxy_nca,
        "proxy",
        "Proxy-NCA",
        "Movshovitz-Attias et al., ICCV 2017, arXiv:1703.07464",
    ),
    "proxy_nca_pp": LossInfo(
        build_proxy_nca_pp, "proxy", "ProxyNCA++", "Teh et al., ECCV 2020, arXiv:2004.01113"
    ),
    "soft_triple": LossInfo(
        build_soft_triple, "proxy", "SoftTriple", "Qian et al., ICCV 2019, arXiv:1909.05235"
    ),
    "proxy_anchor": LossInfo(
        build_proxy_anchor, "proxy", "Proxy-Anchor", "Kim et al., CVPR 2020, arXiv:2003.13911"
    ),
    "circle": LossInfo(build_circle, "proxy", "Circle (class level)", _CIRCLE_PAPER),
    "circle_pair": LossInfo(build_circle_pair, "pair", "Circle (pair level)", _CIRCLE_PAPER),
    "unified": LossInfo(build_unified, "proxy", "Unified (class level)", _CIRCLE_PAPER),
    "unified_pair": LossInfo(build_unified_pair, "pair", "Unified (pair level)", _CIRCLE_PAPER),
    "triplet": LossInfo(build_triplet, "pair", "Triplet", "Hermans et al., 2017, arXiv:1703.07737"),
    "contrastive": LossInfo(build_contrastive, "pair", "Contrastive", "Hadsell et al., CVPR 2006"),
    "multi_similarity": LossInfo(
        build_multi_similarity,
        "pair",
        "Multi-Similarity",
        "Wang et al., CVPR 2019, arXiv:1904.06627",
    ),
    "margin": LossInfo(build_margin, "pair", "Margin", "Wu et al., ICCV 2017, arXiv:1706.07567"),
}


def build_synthesis(
    setup: LossSetup,
    *,
    synthesis_alpha: float,
    synthesis_mu: float,
    synthesis_draw: SynthesisDraw = "batch",
    synthesis_path: SynthesisPath = "linear",
    on_sphere: bool = True,
) -> ProxySynthesis:
    """Build the plug-in; `on_sphere` is a property of the host, not a hyperparameter."""
    return ProxySynthesis(
        alpha=synthesis_alpha,
        mu=synthesis_mu,
        draw=synthesis_draw,
        path=synthesis_path,
        on_sphere=on_sphere,
        seed=setup.seed,
    )


def build_loss(
    name: str,
    *,
    n_classes: int,
    dim: int,
    seed: int = 0,
    keep_mib: float | None = None,
    shards: World | None = None,
    negative_share: float = 1.0,
    **params: Any,
) -> nn.Module:
    """Build a loss, called as `loss(embeddings, labels) -> scalar`.

    Args:
        name: A key of `LOSSES`, such a name with `+synthesis`, or `pml:ClassName`.
        n_classes: Number of training classes.
        dim: Length of an embedding.
        seed: Seed of the initial proxies and of random pairs.
        keep_mib: Memory in MiB up to which the similarities of a batch with all proxies are kept
            for backward; above it they are computed twice and never stored at once. None is 384.
        shards: Ranks that each hold the proxies of a share of the classes; every rank passes all
            embeddings and gets the complete loss. None keeps all proxies in this process. Losses
            `pml:...` are replicated, not sharded.
        negative_share: Share of the classes absent from a batch that a proxy loss compares the
            batch with; they are drawn again in each step.
        params: Hyperparameters of the loss, as `loss_params(name)` lists them.

    Raises:
        ValueError: The loss or a hyperparameter is unknown, or a hyperparameter is missing or has
            an impossible value.
    """
    if not isinstance(name, str):
        raise ValueError(f"the name of a loss must be a string, but got {name!r}")
    setup = LossSetup(
        n_classes,
        dim,
        seed=seed,
        budget=MemoryBudget(keep_bytes=int(_check_keep_mib(keep_mib) * 2**20)),
        world=shards or SingleProcessWorld(torch.device("cpu")),
        negative_share=negative_share,
    )
    known = loss_params(name)
    check_params(name, known, params)
    params = {param: _cast_param(known[param], value) for param, value in params.items()}
    if name.startswith(PML):
        return build_pml_loss(name, setup, params)
    host, plugin = _parse_loss_name(name)
    if not plugin:
        return LOSSES[host].builder(setup, **params)
    own = {param: value for param, value in params.items() if not param.startswith("synthesis_")}
    loss = LOSSES[host].builder(setup, **own)
    assert isinstance(loss, ProxyLoss)
    loss.synthesis = build_synthesis(
        setup,
        **{param: value for param, value in params.items() if param not in own},
        on_sphere=LOSSES[host].on_sphere,
    )
    return loss


def loss_params(name: str) -> dict[str, ParamInfo]:
    """Return the hyperparameters of a loss for `build_loss`, required ones first."""
    if name.startswith(PML):
        return pml_params(name)
    host, plugin = _parse_loss_name(name)
    params = builder_params(LOSSES[host].builder)
    if plugin:
        params |= {k: v for k, v in builder_params(build_synthesis).items() if k != "on_sphere"}
    return dict(sorted(params.items(), key=lambda item: not item[1].required))


def loss_info(name: str) -> LossInfo:
    """Return the registry entry of a name, including `HOST+synthesis` but not `pml:...`."""
    host, plugin = _parse_loss_name(name)
    info = LOSSES[host]
    if not plugin:
        return info
    return replace(
        info,
        title=f"{info.title} + Proxy Synthesis",
        paper=f"{info.paper}; {SYNTHESIS_PAPER}",
    )


def uses_raw_embeddings(name: str) -> bool:
    """Whether a loss depends on the lengths of embeddings; the others use only directions.

    Losses of pytorch-metric-learning receive raw embeddings, which most of them normalise.
    """
    return name.startswith(PML) or not loss_info(name).on_sphere


def supports_negative_share(name: str) -> bool:
    """Whether a loss uses `negative_share`: only the proxy losses of this package draw classes."""
    return not name.startswith(PML) and loss_info(name).family == "proxy"


def _parse_loss_name(name: str) -> tuple[str, bool]:
    host = name.removesuffix(SYNTHESIS_SUFFIX)
    plugin = host != name
    if host not in LOSSES:
        raise ValueError(
            f"unknown loss {name!r}; {suggest_nearest_name(host, LOSSES)} "
            f"(or {PML}ClassName for a loss of pytorch-metric-learning)"
        )
    if plugin and LOSSES[host].family != "proxy":
        hosts = [key for key, info in LOSSES.items() if info.family == "proxy"]
        raise ValueError(
            f"Proxy Synthesis needs a proxy loss, but {host!r} has no proxies; "
            f"known hosts: {', '.join(hosts)}"
        )
    return host, plugin


def _check_keep_mib(keep_mib: float | None) -> float:
    """Return the memory bound in MiB; ValueError unless it is a positive number."""
    if keep_mib is None:
        return DEFAULT_KEEP_MIB
    if not is_number(keep_mib) or not keep_mib > 0:
        raise ValueError(f"`keep_mib > 0` (a finite number) must hold, but got {keep_mib!r}")
    return keep_mib


def _cast_param(info: ParamInfo, value: Any) -> Any:
    """Return numbers as Python types: int for a count (a sampler may pass 4.0), else float."""
    return info.type(value) if info.type in (int, float, bool) else value
