"""The client of a cluster: starting and following studies, and reaching their stores."""

from __future__ import annotations

import subprocess
import threading
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from study.cli.main import main
from study.cluster import client as client_module
from study.cluster.client import (
    follow_output,
    open_stores,
    reject_local_options,
    run_remote_command,
    submit_command,
    submit_file,
)
from study.cluster.head import ClusterHead
from study.cluster.head_process import DetachedRun
from study.config.loader import load_config
from study.errors import StudyError
from tests.support.cluster_files import (
    STUDY_FILE,
    prepare_command,
    save_study,
    wait_until,
)

pytestmark = pytest.mark.slow


def test_no_password_is_on_a_command_line(
    head_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither on that of ssh nor on that of the study on the head."""
    words: list[str] = []
    contents: list[str] = []

    def start(cluster: Path, name: str, command: list[str], *, content: str, detach: bool) -> int:
        words.extend(ClusterHead("own", "h0", "me").remote_command(["start", name, *command]))
        contents.append(content)
        return 0

    monkeypatch.setattr("study.cluster.client.submit_command", start)
    (tmp_path / "my.yaml").write_text(STUDY_FILE)
    uri = "postgresql://ada:s3cret@db/mlflow"
    overrides = [f"tracking.uri={uri}", "name='1e3'", "training.adam_eps=1e-4"]
    submit_file(tmp_path / "c.yaml", tmp_path / "my.yaml", overrides, report=True, detach=True)
    assert "s3cret" not in " ".join(words)
    assert "run --report" in words[-1]
    (content,) = contents
    command, _ = prepare_command(content)
    assert "s3cret" not in " ".join(command)
    file = load_config(Path(command[1]))
    assert (file.tracking.uri, file.name) == (uri, "1e3")
    assert file.training["adam_eps"] == 1e-4


def test_relative_paths_are_errors_before_anything_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(STUDY_FILE)
    with pytest.raises(StudyError, match=r"`data.path` .*'images'"):
        submit_file(
            tmp_path / "none.yaml",
            path,
            ["data.name=folder", "data.path=images"],
            report=True,
            detach=False,
        )


def test_stores_are_those_that_the_study_files_name(
    cluster: Path, server: int, tmp_path: Path
) -> None:
    """A server on the head's loopback through a tunnel, others directly."""
    save_study(tmp_path, "far", f"http://127.0.0.1:{server}")
    save_study(tmp_path, "safe", "https://mlflow.example")
    save_study(tmp_path, "file", None)
    with open_stores(cluster, ["far", "safe", "far"]) as addresses:
        near, safe, again = addresses
        assert safe == "https://mlflow.example"
        assert again == near
        assert near.startswith("http://127.0.0.1:")
        assert not near.endswith(f":{server}")
        with urllib.request.urlopen(near, timeout=10) as answer:
            assert int(answer.read()) == server
    with (
        pytest.raises(StudyError, match="in a file on the head of near"),
        open_stores(cluster, ["file"]),
    ):
        pass
    with pytest.raises(StudyError, match="no study 'fa'"), open_stores(cluster, ["fa"]):
        pass


def test_following_an_unreachable_head_is_an_error_at_once(cluster: Path) -> None:
    """Only a connection that existed is reopened."""
    config = yaml.safe_load(cluster.read_text())
    config["auth"]["ssh_proxy_command"] = "false"
    cluster.write_text(yaml.safe_dump(config))
    with pytest.raises(StudyError, match="cannot reach the head of near"):
        follow_output(cluster, "far")


def test_output_is_decoded_across_chunks(
    cluster: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(client_module, "OUTPUT_CHUNK_BYTES", 1)
    folder = tmp_path / "studies" / ".runs" / "far"
    folder.mkdir(parents=True)
    (folder / "log").write_text("größer ✓\n", encoding="utf-8")
    (folder / "exit").write_text("0")
    assert follow_output(cluster, "far") == 0
    assert capsys.readouterr().out == "größer ✓\n"


def test_a_study_that_was_started_again_is_printed_from_its_beginning(
    cluster: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The offset in the old output does not apply to the new output."""
    monkeypatch.setattr(client_module, "RETRY_SECONDS", (0.05,))
    monkeypatch.setenv("DML_STUDY_HOME", str(tmp_path / "studies"))
    run = DetachedRun("far")
    lock = run.acquire_lock()
    assert lock is not None
    run.rotate_log()
    run.log_file.write_text("the first run\n", encoding="utf-8")
    shown = {"out": "", "err": ""}

    def is_shown(text: str) -> bool:
        now = capsys.readouterr()
        shown["out"], shown["err"] = shown["out"] + now.out, shown["err"] + now.err
        return text in shown["out"]

    codes: list[int] = []
    follower = threading.Thread(
        target=lambda: codes.append(follow_output(cluster, "far")), daemon=True
    )
    follower.start()
    wait_until(lambda: is_shown("the first run\n"))
    run.rotate_log()
    run.log_file.write_text("the second run\n", encoding="utf-8")
    run.exit_code_file.write_text("0")
    (ssh,) = [child for child in psutil.Process().children() if child.name() == "ssh"]
    ssh.terminate()
    wait_until(lambda: is_shown("the second run\n"))
    lock.close()
    follower.join(30)
    assert codes == [0]
    assert shown["out"] == "the first run\nthe second run\n"
    assert "far was started again" in shown["err"]


def test_options_of_this_machine_are_rejected() -> None:
    reject_local_options(root=None, tracking_uri=None)
    with pytest.raises(StudyError, match="--tracking-uri cannot be used with --cluster"):
        reject_local_options(root=None, tracking_uri="sqlite:///x")


def _head_that_runs(monkeypatch: pytest.MonkeyPatch, code: int, out: str, err: str) -> list[Any]:
    """Replace the head by one that answers every command so; return the commands."""
    commands: list[Any] = []

    def run(self: ClusterHead, words: list[str], *, content: str = "") -> Any:
        commands.append((words, content))
        return subprocess.CompletedProcess(words, code, out, err)

    monkeypatch.setattr(ClusterHead, "run_command", run)
    monkeypatch.setattr(
        "study.cluster.client.find_head", lambda file: ClusterHead("own", "h0", "me")
    )
    return commands


def test_a_detached_study_prints_how_to_follow_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = _head_that_runs(monkeypatch, 0, "hello\n", "")
    arguments = ["run", "--report"]
    assert submit_command(Path("c.yaml"), "far", arguments, content="x: 1", detach=True) == 0
    ((words, content),) = commands
    assert words == ["python", "-m", "study.cluster.detached", "start", "far", "run", "--report"]
    assert content == "x: 1"
    output = capsys.readouterr().out
    assert output.startswith("hello\n")
    assert "study status far --cluster c.yaml --follow" in output


def test_errors_of_the_head_are_passed_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _head_that_runs(monkeypatch, 2, "", "study: no study 'far'\n")
    assert submit_command(Path("c.yaml"), "far", ["resume", "far"]) == 2
    assert run_remote_command(Path("c.yaml"), ["status"]) == 2
    assert capsys.readouterr().err == 2 * "study: no study 'far'\n"
    with pytest.raises(StudyError, match=r"^no study 'far'$"), open_stores(Path("c"), ["far"]):
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["new", "--cluster", "onprem"], "needs --host"),
        (["new", "--cluster", "onprem", "--host", "a", "--key", "/no/key"], "/no/key"),
        (["new", "--cluster", "aws", "--name", "bad name!"], "--name must be at most 63 letters"),
        (["new", "x.yaml", "--host", "a"], "--host, --user"),
        (["new"], "study new my.yaml"),
        (["run", "my.yaml", "--cluster", "none.yaml"], "no cluster file"),
        (["status", "--cluster", "none.yaml"], "no cluster file"),
        (["status", "s", "--follow"], "--follow"),
        (["report", "s", "--cluster", "none.yaml"], "no cluster file"),
        (["ui", "--cluster", "none.yaml"], "no cluster file"),
        (
            ["stop", "s", "--cluster", "c.yaml", "--root", "x"],
            "--root cannot be used with --cluster",
        ),
        (
            ["run", "my.yaml", "--cluster", "c.yaml", "--address", "auto"],
            "--address cannot be used with --cluster",
        ),
        (
            ["report", "s", "--cluster", "c.yaml", "--tracking-uri", "x"],
            "--tracking-uri cannot be used with --cluster",
        ),
        (["run", "near.yaml", "--cluster", "c.yaml"], "path that every node has"),
    ],
)
def test_wrong_arguments_are_one_clear_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(STUDY_FILE)
    Path("near.yaml").write_text(STUDY_FILE.replace("glyphs", "{name: folder, path: here}"))
    with pytest.raises(SystemExit) as done:
        main(arguments)
    error = capsys.readouterr().err
    assert done.value.code == 2
    assert message in error
    assert error.count("\n") == 1
