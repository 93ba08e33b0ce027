"""JSON schemas of report.json, built from the columns of the report's tables.

`report.schema.json` and `comparison.schema.json` are checked in for other programs. After a change
of a table, `make schema` (or `python -m study.report.schema`) writes them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from study.analyses.claims.settling_trials import POINT_COLUMNS
from study.analyses.claims.verdict import VerdictBasis, VerdictLabel
from study.analyses.diagnostics import DIAGNOSTIC_COLUMNS
from study.analyses.divergence import DIVERGENCE_COLUMNS
from study.analyses.early_stopping import EARLY_STOPPING_COLUMNS
from study.analyses.epoch_selection_bias import EPOCH_SELECTION_BIAS_COLUMNS
from study.analyses.response_curves import CurveRegion
from study.analyses.surrogate.cross_validation import SurrogateKind
from study.report.json_export import REPORT_FORMAT_VERSION

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_INTEGER: Schema = {"type": "integer"}
_OBJECT: Schema = {"type": "object"}
_NUMBER: Schema = {"type": ["number", "null"]}
_PROBABILITY: Schema = {**_NUMBER, "minimum": 0, "maximum": 1}
_PARAM_VALUE: Schema = {"type": ["number", "string", "boolean", "null"]}

_COLUMN_TYPES: dict[str, Schema] = {
    name: schema
    for schema, names in (
        (
            _TEXT,
            "loss other knob study trial origin anchor swept claim statement source test evidence "
            "settle rule message why values what",
        ),
        (_FLAG, "supported best_kept best_foretold"),
        (_INTEGER, "seeds seed trials diverged collapsed epoch n step common freedom"),
        (
            _PROBABILITY,
            "p p_holm probability unit other_unit coverage rate rate_low rate_high chance",
        ),
        (_PARAM_VALUE, "value other_value to"),
    )
    for name in names.split()
}
"""Types of columns by name; a table may override them, and all other columns are numbers."""


def build_report_schema() -> Schema:
    """Return the JSON schema of the report.json of one study."""
    best = _object(
        {
            "split": _enum("test", "validation"),
            "losses": _table("loss score low high probability"),
        }
    )
    properties = {
        "format": {"const": REPORT_FORMAT_VERSION},
        "study": _TEXT,
        "protocol": _OBJECT,
        "baseline": {
            **_OBJECT,
            "additionalProperties": {**_OBJECT, "additionalProperties": _NUMBER},
        },
        "answer": _object({"headline": _TEXT, "points": _array(_tuple(_TEXT, 2))}),
        "leaderboard": _table("loss best", is_open=True),
        "confirmed": _table(
            "loss point seeds mean low high sigma", point=_enum("tuned", "published", "")
        ),
        "inflation": _table(EPOCH_SELECTION_BIAS_COLUMNS),
        "paired": _table(
            "loss other difference low high p p_holm test verdict",
            verdict=_enum("better", "worse", "cannot tell"),
        ),
        "probability_best": best,
        "noise_floor": _table("loss other validation test", test=_NUMBER),
        "cost": _table("loss seconds_per_epoch low high ratio trials"),
        "claims": _table(
            "loss claim statement source test verdict probability basis evidence settle",
            verdict=_enum(*get_args(VerdictLabel)),
            basis=_enum(*get_args(VerdictBasis)),
        ),
        "next_trials": _table(
            [*POINT_COLUMNS, "worth"], is_open=True, origin=_enum("sobol", "bayes", "repeat")
        ),
        "warnings": _table(DIAGNOSTIC_COLUMNS),
        "history": _table("loss trial origin spent score best"),
        "losses": {**_OBJECT, "additionalProperties": {"$ref": "#/$defs/loss"}},
    }
    return {
        "$schema": _DIALECT,
        "$id": f"urn:dml-study:report:{REPORT_FORMAT_VERSION}",
        "title": "Numbers of a study report",
        "description": "Content of report.json. A number that is unknown or infinite is null; an "
        "analysis that was refused is an object with the reason in `refused`.",
        **_object(properties),
        "$defs": {
            "refused": _object({"refused": _TEXT}),
            "shares": _or_refused(
                _table("knob first first_low first_high total total_low total_high")
            ),
            "loss": _loss_schema(),
        },
    }


def _loss_schema() -> Schema:
    """Return the schema of one entry of `losses`."""
    surface = _table("knob other unit other_unit value other_value mean low high supported")
    sweep_model = {"swept": _TEXT, "anchor": _TEXT, "curve": _table("value mean low high")}
    tuning = {
        "gain": _row("mean low high"),
        "tunability": _table("knob published to gain low high", published=_PARAM_VALUE),
        "leave": _table(
            "knob risk low high probability verdict",
            verdict=_enum("may stay", "set it", "cannot tell"),
        ),
        "path": _table("step knob to score gain low high"),
    }
    return _object(
        {
            "space": _OBJECT,
            "seed_noise": _row("sigma low high freedom source"),
            "tolerance": _row("value source", value=_NUMBER),
            "model": _or_refused(_model_schema()),
            "importance": {"$ref": "#/$defs/shares"},
            "importance_above_median": {"$ref": "#/$defs/shares"},
            "pairs": _or_refused(_table("knob other share low high")),
            "curves": _or_refused(
                _table(
                    "region knob unit value mean low high supported probability status",
                    region=_enum(*get_args(CurveRegion)),
                    status=_enum("safe", "costly", "undetermined", "no data"),
                )
            ),
            "stable": _or_refused(_stable_range_schema()),
            "sweeps": _table("swept anchor value mean low high seeds diverged"),
            "divergence": _table(DIVERGENCE_COLUMNS, low=_PARAM_VALUE, high=_PARAM_VALUE),
            "collapsed": _table("trial score", is_open=True),
            "expected_best": _table("n expected median low high"),
            "stopping": _table(
                EARLY_STOPPING_COLUMNS, verdict=_enum("safe", "unsafe", "cannot tell")
            ),
            "surfaces": _array(surface),
            "tuning": _or_refused(_object(tuning)),
            "sweep_models": _array(_object(sweep_model)),
        }
    )


def _model_schema() -> Schema:
    kind = _enum(*get_args(SurrogateKind))
    cv_result = _row(
        "kind r2 coverage log_density stretch error spread",
        kind=kind,
        spread=_array(_tuple(_NUMBER, 2)),
    )
    jump = {**_row("knob low high"), "type": ["object", "null"]}
    return _object({"kind": kind, "noise": _NUMBER, "quality": _array(cv_result), "jump": jump})


def _stable_range_schema() -> Schema:
    return _table(
        "knob status best low high values share decades outer_low outer_high cost tolerance",
        status=_enum("stable", "undetermined", "no data"),
        best=_PARAM_VALUE,
        low=_PARAM_VALUE,
        high=_PARAM_VALUE,
        share=_PROBABILITY,
        outer_low=_PARAM_VALUE,
        outer_high=_PARAM_VALUE,
    )


def build_comparison_schema() -> Schema:
    """Return the JSON schema of the report.json of a comparison of studies."""
    properties = {
        "format": {"const": 1},
        "studies": {**_array(_TEXT), "minItems": 2, "uniqueItems": True},
        "headline": _TEXT,
        "ranges": _table(
            "loss knob study status low high values best share",
            status=_enum("stable", "undetermined", "no data"),
            best=_PARAM_VALUE,
            share=_PROBABILITY,
        ),
        "common": _table(
            "loss knob studies verdict low high values",
            studies={**_INTEGER, "minimum": 2},
            verdict=_enum("holds in all", "no common range", "cannot tell"),
        ),
        "agreement": _table(
            "study other what common tau",
            common={**_INTEGER, "minimum": 0},
            tau={**_NUMBER, "minimum": -1, "maximum": 1},
        ),
        # One column per study besides `loss`.
        "scores": _array({**_row("loss"), "additionalProperties": _NUMBER}),
    }
    return {
        "$schema": _DIALECT,
        "$id": "urn:dml-study:comparison:1",
        "title": "Numbers of a comparison of studies",
        "description": "Content of report.json of `study report A B`. An unknown number is null.",
        **_object(properties),
    }


def _row(columns: str | Iterable[str], *, is_open: bool = False, **overrides: Schema) -> Schema:
    """Return the schema of an object with these columns; `is_open` allows further ones."""
    names = columns.split() if isinstance(columns, str) else list(columns)
    types = {name: overrides.get(name, _COLUMN_TYPES.get(name, _NUMBER)) for name in names}
    schema = _object(types)
    if is_open:
        del schema["additionalProperties"]
    return schema


def _table(columns: str | Iterable[str], *, is_open: bool = False, **overrides: Schema) -> Schema:
    """Return the schema of a data frame: an array of rows with these columns."""
    return _array(_row(columns, is_open=is_open, **overrides))


def _object(properties: Mapping[str, Schema]) -> Schema:
    """Return the schema of an object with all of these properties and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _tuple(items: Schema, length: int) -> Schema:
    return {**_array(items), "minItems": length, "maxItems": length}


def _enum(*values: str) -> Schema:
    return {"enum": list(values)}


def _or_refused(schema: Schema) -> Schema:
    return {"oneOf": [schema, {"$ref": "#/$defs/refused"}]}


def write_schemas(folder: Path) -> None:
    """Write report.schema.json and comparison.schema.json into a folder."""
    for name, schema in (
        ("report", build_report_schema()),
        ("comparison", build_comparison_schema()),
    ):
        text = json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
        (folder / f"{name}.schema.json").write_text(text, "utf-8")


if __name__ == "__main__":
    write_schemas(Path(__file__).parent)
