"""Which losses are there, what are their knobs, and how is one built?"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from torch import nn

from trainables.losses.blocks import Budget
from trainables.losses.circle import circle
from trainables.losses.norm_softmax import norm_softmax
from trainables.losses.proxy_anchor import proxy_anchor
from trainables.losses.proxy_loss import ProxyLoss, Setup
from trainables.losses.proxy_nca_pp import proxy_nca_pp
from trainables.losses.synthesis import Draw, Path, Synthesis
from trainables.losses.triplet import triplet

SYNTHESIS = "+synthesis"

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


@dataclass(frozen=True)
class KnobInfo:
    """One knob of a loss: its Python type, and its default unless it is required.

    `choices` lists the allowed values of a knob that names an alternative.
    """

    type: type
    required: bool
    default: bool | int | float | str | None = None
    choices: tuple[str, ...] = ()


LOSSES: Mapping[str, LossInfo] = {
    "norm_softmax": LossInfo(
        norm_softmax, "proxy", "NormSoftmax", "Zhai & Wu, BMVC 2019, arXiv:1811.12649"
    ),
    "proxy_nca_pp": LossInfo(
        proxy_nca_pp, "proxy", "ProxyNCA++", "Teh et al., ECCV 2020, arXiv:2004.01113"
    ),
    "proxy_anchor": LossInfo(
        proxy_anchor, "proxy", "Proxy-Anchor", "Kim et al., CVPR 2020, arXiv:2003.13911"
    ),
    "circle": LossInfo(
        circle, "proxy", "Circle (class level)", "Sun et al., CVPR 2020, arXiv:2002.10857"
    ),
    "triplet": LossInfo(triplet, "pair", "Triplet", "Hermans et al., 2017, arXiv:1703.07737"),
}


def synthesis_plugin(
    setup: Setup,
    *,
    synthesis_alpha: float,
    synthesis_mu: float,
    synthesis_draw: Draw = "batch",
    synthesis_path: Path = "linear",
) -> Synthesis:
    """The plug-in from its knobs."""
    return Synthesis(
        alpha=synthesis_alpha,
        mu=synthesis_mu,
        draw=synthesis_draw,
        path=synthesis_path,
        seed=setup.seed,
    )


def build_loss(
    name: str,
    *,
    n_classes: int,
    dim: int,
    seed: int = 0,
    keep_mib: float = 256.0,
    **knobs: Any,
) -> nn.Module:
    """The loss called `name`, called as `loss(embeddings, labels) -> scalar`.

    Args:
        name: A key of `LOSSES`, such a name with `+synthesis`, or `pml:ClassName`.
        n_classes: Number of training classes.
        dim: Length of an embedding.
        seed: Start of the proxies and of random pairs.
        keep_mib: Similarities of a batch with all proxies are kept for backward up to this many
            MiB; above, they are computed twice and never held at once.
        knobs: The loss's own knobs, as `loss_knobs(name)` lists them.

    Raises:
        ValueError: The loss or a knob is unknown, a knob is missing or has an impossible value.
    """
    host, plugin = _parse(name)
    setup = Setup(n_classes, dim, seed=seed, budget=Budget(keep_bytes=int(keep_mib * 2**20)))
    _check_knobs(name, loss_knobs(name), knobs)
    info = LOSSES[host]
    plugin_names = _signature(synthesis_plugin) if plugin else {}
    loss = info.builder(setup, **{k: v for k, v in knobs.items() if k not in plugin_names})
    if plugin:
        assert isinstance(loss, ProxyLoss)
        loss.synthesis = synthesis_plugin(
            setup, **{k: v for k, v in knobs.items() if k in plugin_names}
        )
        loss.synthesis.on_sphere = info.on_sphere
    return loss


def loss_knobs(name: str) -> dict[str, KnobInfo]:
    """The knobs `build_loss(name, ...)` takes, required ones first."""
    host, plugin = _parse(name)
    knobs = _signature(LOSSES[host].builder)
    if plugin:
        knobs |= _signature(synthesis_plugin)
    return dict(sorted(knobs.items(), key=lambda item: not item[1].required))


def loss_info(name: str) -> LossInfo:
    """What the registry says of a name, `HOST+synthesis` included."""
    host, plugin = _parse(name)
    info = LOSSES[host]
    if not plugin:
        return info
    paper = "Gu et al., AAAI 2021, arXiv:2103.15454"
    return replace(info, title=f"{info.title} + Proxy Synthesis", paper=f"{info.paper}; {paper}")


def _parse(name: str) -> tuple[str, bool]:
    host = name.removesuffix(SYNTHESIS)
    plugin = host != name
    if host not in LOSSES:
        raise ValueError(f"Unknown loss {name!r}; {_nearest(host, LOSSES)}.")
    if plugin and LOSSES[host].family != "proxy":
        hosts = [key for key, info in LOSSES.items() if info.family == "proxy"]
        raise ValueError(
            f"Proxy Synthesis needs a proxy loss, but {host!r} has no proxies; "
            f"known hosts: {', '.join(hosts)}."
        )
    return host, plugin


def _signature(builder: Callable[..., object]) -> dict[str, KnobInfo]:
    """The keyword-only arguments of a builder are its knobs."""
    hints = get_type_hints(builder)
    knobs = {}
    for parameter in inspect.signature(builder).parameters.values():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        hint = hints[parameter.name]
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        required = parameter.default is inspect.Parameter.empty
        knobs[parameter.name] = KnobInfo(
            type=str if choices else hint,
            required=required,
            default=None if required else parameter.default,
            choices=choices,
        )
    return knobs


def _check_knobs(name: str, known: Mapping[str, KnobInfo], given: Mapping[str, Any]) -> None:
    for knob in given:
        if knob not in known:
            raise ValueError(f"{name}: unknown knob {knob!r}; {_nearest(knob, known)}.")
    missing = [knob for knob, info in known.items() if info.required and knob not in given]
    if missing:
        raise ValueError(f"{name}: missing {', '.join(missing)}; its knobs: {', '.join(known)}.")
    for knob, value in given.items():
        _check_value(name, knob, known[knob], value)


def _check_value(name: str, knob: str, info: KnobInfo, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        float: number and value == value and abs(value) != float("inf"),
        int: number and value == int(value),
        bool: isinstance(value, bool),
        str: value in info.choices,
    }[info.type]
    if not fits:
        rule = f"one of {', '.join(info.choices)}" if info.choices else f"a {info.type.__name__}"
        raise ValueError(f"{name}: `{knob}` must be {rule}, but got {value!r}.")


def _nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name, with all that is known."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(known)}"
