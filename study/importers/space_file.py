"""Space file: what was searched in trials that were run elsewhere, as a user describes it in YAML.

A hyperparameter's range has the keys of a study file's range (`study.config.ranges`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from optuna.distributions import BaseDistribution, CategoricalDistribution
from pydantic import ValidationError

from search_spaces.claims import PaperClaim, claim_from_dict
from search_spaces.space import Hyperparameter, PublishedPoint, SearchSpace
from study.config.ranges import ParamRange
from study.errors import StudyError, suggest_nearest_name
from study.importers.values import as_number, as_value, first_error_line, replace_none_choices

_SPACE_KEYS = ("objective", "epochs", "dataset", "backbone", "tolerance", "untrained", "losses")
_LOSS_KEYS = ("paper", "knobs", "nuisance", "fixed", "published", "claims")
_TEXT_KEYS = ("symbol", "latex", "unit")

SPACE_FILE_EXAMPLE = """\
objective: map_at_r      # higher is better
epochs: 40               # of a full trial; default: those of the longest trial
dataset: cub             # optional, as are backbone, tolerance and untrained
untrained: 0.21          # the objective without training
losses:
  my_loss:
    knobs:               # searched hyperparameters, each on the scale it was searched on
      lr: {low: 1.0e-6, high: 1.0e-2, log: true, symbol: η}
      batch_size: {low: 32, high: 256, step: 32, integer: true}
      pooling: {choices: [avg, max]}
    nuisance: [batch_size]                                  # optional
    published: {lr: 1.0e-4, batch_size: 64, pooling: avg}   # optional
    claims:                                                 # optional: claims of a paper
    - {name: lr-good, statement: 1e-4 is a good learning rate, source: a paper,
       test: {kind: GoodValue, knob: lr, value: 1.0e-4}}
