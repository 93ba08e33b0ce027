"""`study losses`: list the losses with their hyperparameters, ranges and papers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from study.cli.options import json_option, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from search_spaces.space import Hyperparameter, SearchSpace
    from trainables.losses.base.hyperparameters import ParamInfo


@click.command(
    help="List the losses with their hyperparameters, ranges, published points and papers."
)
@click.argument("name", required=False)
@json_option
def losses_command(name: str | None, as_json: bool) -> None:
    """Print all losses briefly, or one in full."""
    from search_spaces import SPACES

    content = (
        [_describe_loss(name)] if name else [_describe_space(space) for space in SPACES.values()]
    )
    if as_json:
        print_json(content[0] if name else content)
        return
    for description in content:
        _print_loss(description, full=bool(name))
    if not name:
        click.echo("\nHOST+synthesis adds Proxy Synthesis to any loss with proxies.")
        click.echo("pml:CLASS is any loss of pytorch-metric-learning, with your ranges.")
        click.echo(
            "`study losses NAME` prints the reason for each range, the claims of the paper, and "
            "the hyperparameters that a study may search in addition."
        )


def _describe_loss(name: str) -> dict[str, Any]:
    """Return the space of a loss, its optional hyperparameters and its space variants.

    Raises:
        StudyError: The loss is unknown.
    """
    from study.config.planner import default_space
    from study.errors import StudyError

    try:
        space, own_params = default_space(name)
    except ValueError as error:
        raise StudyError(str(error)) from None
    return {
        **_describe_space(space),
        "optional": _describe_optional_params(space, own_params),
        "spaces": _list_space_variants(name),
    }


def _describe_space(space: SearchSpace) -> dict[str, Any]:
    return {
        "loss": space.loss,
        "paper": space.paper,
        "version": space.version_hash,
        "knobs": {
            name: {"role": space.param_role(name), **_describe_param(param)}
            for name, param in space.searched_params.items()
        },
        "fixed": dict(space.fixed),
        "published": [
            {"source": p.source, "values": dict(p.values), "note": p.note} for p in space.published
        ],
        "claims": [{"name": c.name, "statement": c.statement} for c in space.claims],
    }


def _describe_param(param: Hyperparameter) -> dict[str, Any]:
    from search_spaces.space import describe_distribution

    return {
        "symbol": param.symbol,
        "range": describe_distribution(param.distribution),
        "unit": param.unit,
        "reason": param.reason,
    }


def _describe_optional_params(
    space: SearchSpace, own_params: Mapping[str, ParamInfo]
) -> dict[str, Any]:
    """Return the hyperparameters of the loss that have defaults unless a study searches them.

    The range is None if no range is known; a study that searches the hyperparameter sets its own.
    """
    from search_spaces import find_optional_param

    optional: dict[str, Any] = {}
    for name, info in own_params.items():
        if name in space.searched_params:
            continue
        param = find_optional_param(space.loss, name)
        details = _describe_param(param) if param else {"symbol": "", "range": None}
        optional[name] = {"default": info.default, "required": info.required, **details}
    return optional


def _list_space_variants(name: str) -> list[str]:
    """Return other ready-made spaces of a loss: `space: NAME` in its section of a study file."""
    from search_spaces import SPACE_VARIANTS

    return [variant for loss, variant in SPACE_VARIANTS if loss == name.removesuffix("+synthesis")]


def _print_loss(content: dict[str, Any], *, full: bool) -> None:
    click.echo(f"\n{content['loss']}  ({content['paper']})")
    for name, param in content["knobs"].items():
        at = ", ".join(_format_param_value(p["values"][name]) for p in content["published"])
        tail = f"  published {at}" if at else ""
        click.echo(f"  {param['symbol']:<11} {name:<18} {param['range']:<24} {param['role']}{tail}")
        if full:
            click.echo(f"      {param['reason']}")
    if full:
        for name, param in content["optional"].items():
            default = (
                "required"
                if param["required"]
                else f"default {_format_param_value(param['default'])}"
            )
            if param["range"] is None:
                click.echo(f"  {param['symbol']:<11} {name:<18} {default}, your range")
                continue
            click.echo(
                f"  {param['symbol']:<11} {name:<18} {param['range']:<24} optional, {default}"
            )
            click.echo(f"      {param['reason']}")
        for space in content["spaces"]:
            click.echo(f"  another ready-made space: `space: {space}` in a study file")
        for point in content["published"]:
            click.echo(
                f"  published: {point['source']}" + (f" ({point['note']})" if point["note"] else "")
            )
        for claim in content["claims"]:
            click.echo(f"  claim {claim['name']}: {claim['statement']}")


def _format_param_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
