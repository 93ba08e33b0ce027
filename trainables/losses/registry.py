"""Which losses are there, what are their knobs, and how is one built?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from trainables.losses.am_softmax import am_softmax
from trainables.losses.arcface import arcface
from trainables.losses.blocks import KEEP_MIB, Budget
from trainables.losses.circle import circle
from trainables.losses.circle_pair import circle_pair
from trainables.losses.contrastive import contrastive
from trainables.losses.knobs import KnobInfo, check_knobs, is_number, knobs_of, nearest
from trainables.losses.margin import margin
from trainables.losses.multi_similarity import multi_similarity
from trainables.losses.norm_softmax import norm_softmax
from trainables.losses.pml import PREFIX as PML
from trainables.losses.pml import build_pml, pml_knobs
from trainables.losses.proxy_anchor import proxy_anchor
from trainables.losses.proxy_loss import ProxyLoss, Setup
from trainables.losses.proxy_nca import proxy_nca
from trainables.losses.proxy_nca_pp import proxy_nca_pp
from trainables.losses.soft_triple import soft_triple
from trainables.losses.softmax import softmax
from trainables.losses.synthesis import Draw, Path, Synthesis
from trainables.losses.triplet import triplet
from trainables.losses.unified import unified, unified_pair
from trainables.world import Alone, World

SYNTHESIS = "+synthesis"
SYNTHESIS_PAPER = "Gu et al., AAAI 2021, arXiv:2103.15454"

Family = Literal["proxy", "pair"]


@dataclass(frozen=True)
class LossInfo:
    """One loss of the registry.

    Args:
        builder: `builder(setup, *, knobs...)` gives the module.
        family: "proxy" (learned proxies, takes the synthesis plug-in) or "pair".
        title: The name in tables.
        paper: Authors, venue, arXiv number.
        on_sphere: Whether only directions of embeddings and proxies count.
    """

    builder: Callable[..., nn.Module]
    family: Family
    title: str
    paper: str
    on_sphere: bool = True


_CIRCLE_PAPER = "Sun et al., CVPR 2020, arXiv:2002.10857"

LOSSES: Mapping[str, LossInfo] = {
    "softmax": LossInfo(softmax, "proxy", "Softmax", "cross-entropy", on_sphere=False),
    "norm_softmax": LossInfo(
        norm_softmax, "proxy", "NormSoftmax", "Zhai & Wu, BMVC 2019, arXiv:1811.12649"
    ),
    "am_softmax": LossInfo(
        am_softmax, "proxy", "AM-softmax (CosFace)", "Wang et al., 2018, arXiv:1801.05599"
    ),
    "arcface": LossInfo(arcface, "proxy", "ArcFace", "Deng et al., CVPR 2019, arXiv:1801.07698"),
    "proxy_nca": LossInfo(
        proxy_nca, "proxy", "Proxy-NCA", "Movshovitz-Attias et al., ICCV 2017, arXiv:1703.07464"
    ),
    "proxy_nca_pp": LossInfo(
        proxy_nca_pp, "proxy", "ProxyNCA++", "Teh et al., ECCV 2020, arXiv:2004.01113"
    ),
    "soft_triple": LossInfo(
        soft_triple, "proxy", "SoftTriple", "Qian et al., ICCV 2019, arXiv:1909.05235"
    ),
    "proxy_anchor": LossInfo(
        proxy_anchor, "proxy", "Proxy-Anchor", "Kim et al., CVPR 2020, arXiv:2003.13911"
    ),
    "circle": LossInfo(circle, "proxy", "Circle (class level)", _CIRCLE_PAPER),
    "circle_pair": LossInfo(circle_pair, "pair", "Circle (pair level)", _CIRCLE_PAPER),
    "unified": LossInfo(unified, "proxy", "Unified (class level)", _CIRCLE_PAPER),
    "unified_pair": LossInfo(unified_pair, "pair", "Unified (pair level)", _CIRCLE_PAPER),
    "triplet": LossInfo(triplet, "pair", "Triplet", "Hermans et al., 2017, arXiv:1703.07737"),
    "contrastive": LossInfo(contrastive, "pair", "Contrastive", "Hadsell et al., CVPR 2006"),
    "multi_similarity": LossInfo(
        multi_similarity, "pair", "Multi-Similarity", "Wang et al., CVPR 2019, arXiv:1904.06627"
    ),
    "margin": LossInfo(margin, "pair", "Margin", "Wu et al., ICCV 2017, arXiv:1706.07567"),
}


def synthesis_plugin(
    setup: Setup,
    *,
    synthesis_alpha: float,
    synthesis_mu: float,
    synthesis_draw: Draw = "batch",
    synthesis_path: Path = "linear",
    on_sphere: bool = True,
) -> Synthesis:
    """The plug-in from its knobs; `on_sphere` comes from the host, not from a user."""
    return Synthesis(
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
    **knobs: Any,
) -> nn.Module:
    """The loss called `name`, called as `loss(embeddings, labels) -> scalar`.

    Args:
        name: A key of `LOSSES`, such a name with `+synthesis`, or `pml:ClassName`.
        n_classes: Number of training classes.
        dim: Length of an embedding.
        seed: Start of the proxies and of random pairs.
        keep_mib: Similarities of a batch with all proxies are kept for backward up to this many
            MiB; above, they are computed twice and never held at once. None: 384.
        shards: Ranks that each hold a share of the classes' proxies; every rank passes all
            embeddings and gets the whole loss. None: all proxies here. Only ours can be sharded;
            `pml:...` is replicated.
        negative_share: Share of the classes absent from a batch that a proxy loss compares it
            with, drawn anew each step.
        knobs: The loss's own knobs, as `loss_knobs(name)` lists them.

    Raises:
        ValueError: The loss or a knob is unknown, a knob is missing or has an impossible value.
    """
    if not isinstance(name, str):
        raise ValueError(f"The name of a loss must be a word, but got {name!r}.")
    setup = Setup(
        n_classes,
        dim,
        seed=seed,
        budget=Budget(keep_bytes=int(_kept(keep_mib) * 2**20)),
        world=shards or Alone(torch.device("cpu")),
        negative_share=negative_share,
    )
    known = loss_knobs(name)
    check_knobs(name, known, knobs)
    knobs = {knob: _plain(known[knob], value) for knob, value in knobs.items()}
    if name.startswith(PML):
        return build_pml(name, setup, knobs)
    host, plugin = _parse(name)
    if not plugin:
        return LOSSES[host].builder(setup, **knobs)
    own = {knob: value for knob, value in knobs.items() if not knob.startswith("synthesis_")}
    loss = LOSSES[host].builder(setup, **own)
    assert isinstance(loss, ProxyLoss)
    loss.synthesis = synthesis_plugin(
        setup,
        **{knob: value for knob, value in knobs.items() if knob not in own},
        on_sphere=LOSSES[host].on_sphere,
    )
    return loss


def loss_knobs(name: str) -> dict[str, KnobInfo]:
    """The knobs `build_loss(name, ...)` takes, required ones first."""
    if name.startswith(PML):
        return pml_knobs(name)
    host, plugin = _parse(name)
    knobs = knobs_of(LOSSES[host].builder)
    if plugin:
        knobs |= {k: v for k, v in knobs_of(synthesis_plugin).items() if k != "on_sphere"}
    return dict(sorted(knobs.items(), key=lambda item: not item[1].required))


def loss_info(name: str) -> LossInfo:
    """What the registry says of a name, `HOST+synthesis` included (not of `pml:...`)."""
    host, plugin = _parse(name)
    info = LOSSES[host]
    if not plugin:
        return info
    return replace(
        info,
        title=f"{info.title} + Proxy Synthesis",
        paper=f"{info.paper}; {SYNTHESIS_PAPER}",
    )


def counts_lengths(name: str) -> bool:
    """Whether a loss wants embeddings as they are; the others see only their directions.

    Losses of pytorch-metric-learning normalise for themselves, where they do.
    """
    return name.startswith(PML) or not loss_info(name).on_sphere


def samples_classes(name: str) -> bool:
    """Whether `negative_share` reaches a loss: our proxy losses draw classes, no other does."""
    return not name.startswith(PML) and loss_info(name).family == "proxy"


def _parse(name: str) -> tuple[str, bool]:
    host = name.removesuffix(SYNTHESIS)
    plugin = host != name
    if host not in LOSSES:
        raise ValueError(f"Unknown loss {name!r}; {nearest(host, LOSSES)}, or {PML}ClassName.")
    if plugin and LOSSES[host].family != "proxy":
        hosts = [key for key, info in LOSSES.items() if info.family == "proxy"]
        raise ValueError(
            f"Proxy Synthesis needs a proxy loss, but {host!r} has no proxies; "
            f"known hosts: {', '.join(hosts)}."
        )
    return host, plugin


def _kept(keep_mib: float | None) -> float:
    """The memory bound in MiB; ValueError unless it is a positive number."""
    if keep_mib is None:
        return KEEP_MIB
    if not is_number(keep_mib) or not keep_mib > 0:
        raise ValueError(f"`keep_mib > 0` (a finite number) must hold, but got {keep_mib!r}.")
    return keep_mib


def _plain(info: KnobInfo, value: Any) -> Any:
    """Numbers as Python's own: int for a count, where a sampler may give 4.0, else float."""
    return info.type(value) if info.type in (int, float, bool) else value
