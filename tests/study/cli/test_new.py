"""Tests of `study new`: valid study files, cluster files, nothing overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from study.config.loader import load_config
from study.config.planner import build_plan
from tests.support.command_line import RunCommand

pytestmark = pytest.mark.split


def test_new_never_overwrites_a_file(study: RunCommand) -> None:
    assert study("new", "a.yaml").code == 0
    before = Path("a.yaml").read_text()
    assert all(word in before for word in ("on_bad_image: skip", "on_duplicate: drop"))
    done = study("new", "a.yaml")
    assert done.code == 2
    assert Path("a.yaml").read_text() == before
    assert "name: a" in before


@pytest.mark.parametrize("file", ["2024.yaml", "on.yaml", "my file.yaml", "_ü.yaml", "1e3.yaml"])
def test_new_writes_a_file_that_check_accepts(file: str, study: RunCommand) -> None:
    assert study("new", file).code == 0
    plan = build_plan(load_config(Path(file)))
    assert plan.name == {"my file.yaml": "my-file", "_ü.yaml": "study"}.get(file, Path(file).stem)


def test_new_refuses_an_invalid_name(study: RunCommand) -> None:
    done = study("new", "a.yaml", "--name", "a b")
    assert done.code == 2
    assert not Path("a.yaml").exists()


def test_new_writes_a_cluster_file(study: RunCommand) -> None:
    Path("id_rsa").touch()
    hosts = ("--host", "one", "--host", "two")
    done = study("new", "--cluster", "onprem", *hosts, "--key", "id_rsa")
    assert done.code == 0, done.err
    assert "ray up onprem.yaml" in done.out
    provider = yaml.safe_load(Path("onprem.yaml").read_text())["provider"]
    assert (provider["head_ip"], provider["worker_ips"]) == ("one", ["two"])
    assert str(Path("id_rsa").absolute()) in Path("onprem.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "study new my.yaml"),
        (("a.yaml", "--host", "one"), "--cluster onprem"),
        (("nowhere/a.yaml",), "nowhere"),
        (("--cluster", "onprem", "--host", "one", "--key", "no.pem"), "no.pem"),
    ],
    ids=["no file", "host without cluster", "no folder", "no key"],
)
def test_wrong_options_are_one_line_and_nothing_is_written(
    study: RunCommand, words: tuple[str, ...], message: str
) -> None:
    done = study("new", *words)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert message in done.err
    assert not list(Path.cwd().iterdir())
