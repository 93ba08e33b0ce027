"""Tests of README and docs: code blocks run, commands parse, links resolve, lists are complete.

Conventions of the pages: `sh` blocks hold one command per line, `text` blocks hold output. A
comment before a block can mark it: `<!-- fragment -->` (part of a study file), `<!-- ray -->`
(Python that runs a study), `<!-- space file -->` (of `study import`).
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml
from PIL import Image
from pydantic import BaseModel

from study.cli.main import cli, main
from study.config import schema
from study.config.loader import load_config
from study.config.planner import build_plan
from study.config.ranges import ParamRange
from study.importers import read_spaces
from trainables.config import TrainingSettings
from trainables.data import DATASETS

pytestmark = pytest.mark.split

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = {"yaml", "python", "sh", "text", "mermaid"}
OTHER_PROGRAMS = {"pip", "ray", "mlflow", "git", "cd"}
MINIMAL_FILE: dict[str, Any] = {"name": "minimal", "data": "glyphs", "losses": ["proxy_anchor"]}
STUDY_FILE_SECTIONS: dict[str, tuple[Any, ...]] = {
    "Top level": (schema.StudyConfig,),
    "data": (schema.DataSection,),
    "backbone": (schema.BackboneSection,),
    "losses": (schema.LossSection,),
    "training": (TrainingSettings,),
    "Ranges": (ParamRange,),
    "search": (schema.SearchSection, schema.StopSection),
    "protocol": (schema.ProtocolSection,),
    "resources": (schema.ResourcesSection,),
    "tracking": (schema.TrackingSection,),
    "storage": (schema.StorageSection,),
}


def get_page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """Fenced block of a page, with the comment before it."""

    page: Path
    line: int
    language: str
    marker: str
    code: str

    @property
    def place(self) -> str:
        return f"{get_page_name(self.page)}:{self.line}"


def find_blocks(page: Path) -> list[Block]:
    blocks, lines, start = [], page.read_text("utf-8").splitlines(), -1
    for i, line in enumerate(lines):
        if line.strip().startswith("```") and start < 0:
            start = i
        elif line.strip() == "```":
            marker = re.fullmatch(r"<!-- (.+) -->", lines[start - 1].strip()) if start else None
            code = "\n".join(lines[start + 1 : i]) + "\n"
            language = lines[start].strip().removeprefix("```")
            blocks.append(Block(page, start + 1, language, marker[1] if marker else "", code))
            start = -1
    assert start < 0, f"{page.name}:{start + 1}: the block is not closed"
    return blocks


def remove_blocks(page: Path) -> str:
    return re.sub(r"(?ms)^\s*```.*?^\s*```$", "", page.read_text("utf-8"))


def find_code_spans(page: Path) -> list[str]:
    """Return the text in backticks outside of blocks."""
    spans = re.findall(r"`([^`]+)`", remove_blocks(page))
    return [" ".join(span.split()) for span in spans]


def read_table_rows(text: str, header: str) -> list[list[str]]:
    """Return the rows of the tables whose first column has this header."""
    rows: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        if cells and cells[0] == header:
            inside = True
        elif not cells:
            inside = False
        elif inside and not set(cells[0]) <= set("-"):
            rows.append(cells)
    return rows


BLOCKS = [block for page in PAGES for block in find_blocks(page)]
PYTHON_PAGES = sorted({block.page for block in BLOCKS if block.language == "python"})
RAY_PAGES = sorted({block.page for block in BLOCKS if block.marker == "ray"})
YAML_BLOCKS = [block for block in BLOCKS if block.language == "yaml"]
SHELL_LINES = [
    (f"{block.place} {line}", line)
    for block in BLOCKS
    if block.language == "sh"
    for line in block.code.splitlines()
    if shlex.split(line, comments=True)
]
INLINE_COMMANDS = sorted(
    {
        span
        for page in PAGES
        for span in find_code_spans(page)
        if re.match(r"(study|make) [a-z-]", span)
    }
)


@pytest.mark.parametrize("page", PAGES, ids=get_page_name)
def test_every_block_has_a_language(page: Path) -> None:
    for block in find_blocks(page):
        assert block.language in LANGUAGES, f"{block.place}: ```{block.language}"


@pytest.mark.parametrize("block", YAML_BLOCKS, ids=lambda block: block.place)
def test_yaml_blocks_are_valid(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "block.yaml"
    path.write_text(block.code, "utf-8")
    if block.marker == "space file":
        assert read_spaces(path)
        return
    if block.marker == "fragment":
        content = {**MINIMAL_FILE, **yaml.safe_load(block.code)}
        path.write_text(yaml.safe_dump(content), "utf-8")
    assert build_plan(load_config(path)).losses


def run_python_blocks(page: Path, *, with_ray: bool) -> None:
    namespace: dict[str, Any] = {"__name__": page.stem}
    for block in find_blocks(page):
        if block.language == "python" and (with_ray or block.marker != "ray"):
            exec(compile(block.code, block.place, "exec"), namespace)


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=get_page_name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_python_blocks(page, with_ray=False)


@pytest.mark.ray
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("page", RAY_PAGES, ids=get_page_name)
def test_python_blocks_with_studies_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_ray: None
) -> None:
    monkeypatch.chdir(tmp_path)
    run_python_blocks(page, with_ray=True)


@pytest.mark.parametrize("line", [line for _, line in SHELL_LINES], ids=[i for i, _ in SHELL_LINES])
def test_commands_of_blocks_parse(line: str) -> None:
    words = shlex.split(line, comments=True)
    while re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    program = words[0].removeprefix(".venv/bin/")
    if program == "study":
        get_study_command(words[1]).make_context(words[1], words[2:])  # parses, does not run
    elif program == "make":
        assert set(words[1:]) <= list_make_targets()
    elif program.startswith("python"):
        assert words[1] == "-m"
        assert importlib.util.find_spec(words[2]) is not None
    else:
        assert program in OTHER_PROGRAMS


@pytest.mark.parametrize("span", INLINE_COMMANDS)
def test_commands_in_sentences_exist(span: str) -> None:
    """Arguments in sentences may be missing or placeholders."""
    program, name, *rest = span.split()
    if program == "make":
        assert name in list_make_targets()
        return
    options = {option for param in get_study_command(name).params for option in param.opts}
    assert {word for word in rest if word.startswith("--")} <= options


def run_study_command(*words: str) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(list(words))


def get_study_command(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, f"no command {name!r}"
    return command


def list_make_targets() -> set[str]:
    return set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8")))


@pytest.mark.parametrize("line", ["--help", "losses", "datasets", "new my.yaml"])
def test_fast_commands_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_study_command(*line.split())
    assert not Path("my.yaml").exists() or build_plan(load_config(Path("my.yaml"))).losses


@pytest.mark.slow
def test_check_accepts_the_study_file_of_the_readme(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [b for b in YAML_BLOCKS if b.page == PAGES[0]]
    (tmp_path / "my.yaml").write_text(block.code, "utf-8")
    rng = np.random.default_rng(0)
    for label in range(16):
        folder = tmp_path / "images" / f"class-{label:02d}"
        folder.mkdir(parents=True)
        for i in range(4):
            Image.fromarray(rng.integers(0, 255, (32, 32, 3), np.uint8)).save(folder / f"{i}.png")
    small = ["backbone=conv4", "training.batch_size=12", "training.embedding_dim=8"]
    small += [f"data.path={tmp_path / 'images'}", "data.size=28"]
    settings = [f"--set={text}" for text in small]
    run_study_command("check", str(tmp_path / "my.yaml"), *settings)
    assert "circle: 40 points" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=get_page_name)
def test_links_and_images_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", remove_blocks(page)):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file) if file else page
        assert path.exists(), f"{page.name}: {target}"
        if anchor:
            titles = re.findall(r"(?m)^#+ (.+)$", remove_blocks(path))
            slugs = {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}
            assert anchor in slugs, f"{page.name}: {target}"


@pytest.mark.parametrize("title", STUDY_FILE_SECTIONS)
def test_study_file_page_lists_every_key_with_its_default(title: str) -> None:
    text = (ROOT / "docs" / "study-file.md").read_text("utf-8")
    section = re.split(rf"(?m)^## {re.escape(title)}$", text)[1].split("\n## ")[0]
    rows = {row[0].strip("`"): row for row in read_table_rows(section, "key")}
    known = {k: v for model in STUDY_FILE_SECTIONS[title] for k, v in get_defaults(model).items()}
    assert set(rows) == set(known)
    for key, default in known.items():
        if isinstance(default, bool | int | float | tuple) or (default and default == str(default)):
            shown = yaml.safe_load(rows[key][2].strip("`"))
            shown = float(shown) if isinstance(default, float) else shown
            assert shown == (list(default) if isinstance(default, tuple) else default), key


def get_defaults(model: Any) -> dict[str, Any]:
    if issubclass(model, BaseModel):
        return {name: field.default for name, field in model.model_fields.items()}
    return {field.name: field.default for field in dataclasses.fields(model)}


def test_data_sets_page_lists_every_option() -> None:
    known = {key for name, info in DATASETS.items() for key in (name, *info.options)}
    assert known <= set(find_code_spans(ROOT / "docs" / "data-sets.md"))


def test_readme_table_lists_every_command() -> None:
    rows = read_table_rows((ROOT / "README.md").read_text("utf-8"), "command")
    assert [row[0].strip("`") for row in rows] == cli.list_commands(click.Context(cli))
    for row in rows:
        words = shlex.split(row[2].strip("`"))
        assert words[:2] == ["study", row[0].strip("`")]
        get_study_command(words[1]).make_context(words[1], words[2:])


@pytest.mark.parametrize("page", PAGES, ids=get_page_name)
def test_paths_and_modules_exist(page: Path) -> None:
    sources = {path.name for path in ROOT.glob("[st]*/**/*.py")}
    for span in find_code_spans(page):
        if re.fullmatch(r"(study|trainables|search_spaces|tests|docs|\.ci)/[\w./]*", span):
            assert (ROOT / span).exists(), f"{page.name}: {span}"
        elif re.fullmatch(r"\w+\.py", span):
            assert span in sources, f"{page.name}: {span}"
        elif re.fullmatch(r"(study|trainables|search_spaces|tests)(\.(?!yaml)\w+)+", span):
            assert importlib.util.find_spec(span) is not None, f"{page.name}: {span}"


@pytest.mark.parametrize("name", ["architecture.md", "clusters.md", "contributing.md"])
def test_classes_members_and_constants_exist(name: str) -> None:
    page, packages = ROOT / "docs" / name, ("study", "trainables", "search_spaces")
    source = "\n".join(p.read_text("utf-8") for d in packages for p in (ROOT / d).rglob("*.py"))
    diagrams = " ".join(b.code for b in BLOCKS if b.page == page and b.language == "mermaid")
    in_diagrams = re.findall(r"\b[A-Z]\w+\.[a-z_]+\b|\b[a-z]+_[a-z_]+\b", diagrams)
    for span in [*find_code_spans(page), *in_diagrams]:
        if re.fullmatch(r"[A-Z][a-z]+[A-Z]\w*(\.\w+)?", span):
            owner, _, member = span.partition(".")
            assert re.search(rf"(?m)^class {owner}\b", source), span
            assert re.search(rf"\b{member}\b", source), span
        elif re.fullmatch(r"[A-Z]+_[A-Z_]+", span) and not span.startswith(("DML_", "MLFLOW_")):
            assert re.search(rf"(?m)^{span}\b", source), span
    for span in in_diagrams:
        assert re.search(rf"\b{span.split('.')[-1]}\b", source), span


def test_the_tree_lists_every_package() -> None:
    tree = find_blocks(ROOT / "docs" / "architecture.md")[0]
    listed, parents = set(), {0: Path()}
    for line in tree.code.splitlines():
        name, depth = line.split()[0], (len(line) - len(line.lstrip())) // 2
        parents[depth + 1] = parents[depth] / name
        assert (ROOT / parents[depth + 1]).exists(), name
        listed.add(parents[depth + 1].as_posix())
    packages = [path.parent for path in ROOT.glob("[st]*/**/__init__.py")]
    assert {path.relative_to(ROOT).as_posix() for path in packages} <= listed


def test_the_architecture_page_lists_every_program() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    programs = [p for p in ROOT.glob("study/**/*.py") if "\nif __name__ ==" in p.read_text("utf-8")]
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts) for p in programs}
    listed = re.findall(r"`([\w.]+)`", " ".join(row[0] for row in read_table_rows(text, "module")))
    assert modules - {"study.cli.main"} <= set(listed)


@pytest.mark.parametrize("package", ["study", "trainables", "search_spaces"])
def test_python_api_page_lists_the_public_names(package: str) -> None:
    text = (ROOT / "docs" / "python-api.md").read_text("utf-8")
    section = re.split(rf"(?m)^## .+: `{package}`$", text)[1].split("\n## ")[0]
    rows = read_table_rows(section, "name")
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    module = importlib.import_module(package)
    assert names == set(module.__all__)
    assert all(hasattr(module, name) for name in names)
