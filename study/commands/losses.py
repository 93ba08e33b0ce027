"""`study losses`: what can be studied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from study.commands.options import json_option, print_json

if TYPE_CHECKING:
    from search_spaces.space import Knob, Space


@click.command(help="List the losses with their knobs, ranges, published points and papers.")
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """All losses in short, or one in full."""
    from search_spaces import SPACES, get_space
    from study.errors import StudyError

    try:
        spaces = [get_space(name)] if name else [get_space(loss) for loss in SPACES]
    except ValueError as error:
        raise StudyError(str(error)) from None
    content = [_describe(space) for space in spaces]
    if name:
        content[0]["optional"] = _optional(spaces[0])
        content[0]["spaces"] = _others(name)
    if as_json:
        print_json(content[0] if name else content)
        return
    for description in content:
        _print(description, full=bool(name))
    if not name:
        click.echo("\nHOST+synthesis adds Proxy Synthesis to any loss with proxies.")
        click.echo("pml:CLASS is any loss of pytorch-metric-learning, with your ranges.")
        click.echo(
            "`study losses NAME` says why each range was chosen, what the paper claims, and which "
            "further knobs a study may search."
        )


def _describe(space: Space) -> dict[str, Any]:
    return {
        "loss": space.loss,
        "paper": space.paper,
        "version": space.version,
        "knobs": {
            name: {"role": space.role(name), **_describe_knob(knob)}
            for name, knob in space.searched.items()
        },
        "fixed": dict(space.fixed),
        "published": [
            {"source": p.source, "values": dict(p.values), "note": p.note} for p in space.published
        ],
        "claims": [{"name": c.name, "statement": c.statement} for c in space.claims],
    }


def _describe_knob(knob: Knob) -> dict[str, Any]:
    from search_spaces.space import describe

    return {
        "symbol": knob.symbol,
        "range": describe(knob.distribution),
        "unit": knob.unit,
        "reason": knob.reason,
    }


def _optional(space: Space) -> dict[str, Any]:
    """Knobs of the loss that stay at their defaults unless a study searches them."""
    from search_spaces import extra_knob
    from trainables.losses import loss_knobs

    found = {}
    for name, info in loss_knobs(space.loss).items():
        knob = None if name in space.searched else extra_knob(space.loss, name)
        if knob is not None:
            found[name] = {"default": info.default, **_describe_knob(knob)}
    return found


def _others(name: str) -> list[str]:
    """Other ready-made spaces of a loss: `space: NAME` in its section of a study file."""
    from search_spaces import VARIANTS

    return [variant for loss, variant in VARIANTS if loss == name.removesuffix("+synthesis")]


def _print(content: dict[str, Any], *, full: bool) -> None:
    click.echo(f"\n{content['loss']}  ({content['paper']})")
    for name, knob in content["knobs"].items():
        at = ", ".join(_show(p["values"][name]) for p in content["published"])
        tail = f"  published {at}" if at else ""
        click.echo(f"  {knob['symbol']:<11} {name:<18} {knob['range']:<24} {knob['role']}{tail}")
        if full:
            click.echo(f"      {knob['reason']}")
    if full:
        for name, knob in content["optional"].items():
            default = f"optional, default {_show(knob['default'])}"
            click.echo(f"  {knob['symbol']:<11} {name:<18} {knob['range']:<24} {default}")
            click.echo(f"      {knob['reason']}")
        for space in content["spaces"]:
            click.echo(f"  another ready-made space: `space: {space}` in a study file")
        for point in content["published"]:
            click.echo(
                f"  published: {point['source']}" + (f" ({point['note']})" if point["note"] else "")
            )
        for claim in content["claims"]:
            click.echo(f"  claim {claim['name']}: {claim['statement']}")


def _show(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
