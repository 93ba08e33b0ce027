"""How is a searched space described in a file, for trials that were run elsewhere?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces.claims import Claim, claim_from_dict
from search_spaces.space import Knob, Published, Space
from study.errors import StudyError, nearest
from study.importing.rows import as_number, as_value, first_line, mapping, plain_choices
from study.table import TrialTable

_SPACE_KEYS = ("objective", "epochs", "dataset", "backbone", "tolerance", "untrained", "losses")
_LOSS_KEYS = ("paper", "knobs", "nuisance", "fixed", "published", "claims")
_KNOB_KEYS = ("low", "high", "log", "step", "integer", "choices", "symbol", "latex", "unit")

EXAMPLE = """\
objective: map_at_r      # higher is better
epochs: 40               # of a full trial; the longest one's when absent
dataset: cub             # optional, as are backbone, tolerance and untrained
untrained: 0.21          # the objective without training
losses:
  my_loss:
    knobs:               # what was searched, each on the scale it was searched on
      lr: {low: 1.0e-6, high: 1.0e-2, log: true, symbol: η}
      batch_size: {low: 32, high: 256, step: 32, integer: true}
      pooling: {choices: [avg, max]}
    nuisance: [batch_size]                                  # optional
    published: {lr: 1.0e-4, batch_size: 64, pooling: avg}   # optional
    claims:                                                 # optional: what a paper says
    - {name: lr-good, statement: 1e-4 is a good learning rate, source: a paper,
       test: {kind: GoodValue, knob: lr, value: 1.0e-4}}
"""
"""A space file; `study import --columns` prints it."""


def read_spaces(path: Path) -> tuple[dict[str, Space], dict[str, Any], float | None]:
    """Spaces, protocol and the untrained backbone's score from a space file like `EXAMPLE`."""
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StudyError(f"{path} is no readable YAML: {first_line(error)}") from None
    content = mapping(content, str(path), _SPACE_KEYS)
    losses = content.get("losses")
    if not isinstance(losses, dict) or not losses:
        raise StudyError(f"{path}: `losses` must name at least one loss")
    spaces = {str(k): _space(str(k), v, path) for k, v in losses.items()}
    epochs = content.get("epochs")
    if epochs is not None and (type(epochs) is not int or epochs < 1):
        raise StudyError(f"{path}: `epochs` must be a whole number of at least 1, got {epochs!r}")
    protocol: dict[str, Any] = {
        k: content[k] for k in ("dataset", "backbone", "tolerance") if k in content
    }
    if "tolerance" in protocol and not as_number(protocol["tolerance"]) > 0:
        raise StudyError(
            f"{path}: `tolerance` must be a number above 0, got {protocol['tolerance']!r}"
        )
    protocol["objective"] = str(content.get("objective", "score"))
    if epochs is not None:
        protocol["epochs"] = epochs
    untrained = content.get("untrained")
    if untrained is not None and not math.isfinite(as_number(untrained)):
        raise StudyError(f"{path}: `untrained` must be a number, got {untrained!r}")
    return spaces, protocol, None if untrained is None else float(untrained)


@dataclass(frozen=True)
class Described:
    """One loss of a space file, and what the file says about all of them."""

    space: Space
    protocol: Mapping[str, Any]
    untrained: float | None

    def told(self, table: TrialTable) -> TrialTable:
        """A log's table with what only the file knows; epochs and objective are the log's own."""
        known = {k: v for k, v in self.protocol.items() if k not in ("objective", "epochs")}
        baseline = table.baseline
        if self.untrained is not None:
            baseline = {"validation": {str(table.protocol["objective"]): self.untrained}}
        return replace(table, protocol={**table.protocol, **known}, baseline=baseline)


def pick_space(path: Path, loss: str | None) -> Described:
    """The loss of a space file that a log without losses is about.

    Raises:
        StudyError: The file has several and none, or an unknown one, is named.
    """
    spaces, protocol, untrained = read_spaces(path)
    if loss is None and len(spaces) > 1:
        raise StudyError(
            f"{path} has {len(spaces)} losses: say which one was run with --loss "
            f"({', '.join(spaces)})"
        )
    if loss is not None and loss not in spaces:
        raise StudyError(f"{path} has no loss {loss!r}; {nearest(loss, spaces)}")
    return Described(spaces[loss or next(iter(spaces))], protocol, untrained)


