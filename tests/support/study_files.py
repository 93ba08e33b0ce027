"""Minimal study files and the plans built from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from study.config.loader import parse_config
from study.config.plan import Plan
from study.config.planner import build_plan

MINIMAL_FILE = "name: s\ndata: glyphs\nlosses: [proxy_anchor, triplet]\n"


def write_study_file(folder: Path, text: str) -> Path:
    """Write `study.yaml` and return its path."""
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def build_minimal_plan(changes: Mapping[str, Any]) -> Plan:
    """Return the plan of a minimal study file with sections replaced by `changes`."""
    content = {"name": "s", "data": "glyphs", "losses": ["proxy_anchor", "triplet"]}
    return build_plan(parse_config({**content, **changes}))
