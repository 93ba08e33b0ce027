"""Reading a study file: strict YAML, overrides, and errors of one line.

Plain YAML, never executed; unknown keys are errors that name the nearest known one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from study.errors import StudyError, nearest
from study.file import LossSection, StudyFile
from study.ranges import Range

PATHS = (("data", ("path", "labels")), ("backbone", ("pretrained",)))
"""Keys of a study file that may be paths."""


def read_study_file(path: Path, overrides: Sequence[str] = ()) -> StudyFile:
    """Read, override and check a study file.

    Args:
        path: YAML file.
        overrides: `a.b=c` strings; c is read as YAML.

    Raises:
        StudyError: One line: where, rule, value, nearest known name.
    """
    content = _read(path, overrides)
    _make_absolute(content, path.absolute().parent)
    return parse_study(content, where=str(path))


def merged_text(path: Path, overrides: Sequence[str] = ()) -> str:
    """A study file with its overrides as one text: what is sent to a cluster.

    An override may hold a password, which has no place on a command line. Paths stay as written.
    """
    return yaml.dump(_read(path, overrides), Dumper=_StrictDumper, sort_keys=False)


def refuse_relative_paths(path: Path, overrides: Sequence[str] = ()) -> None:
    """Raise when a study file that goes to a cluster names a path only this machine knows.

    Raises:
        StudyError: The file cannot be read, or a path is relative.
    """
    content = _read(path, overrides)
    for section, keys in PATHS:
        values = content.get(section)
        for key in keys:
            given = values.get(key) if isinstance(values, dict) else None
            if isinstance(given, str) and given and not given.startswith(("/", "s3://", "~")):
                raise StudyError(
                    f"{path}: `{section}.{key}` is {given!r}, but nodes of a cluster do not know "
                    "this folder: name a path that every node has, or s3://BUCKET/PREFIX"
                )


def _read(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StudyError(f"no study file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"cannot read {path}: {error}") from None
    try:
        content = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise StudyError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise StudyError(f"{path} is nested too deeply to be a study file") from None
    if not isinstance(content, dict):
        raise StudyError(f"{path} is empty or not a mapping; `study new` writes one to start from")
    for override in overrides:
        _apply(content, override)
    return content


def parse_study(content: Mapping[str, Any], *, where: str = "study file") -> StudyFile:
    """Check the content of a study file."""
    try:
        return StudyFile.model_validate(content)
    except ValidationError as error:
        raise StudyError(f"{where}: {_one_line(error)}") from None


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML in which a key may not appear twice and 1e-4 is a number."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} appears twice", node.start_mark
            )
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


class _StrictDumper(yaml.SafeDumper):
    """Writes what the loader reads: a name like '1e3' gets its quotes."""


# YAML 1.1 reads 1e-4 (no dot) as a string, which nobody who writes a learning rate means.
for _side in (_StrictLoader, _StrictDumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def _apply(content: dict[str, Any], override: str) -> None:
    key, sign, text = override.partition("=")
    if not sign or not key.strip():
        raise StudyError(f"--set takes a.b=c, but got {override!r}")
    try:
        value = yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, RecursionError):
        raise StudyError(f"--set {key}: {text!r} is not a YAML value") from None
    *parents, last = key.strip().split(".")
    target = content
    for parent in parents:
        below = target.get(parent)
        if isinstance(below, list) and all(isinstance(item, str) for item in below):
            below = dict.fromkeys(below)  # a list of losses whose options are being set
        elif isinstance(below, str) and parent in ("data", "backbone"):
            below = {"name": below}
        elif below is None:
            below = {}
        elif not isinstance(below, dict):
            raise StudyError(f"--set {key}: `{parent}` is a value, not a section")
        target[parent] = dict(below)
        target = target[parent]
    target[last] = value


def _make_absolute(content: dict[str, Any], folder: Path) -> None:
    """Relative paths are meant from the study file, or else from here; trials run elsewhere."""
    for section, keys in PATHS:
        values = content.get(section)
        if not isinstance(values, dict):
            continue
        for key in keys:
            given = values.get(key)
            if isinstance(given, str) and given and not given.startswith(("/", "s3://", "~")):
                near = folder / given
                values[key] = str(near if near.exists() else Path(given).absolute())
            elif isinstance(given, str) and given.startswith("~"):
                values[key] = str(Path(given).expanduser())


def _one_line(error: ValidationError) -> str:
    """The first problem as `where: what`, with the nearest known key for an unknown one."""
    problems = error.errors()
    problem = problems[0]
    place = problem["loc"]
    if place[0] == "training" and len(place) > 2:  # drop the tag of a value or range
        place = (*place[:2], *place[3:])
    path = ".".join(str(part) for part in place)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if problem["type"] == "extra_forbidden":
        known = _known_keys(problem["loc"][:-1])
        return f"unknown key `{path}`; {nearest(str(problem['loc'][-1]), known)}{more}"
    if problem["type"] == "missing":
        return f"`{path}` is missing{more}"
    message = problem["msg"].removeprefix("Value error, ")
    shown = "" if problem["type"] == "value_error" else f", but got {_shorten(problem['input'])}"
    return f"`{path}`: {message[0].lower()}{message[1:]}{shown}{more}"


def _known_keys(location: Sequence[int | str]) -> list[str]:
    """The keys allowed at a place of the study file."""
    if location and location[0] == "losses":
        model: Any = Range if len(location) > 2 else LossSection
    elif location and location[0] == "training":
        model = Range
    else:
        model = StudyFile
        for part in location:
            model = model.model_fields[str(part)].annotation
    return list(model.model_fields)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
