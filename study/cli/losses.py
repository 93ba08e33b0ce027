"""`study losses`: what can be studied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from study.commands.options import json_option, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from search_spaces.space import Knob, Space
    from trainables.losses.knobs import KnobInfo


@click.command(help="List the losses with their knobs, ranges, published points and papers.")
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """All losses in short, or one in full."""
    from search_spaces import SPACES

    content = [_whole(name)] if name else [_describe(space) for space in SPACES.values()]
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


def _whole(name: str) -> dict[str, Any]:
    """All there is to say of one loss.

    Raises:
        StudyError: No such loss.
    """
    from study.errors import StudyError
    from study.planning import ready_made

    try:
        space, own = ready_made(name)
    except ValueError as error:
        raise StudyError(str(error)) from None
    return {**_describe(space), "optional": _optional(space, own), "spaces": _others(name)}


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


def _optional(space: Space, own: Mapping[str, KnobInfo]) -> dict[str, Any]:
    """Knobs of the loss that stay at their defaults unless a study searches them.

    The range is None where none is known: a study that searches the knob says its own.
    """
    from search_spaces import extra_knob

    found: dict[str, Any] = {}
    for name in own:
        if name in space.searched:
            continue
        knob = extra_knob(space.loss, name)
        known = _describe_knob(knob) if knob else {"symbol": "", "range": None}
        found[name] = {"default": own[name].default, "required": own[name].required, **known}
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
            default = "required" if knob["required"] else f"default {_show(knob['default'])}"
            if knob["range"] is None:
                click.echo(f"  {knob['symbol']:<11} {name:<18} {default}, your range")
                continue
            click.echo(f"  {knob['symbol']:<11} {name:<18} {knob['range']:<24} optional, {default}")
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
