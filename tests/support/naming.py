"""Statistics of names in the source; `python -m tests.support.naming` prints them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("study", "trainables", "search_spaces")


@dataclass(frozen=True)
class NameCounts:
    """Names of the functions and classes of packages, without dunder methods."""

    functions: tuple[str, ...]
    classes: tuple[str, ...]

    @property
    def one_word_function_share(self) -> float:
        return _compute_one_word_share(self.functions)

    @property
    def one_word_class_share(self) -> float:
        return _compute_one_word_share(self.classes)


def split_words(name: str) -> list[str]:
    """Return the words of a snake_case or CamelCase name."""
    pattern = r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+[0-9]*"
    parts = [part for part in name.strip("_").split("_") if part]
    return [word for part in parts for word in (re.findall(pattern, part) or [part])]


def list_source_files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def count_names(packages: tuple[str, ...] = PACKAGES) -> NameCounts:
    functions: list[str] = []
    classes: list[str] = []
    for package in packages:
        for path in list_source_files(package):
            for node in _iterate_definitions(path):
                (classes if isinstance(node, ast.ClassDef) else functions).append(node.name)
    return NameCounts(tuple(functions), tuple(classes))


def find_repeated_class_names() -> list[str]:
    return sorted(name for name, count in Counter(count_names().classes).items() if count > 1)


def _iterate_definitions(
    path: Path,
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) or (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and not (node.name.startswith("__") and node.name.endswith("__"))
        ):
            yield node


def _compute_one_word_share(names: tuple[str, ...]) -> float:
    return sum(len(split_words(name)) == 1 for name in names) / len(names)


def main() -> None:
    for packages in (*((package,) for package in PACKAGES), PACKAGES):
        counts = count_names(packages)
        print(
            f"{' + '.join(packages)}: {counts.one_word_function_share:.1%} of "
            f"{len(counts.functions):,} functions and {counts.one_word_class_share:.1%} of "
            f"{len(counts.classes)} classes have one-word names"
        )


if __name__ == "__main__":
    main()
