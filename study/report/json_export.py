"""JSON export of a report: every number, laid out as `report.schema.json` describes.

`study.report.schema` generates the schema.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from study.analyses.findings import LossFindings, StudyFindings
from study.analyses.surrogate.surrogate import Refusal, SurrogateModel
from study.report.summary import ReportSummary

REPORT_FORMAT_VERSION = 1
"""Incremented whenever a reader of older files would misread newer ones."""


def findings_to_json(findings: StudyFindings, summary: ReportSummary) -> dict[str, Any]:
    """Return the content of report.json; NaN and infinity become null."""
    table = findings.table
    return {
        "format": REPORT_FORMAT_VERSION,
        "study": table.study,
        "protocol": to_json_value(dict(table.protocol)),
        "baseline": to_json_value({k: dict(v) for k, v in table.baseline.items()}),
        "answer": {"headline": summary.headline, "points": [list(p) for p in summary.points]},
        "leaderboard": frame_to_json(findings.leaderboard),
        "confirmed": frame_to_json(findings.confirmed_scores),
        "inflation": frame_to_json(findings.epoch_selection_bias),
        "paired": frame_to_json(findings.pairwise_tests),
        "probability_best": {
            "split": findings.best_split,
            "losses": frame_to_json(findings.best_probabilities),
        },
        "noise_floor": frame_to_json(findings.noise_floor),
        "cost": frame_to_json(findings.epoch_cost),
        "claims": frame_to_json(findings.claims),
        "next_trials": frame_to_json(findings.suggested_trials),
        "warnings": frame_to_json(findings.diagnostics),
        "history": frame_to_json(findings.optimization_history),
        "losses": {loss: _loss_to_json(found, findings) for loss, found in findings.losses.items()},
    }


def frame_to_json(frame: pd.DataFrame | Refusal) -> list[dict[str, Any]] | dict[str, str]:
    """Return a frame as a list of objects, one per row; a refusal as its reason."""
    if isinstance(frame, Refusal):
        return {"refused": frame.reason}
    return [{str(k): to_json_value(v) for k, v in row.items()} for row in frame.to_dict("records")]


def to_json_value(value: Any) -> Any:
    """Convert NumPy and pandas values to JSON types; missing and infinite numbers become None."""
    if isinstance(value, dict):
        return {str(k): to_json_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(v) for v in value]
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


def _model_to_json(model: SurrogateModel | Refusal) -> dict[str, Any]:
    if isinstance(model, Refusal):
        return {"refused": model.reason}
    jump = model.jump_location
    return {
        "kind": model.kind,
        "noise": to_json_value(model.noise_sd),
        "jump": None
        if jump is None
        else dict(zip(("knob", "low", "high"), map(to_json_value, jump), strict=True)),
        "quality": [
            {
                "kind": q.kind,
                "r2": to_json_value(q.r2),
                "coverage": to_json_value(q.coverage),
                "log_density": to_json_value(q.log_density),
                "stretch": to_json_value(q.dispersion),
                "error": to_json_value(q.rmse),
                "spread": to_json_value(q.calibration_curve),
            }
            for q in model.cv_results
        ],
    }


def _loss_to_json(found: LossFindings, findings: StudyFindings) -> dict[str, Any]:
    tuned, noise = found.tuning, found.seed_noise
    out: dict[str, Any] = {
        "space": to_json_value(findings.table.spaces[found.loss].to_dict()),
        "seed_noise": to_json_value(
            {
                "sigma": noise.sigma,
                "low": noise.low,
                "high": noise.high,
                "freedom": noise.degrees_of_freedom,
                "source": noise.source,
            }
        ),
        "tolerance": to_json_value(
            {"value": found.tolerance.value, "source": found.tolerance.source}
        ),
        "model": _model_to_json(found.surrogate),
        "importance": frame_to_json(found.importance),
        "importance_above_median": frame_to_json(found.good_importance),
        "pairs": frame_to_json(found.interactions),
        "curves": frame_to_json(found.response_curves),
        "stable": frame_to_json(found.stable_ranges),
        "sweeps": frame_to_json(found.sweeps),
        "sweep_models": [
            {"swept": swept, "anchor": anchor, "curve": frame_to_json(curve)}
            for (swept, anchor), curve in found.sweep_predictions.items()
        ],
        "divergence": frame_to_json(found.divergence),
        "collapsed": frame_to_json(found.collapsed_trials),
        "expected_best": frame_to_json(found.expected_best),
        "stopping": frame_to_json(found.early_stopping),
        "surfaces": [frame_to_json(s) for s in found.surfaces],
    }
    if isinstance(tuned, Refusal):
        out["tuning"] = {"refused": tuned.reason}
    else:
        gain = dict(zip(("mean", "low", "high"), map(to_json_value, tuned.gain), strict=True))
        out["tuning"] = {
            "gain": gain,
            "tunability": frame_to_json(tuned.tunability),
            "leave": frame_to_json(tuned.leave),
            "path": frame_to_json(tuned.path),
        }
    return out
