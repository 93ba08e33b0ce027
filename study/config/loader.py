"""Loader of study files: strict YAML, overrides, and one-line errors.

Study files are plain YAML and are never executed. An unknown key is an error that names the nearest
known one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from study.config.ranges import ParamRange
from study.config.schema import LossSection, StudyConfig
from study.errors import StudyError, suggest_nearest_name

PATH_KEYS = (("data", ("path", "labels")), ("backbone", ("pretrained",)))
"""Keys of a study file whose values may be paths, by section."""


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> StudyConfig:
    """Read a study file, apply overrides and validate it.

    Args:
        path: YAML file.
        overrides: Strings of the form `a.b=c`, where c is YAML.

    Raises:
        StudyError: The first problem in one line: place, rule, value, nearest known name.
    """
    path = Path(path)
    content = _read_content(path, overrides)
    _make_paths_absolute(content, path.absolute().parent)
    return parse_config(content, where=str(path))


def merged_yaml(path: Path, overrides: Sequence[str] = ()) -> str:
    """Return a study file with its overrides as one YAML text, to send it to a cluster.

    An override may contain a password, which must not appear on a command line. Paths are not
    changed.
    """
    return yaml.dump(_read_content(path, overrides), Dumper=_StrictDumper, sort_keys=False)


def reject_relative_paths(path: Path, overrides: Sequence[str] = ()) -> None:
    """Reject a study file for a cluster if it contains paths relative to this machine.

    Raises:
        StudyError: If the file cannot be read, or a path is relative.
    """
    content = _read_content(path, overrides)
    for section, keys in PATH_KEYS:
        values = content.get(section)
        for key in keys:
            given = values.get(key) if isinstance(values, dict) else None
            if isinstance(given, str) and given and not given.startswith(("/", "s3://", "~")):
                raise StudyError(
                    f"{path}: `{section}.{key}` is the relative path {given!r}, which does not "
                    "exist on cluster nodes; use an absolute path that every node has, or "
                    "s3://BUCKET/PREFIX"
                )


def _read_content(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StudyError(f"study file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"cannot read {path}: {error}") from None
    try:
        content = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise StudyError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise StudyError(f"{path} is nested too deeply for a study file") from None
    if not isinstance(content, dict):
        raise StudyError(
            f"{path} is empty or not a mapping; run `study new` to create a study file"
        )
    for override in overrides:
        _apply_override(content, override)
    return content


def parse_config(content: Mapping[str, Any], *, where: str = "study file") -> StudyConfig:
    """Validate the content of a study file.

    Args:
        content: Parsed YAML.
        where: Prefix of the error message.

    Raises:
        StudyError: The first problem, in one line.
    """
    try:
        return StudyConfig.model_validate(content)
    except ValidationError as error:
        raise StudyError(f"{where}: {_format_validation_error(error)}") from None


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML loader that rejects duplicate keys and reads 1e-4 as a number."""


def _construct_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} appears twice", node.start_mark
            )
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)


class _StrictDumper(yaml.SafeDumper):
    """Counterpart of the loader: quotes strings like '1e3' that it would read as numbers."""


# YAML 1.1 reads 1e-4 (without a dot) as a string; in a study file it is a learning rate.
for _yaml_class in (_StrictLoader, _StrictDumper):
    _yaml_class.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def _apply_override(content: dict[str, Any], override: str) -> None:
    key, sign, text = override.partition("=")
    if not sign or not key.strip():
        raise StudyError(f"--set must have the form a.b=c, but got {override!r}")
    try:
        value = yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, RecursionError):
        raise StudyError(f"--set {key}: {text!r} is not valid YAML") from None
    *parents, last = key.strip().split(".")
    target = content
    for parent in parents:
        section = target.get(parent)
        if isinstance(section, list) and all(isinstance(item, str) for item in section):
            section = dict.fromkeys(section)  # a list of losses, one of which gets options
        elif isinstance(section, str) and parent in ("data", "backbone"):
            section = {"name": section}
        elif section is None:
            section = {}
        elif not isinstance(section, dict):
            raise StudyError(f"--set {key}: `{parent}` is a value, not a section")
        target[parent] = dict(section)
        target = target[parent]
    target[last] = value


def _make_paths_absolute(content: dict[str, Any], folder: Path) -> None:
    """Resolve relative paths against the study file's folder, or else the working directory.

    Trials run in other directories and need absolute paths.
    """
    for section, keys in PATH_KEYS:
        values = content.get(section)
        if not isinstance(values, dict):
            continue
        for key in keys:
            given = values.get(key)
            if isinstance(given, str) and given and not given.startswith(("/", "s3://", "~")):
                beside_file = folder / given
                values[key] = str(beside_file if beside_file.exists() else Path(given).absolute())
            elif isinstance(given, str) and given.startswith("~"):
                values[key] = str(Path(given).expanduser())


def _format_validation_error(error: ValidationError) -> str:
    """Return the first problem as `place: rule`, with the nearest key for an unknown one."""
    problems = error.errors()
    problem = problems[0]
    location = problem["loc"]
    if location[0] == "training" and len(location) > 2:  # drop the tag of a value or range
        location = (*location[:2], *location[3:])
    path = ".".join(str(part) for part in location)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if problem["type"] == "extra_forbidden":
        known = _known_keys(problem["loc"][:-1])
        return f"unknown key `{path}`; {suggest_nearest_name(str(problem['loc'][-1]), known)}{more}"
    if problem["type"] == "missing":
        return f"`{path}` is missing{more}"
    message = problem["msg"].removeprefix("Value error, ")
    value = (
        "" if problem["type"] == "value_error" else f", but got {_shorten_repr(problem['input'])}"
    )
    return f"`{path}`: {message[0].lower()}{message[1:]}{value}{more}"


def _known_keys(location: Sequence[int | str]) -> list[str]:
    """Return the keys that are allowed at a location of the study file."""
    if location and location[0] == "losses":
        model: Any = ParamRange if len(location) > 2 else LossSection
    elif location and location[0] == "training":
        model = ParamRange
    else:
        model = StudyConfig
        for part in location:
            model = model.model_fields[str(part)].annotation
    return list(model.model_fields)


def _shorten_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