def _space(loss: str, content: Any, path: Path) -> Space:
    content = mapping(content, f"{path}: {loss}", _LOSS_KEYS)
    described = content.get("knobs")
    if not isinstance(described, dict) or not described:
        raise StudyError(f"{path}: {loss} needs `knobs`")
    knobs = {str(k): _knob(loss, str(k), v, path) for k, v in described.items()}
    for key in ("nuisance", "claims"):
        if not isinstance(content.get(key) or [], list):
            raise StudyError(f"{path}: {loss}: `{key}` must be a list, got {content[key]!r:.60}")
    nuisance = [str(k) for k in content.get("nuisance") or []]
    for name in nuisance:
        if name not in knobs:
            raise StudyError(f"{path}: {loss}: no knob {name!r}; {nearest(name, knobs)}")
    published = content.get("published")
    if isinstance(published, dict):
        published = dict(zip(published, plain_choices(published.values()), strict=True))
        # YAML takes 1e-4 for text.
        published |= {
            k: as_value(knobs[k].distribution, v)
            for k, v in published.items()
            if k in knobs and isinstance(v, str)
        }
    try:
        return Space(
            loss=loss,
            paper=str(content.get("paper", "imported trials")),
            scientific={k: v for k, v in knobs.items() if k not in nuisance},
            nuisance={k: v for k, v in knobs.items() if k in nuisance},
            fixed=dict(content.get("fixed") or {}),
            published=(Published("space file", published),) if published else (),
            claims=tuple(_claim(c, loss, knobs) for c in content.get("claims") or []),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StudyError(f"{path}: {first_line(error)}") from None


def _claim(content: Any, loss: str, knobs: Mapping[str, Knob]) -> Claim:
    try:
        test = dict(content["test"])
        knob = knobs.get(test.get("knob", ""))
        typed = {k: _field(k, v, loss, knob) for k, v in test.items()}
        return claim_from_dict({**content, "test": typed})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"claim {content!r:.60} needs name, statement, source and a test with its kind "
            f"({type(error).__name__}: {first_line(error)})"
        ) from None


def _field(name: str, value: Any, loss: str, knob: Knob | None) -> Any:
    """One field of a claim's test as its own type; YAML takes 1e-4 for text.

    Raises:
        ValueError: It is none of that type.
    """
    if name in ("low", "high", "at_most"):
        return None if value is None and name != "at_most" else _finite(name, value)
    if name in ("better", "worse") and isinstance(value, list):
        ends = [_finite(name, end) for end in value]
        if len(ends) != 2 or ends[0] > ends[1]:
            raise ValueError(f"`{name}` must be a value or a range [low, high], got {value!r}")
        return ends
    if name in ("value", "better", "worse"):
        if knob is None:
            return value
        if not isinstance(knob.distribution, CategoricalDistribution):
            _finite(name, value)
        return as_value(knob.distribution, value)
    if not isinstance(value, str):
        raise ValueError(f"`{name}` must be a word, got {value!r}")
    if name == "other" and (value == loss or (value == "HOST" and "+" not in loss)):
        raise ValueError(f"`other: {value}` would compare {loss} with itself")
    return value


def _finite(name: str, value: Any) -> float:
    number = math.nan if isinstance(value, bool) else as_number(value)
    if not math.isfinite(number):
        raise ValueError(f"`{name}` must be a number, got {value!r}")
    return number


def _knob(loss: str, name: str, content: Any, path: Path) -> Knob:
    content = mapping(content, f"{path}: {loss}.{name}", _KNOB_KEYS)
    where = f"{path}: {loss}.{name}"
    try:
        if "choices" in content:
            distribution: BaseDistribution = CategoricalDistribution(
                plain_choices(content["choices"])
            )
        elif content.get("integer"):
            distribution = IntDistribution(
                int(content["low"]), int(content["high"]), log=bool(content.get("log", False)),
                step=int(content.get("step", 1)),
            )  # fmt: skip
        else:
            distribution = FloatDistribution(
                float(content["low"]), float(content["high"]), log=bool(content.get("log", False)),
                step=content.get("step"),
            )  # fmt: skip
    except KeyError as error:
        raise StudyError(f"{where} needs {error.args[0]!r} (or `choices`)") from None
    except (ValueError, TypeError) as error:
        raise StudyError(f"{where}: {first_line(error)}") from None
    texts = {k: str(content[k]) for k in ("latex", "unit") if k in content}
    return Knob(distribution, str(content.get("symbol", name)), "space file", **texts)