"""
"""A space file; `study import --columns` prints it."""


class SpaceDescription(NamedTuple):
    """Content of a space file.

    Args:
        spaces: Search space by loss.
        protocol: `objective` and, if given, `epochs`, `dataset`, `backbone` and `tolerance`.
        untrained: Score of the untrained backbone, if given.
    """

    spaces: Mapping[str, SearchSpace]
    protocol: Mapping[str, Any]
    untrained: float | None = None

    def for_log(self, *, objective: str, epochs: int) -> SpaceDescription:
        """Return the description with the objective and epochs of the log that it describes."""
        protocol = {**self.protocol, "objective": objective, "epochs": epochs}
        return self._replace(protocol=protocol)


def read_spaces(path: Path) -> SpaceDescription:
    """Read a space file such as `SPACE_FILE_EXAMPLE`.

    Raises:
        StudyError: The file cannot be read, or a key or value of it is wrong.
    """
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        raise StudyError(f"space file {path} does not exist") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StudyError(f"cannot read {path} as YAML: {first_error_line(error)}") from None
    content = _check_mapping(content, str(path), _SPACE_KEYS)
    losses = content.get("losses")
    if not isinstance(losses, dict) or not losses:
        raise StudyError(f"{path}: `losses` must name at least one loss")
    spaces = {str(k): _parse_space(str(k), v, path) for k, v in losses.items()}
    protocol: dict[str, Any] = {
        k: content[k] for k in ("dataset", "backbone", "tolerance") if k in content
    }
    if "tolerance" in protocol and not as_number(protocol["tolerance"]) > 0:
        raise StudyError(
            f"{path}: `tolerance` must be a number above 0, got {protocol['tolerance']!r}"
        )
    protocol["objective"] = str(content.get("objective", "score"))
    epochs = content.get("epochs")
    if epochs is not None:
        if type(epochs) is not int or epochs < 1:
            raise StudyError(f"{path}: `epochs` must be a whole number above 0, got {epochs!r}")
        protocol["epochs"] = epochs
    untrained = content.get("untrained")
    if untrained is not None and not math.isfinite(as_number(untrained)):
        raise StudyError(f"{path}: `untrained` must be a number, got {untrained!r}")
    return SpaceDescription(spaces, protocol, None if untrained is None else float(untrained))


def pick_space(path: Path, loss: str | None) -> SpaceDescription:
    """Read a space file and keep one loss: the one that a log, which has no losses, is about.

    Args:
        path: Space file.
        loss: Name of the loss; None if the file has only one.

    Raises:
        StudyError: The file has several losses and `loss` is None, or it does not have `loss`.
    """
    description = read_spaces(path)
    spaces = description.spaces
    if loss is None and len(spaces) > 1:
        raise StudyError(
            f"{path} has {len(spaces)} losses; choose one with --loss ({', '.join(spaces)})"
        )
    if loss is not None and loss not in spaces:
        raise StudyError(f"{path} has no loss {loss!r}; {suggest_nearest_name(loss, spaces)}")
    loss = loss or next(iter(spaces))
    return description._replace(spaces={loss: spaces[loss]})


def _check_mapping(content: Any, where: str, known: Iterable[str]) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise StudyError(f"{where} must be a mapping, got {type(content).__name__}")
    for key in content:
        if key not in known:
            raise StudyError(
                f"{where}: unknown key {key!r}; {suggest_nearest_name(str(key), known)}"
            )
    return {str(k): v for k, v in content.items()}


def _parse_space(loss: str, content: Any, path: Path) -> SearchSpace:
    content = _check_mapping(content, f"{path}: {loss}", _LOSS_KEYS)
    sections = content.get("knobs")
    if not isinstance(sections, dict) or not sections:
        raise StudyError(f"{path}: {loss} needs `knobs`")
    params = {str(k): _parse_param(str(k), v, f"{path}: {loss}.{k}") for k, v in sections.items()}
    for key in ("nuisance", "claims"):
        if not isinstance(content.get(key) or [], list):
            raise StudyError(f"{path}: {loss}: `{key}` must be a list, got {content[key]!r:.60}")
    nuisance = [str(k) for k in content.get("nuisance") or []]
    for name in nuisance:
        if name not in params:
            raise StudyError(
                f"{path}: {loss}: `nuisance` names {name!r}, which is not in `knobs`; "
                f"{suggest_nearest_name(name, params)}"
            )
    published = content.get("published")
    if isinstance(published, dict):
        published = dict(zip(published, replace_none_choices(published.values()), strict=True))
        # YAML reads 1e-4 as text.
        published |= {
            k: as_value(params[k].distribution, v)
            for k, v in published.items()
            if k in params and isinstance(v, str)
        }
    try:
        return SearchSpace(
            loss=loss,
            paper=str(content.get("paper", "imported trials")),
            scientific={k: v for k, v in params.items() if k not in nuisance},
            nuisance={k: v for k, v in params.items() if k in nuisance},
            fixed=dict(content.get("fixed") or {}),
            published=(PublishedPoint("space file", published),) if published else (),
            claims=tuple(_parse_claim(c, loss, params) for c in content.get("claims") or []),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StudyError(f"{path}: {first_error_line(error)}") from None


def _parse_param(name: str, content: Any, where: str) -> Hyperparameter:
    content = _check_mapping(content, where, (*ParamRange.model_fields, *_TEXT_KEYS))
    texts = {k: str(content.pop(k)) for k in _TEXT_KEYS if k in content}
    try:
        distribution = _parse_range(name, content)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise StudyError(f"{where}: {message[0].lower()}{message[1:]}") from None
    except (StudyError, ValueError, TypeError) as error:
        raise StudyError(f"{where}: {first_error_line(error)}") from None
    return Hyperparameter(distribution, **{"symbol": name, **texts}, reason="space file")


def _parse_range(name: str, content: dict[str, Any]) -> BaseDistribution:
    if "choices" in content:
        return CategoricalDistribution(replace_none_choices(content["choices"]))
    if content.get("integer") and content.get("step") == 1:
        del content["step"]  # the default, which Optuna writes for a log range too
    return ParamRange.model_validate(content).to_distribution(name)


def _parse_claim(content: Any, loss: str, params: Mapping[str, Hyperparameter]) -> PaperClaim:
    try:
        test = dict(content["test"])
        param = params.get(test.get("knob", ""))
        typed = {k: _parse_claim_field(k, v, loss, param) for k, v in test.items()}
        return claim_from_dict({**content, "test": typed})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"claim {content!r:.60} needs name, statement, source and a test with its kind "
            f"({type(error).__name__}: {first_error_line(error)})"
        ) from None


def _parse_claim_field(name: str, value: Any, loss: str, param: Hyperparameter | None) -> Any:
    """Convert a field of a claim's test to its type; YAML reads 1e-4 as text.

    Raises:
        ValueError: The value does not have that type.
    """
    if name in ("low", "high", "at_most"):
        return None if value is None and name != "at_most" else _parse_finite_number(name, value)
    if name in ("better", "worse") and isinstance(value, list):
        ends = [_parse_finite_number(name, end) for end in value]
        if len(ends) != 2 or ends[0] > ends[1]:
            raise ValueError(f"`{name}` must be a value or a range [low, high], got {value!r}")
        return ends
    if name in ("value", "better", "worse"):
        if param is None:
            return value
        if not isinstance(param.distribution, CategoricalDistribution):
            _parse_finite_number(name, value)
        return as_value(param.distribution, value)
    if not isinstance(value, str):
        raise ValueError(f"`{name}` must be a text, got {value!r}")
    if name == "other" and (value == loss or (value == "HOST" and "+" not in loss)):
        raise ValueError(f"`other: {value}` would compare {loss} with itself")
    return value


def _parse_finite_number(name: str, value: Any) -> float:
    number = math.nan if isinstance(value, bool) else as_number(value)
    if not math.isfinite(number):
        raise ValueError(f"`{name}` must be a number, got {value!r}")
    return number
