"""`study losses`: what can be studied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from study.commands.options import json_option, print_json

if TYPE_CHECKING:
    from search_spaces.space import Space


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
    if as_json:
        content = [_describe(space) for space in spaces]
        print_json(content[0] if name else content)
        return
    for space in spaces:
        _print(space, full=bool(name))
    if not name:
        click.echo("\nHOST+synthesis adds Proxy Synthesis to any loss with proxies.")
        click.echo("`study losses NAME` says why each range was chosen and what the paper claims.")


def _describe(space: Space) -> dict[str, Any]:
    from search_spaces.space import describe

    return {
        "loss": space.loss,
        "paper": space.paper,
        "version": space.version,
        "knobs": {
            name: {
                "symbol": knob.symbol,
                "role": space.role(name),
                "range": describe(knob.distribution),
                "unit": knob.unit,
                "reason": knob.reason,
            }
            for name, knob in space.searched.items()
        },
        "fixed": dict(space.fixed),
        "published": [
            {"source": p.source, "values": dict(p.values), "note": p.note} for p in space.published
        ],
        "claims": [{"name": c.name, "statement": c.statement} for c in space.claims],
    }


def _print(space: Space, *, full: bool) -> None:
    content = _describe(space)
    click.echo(f"\n{content['loss']}  ({content['paper']})")
    for name, knob in content["knobs"].items():
        at = ", ".join(_show(p["values"][name]) for p in content["published"])
        tail = f"  published {at}" if at else ""
        click.echo(f"  {knob['symbol']:<11} {name:<18} {knob['range']:<24} {knob['role']}{tail}")
        if full:
            click.echo(f"      {knob['reason']}")
    if full:
        for point in content["published"]:
            click.echo(
                f"  published: {point['source']}" + (f" ({point['note']})" if point["note"] else "")
            )
        for claim in content["claims"]:
            click.echo(f"  claim {claim['name']}: {claim['statement']}")


def _show(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
