"""`study datasets`: list the data sets and the options of their readers."""

from __future__ import annotations

import click

from study.cli.options import json_option, print_json


@click.command(help="List the data sets and the options of their readers.")
@json_option
def datasets_command(as_json: bool) -> None:
    """Print names, titles, options with defaults, and published counts."""
    from trainables.data.registry import DATASETS

    content = [
        {
            "name": name,
            "title": info.title,
            "options": {
                key: {"default": option.default, "required": option.required, "doc": option.doc}
                for key, option in info.options.items()
            },
            "published_counts": dict(info.counts),
        }
        for name, info in DATASETS.items()
    ]
    if as_json:
        print_json(content)
        return
    for item in content:
        click.echo(f"\n{item['name']}: {item['title']}")
        for key, option in item["options"].items():  # type: ignore[attr-defined]
            default = "required" if option["required"] else f"default {option['default']}"
            click.echo(f"  {key:<16} {option['doc']} ({default})")
