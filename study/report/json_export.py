"""Every number of a report for machines; `report.schema.json` says what is where."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd

from study.analyses.findings import Findings, LossFindings
from study.analyses.surrogate import Refusal, Surrogate
from study.report.answer import Answer

FORMAT = 1
"""Raised whenever a reader of an older report.json would misread a newer one."""


def record(findings: Findings, said: Answer) -> dict[str, Any]:
    """Plain JSON types; NaN and infinity become null."""
    table = findings.table
    return {
        "format": FORMAT,
        "study": table.study,
        "protocol": plain(dict(table.protocol)),
        "baseline": plain({k: dict(v) for k, v in table.baseline.items()}),
        "answer": {"headline": said.headline, "points": [list(p) for p in said.points]},
        "leaderboard": rows(findings.leaderboard),
        "confirmed": rows(findings.confirmed),
        "inflation": rows(findings.inflation),
        "paired": rows(findings.paired),
        "probability_best": {"split": findings.best_split, "losses": rows(findings.best)},
        "noise_floor": rows(findings.noise_floor),
        "cost": rows(findings.cost),
        "claims": rows(findings.claims),
        "next_trials": rows(findings.advice),
        "warnings": rows(findings.lint),
        "history": rows(findings.history),
        "losses": {loss: _loss(found, findings) for loss, found in findings.losses.items()},
    }


def schema(name: str = "report") -> dict[str, Any]:
    """The JSON schema of a `report`'s or a `comparison`'s report.json."""
    text = files("study.report").joinpath(f"{name}.schema.json").read_text("utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def rows(frame: pd.DataFrame | Refusal) -> list[dict[str, Any]] | dict[str, str]:
    """A frame as a list of objects; a refusal as its reason."""
    if isinstance(frame, Refusal):
        return {"refused": frame.reason}
    return [{str(k): plain(v) for k, v in row.items()} for row in frame.to_dict("records")]


def plain(value: Any) -> Any:
    """NumPy and pandas values as JSON has them."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        number = float(value)
        return float(f"{number:.10g}") if math.isfinite(number) else None
    return None if pd.isna(value) else str(value)


def _model(model: Surrogate | Refusal) -> dict[str, Any]:
    if isinstance(model, Refusal):
        return {"refused": model.reason}
    jump = model.jump
    return {
        "kind": model.kind,
        "noise": plain(model.noise),
        "jump": None
        if jump is None
        else dict(zip(("knob", "low", "high"), map(plain, jump), strict=True)),
        "quality": [
            {
                "kind": q.kind,
                "r2": plain(q.r2),
                "coverage": plain(q.coverage),
                "log_density": plain(q.log_density),
                "stretch": plain(q.stretch),
                "error": plain(q.error),
                "spread": plain(q.spread),
            }
            for q in model.quality
        ],
    }


def _loss(found: LossFindings, findings: Findings) -> dict[str, Any]:
    tuned, noise = found.tuned, found.noise
    out: dict[str, Any] = {
        "space": plain(findings.table.spaces[found.loss].to_dict()),
        "seed_noise": plain(
            {
                "sigma": noise.sigma,
                "low": noise.low,
                "high": noise.high,
                "freedom": noise.freedom,
                "source": noise.source,
            }
        ),
        "tolerance": plain({"value": found.tolerance.value, "source": found.tolerance.source}),
        "model": _model(found.surrogate),
        "importance": rows(found.importance),
        "importance_above_median": rows(found.good_importance),
        "pairs": rows(found.pairs),
        "curves": rows(found.curves),
        "stable": rows(found.stable),
        "sweeps": rows(found.sweeps),
        "sweep_models": [
            {"swept": swept, "anchor": anchor, "curve": rows(curve)}
            for (swept, anchor), curve in found.sweep_models.items()
        ],
        "divergence": rows(found.divergence),
        "collapsed": rows(found.collapsed),
        "expected_best": rows(found.expected),
        "stopping": rows(found.stopping),
        "surfaces": [rows(s) for s in found.surfaces],
    }
    if isinstance(tuned, Refusal):
        out["tuning"] = {"refused": tuned.reason}
    else:
        gain = dict(zip(("mean", "low", "high"), map(plain, tuned.gain), strict=True))
        out["tuning"] = {
            "gain": gain,
            "tunability": rows(tuned.tunability),
            "leave": rows(tuned.leave),
            "path": rows(tuned.path),
        }
    return out
