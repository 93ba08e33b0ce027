"""The head of a cluster as seen from a laptop."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from study.cluster import head as head_module
from study.cluster.client import run_remote_command
from study.cluster.head import ClusterHead, find_head
from study.errors import StudyError
from tests.support.cluster_files import (
    SSH_KEY,
    make_onprem_file,
)


def test_the_head_of_onprem_machines_is_found_without_ray(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(make_onprem_file())
    assert find_head(path) == ClusterHead("own", "h0", "me", str(SSH_KEY))
    config = yaml.safe_load(make_onprem_file())
    config["provider"]["external_head_ip"] = "203.0.113.9"
    config["auth"]["ssh_proxy_command"] = "nc %h %p"
    path.write_text(yaml.safe_dump(config))
    assert find_head(path) == ClusterHead("own", "203.0.113.9", "me", str(SSH_KEY), "nc %h %p")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "cannot read"),
        ("x", "is not a cluster file"),
        ("cluster_name: a", "`provider` is missing"),
        ("{cluster_name: a, provider: {type: local}}", "needs a head_ip"),
        ("{cluster_name: ../a, provider: {type: local, head_ip: h}}", "`cluster_name` must be"),
        ("{cluster_name: a$b, provider: {type: local, head_ip: h}}", "`cluster_name` must be"),
        ("{cluster_name: a, provider: {type: local, head_ip: '-oX=y'}}", "the head must be a host"),
        (
            "{cluster_name: a, provider: {type: local, head_ip: h}, auth: {ssh_user: '-l x'}}",
            "`auth.ssh_user` must be a user name",
        ),
        ("{cluster_name: a, provider: {type: local}, docker: {container_name: c}}", "docker"),
        ("{cluster_name: a, provider: local}", "`provider` must be a section, got 'local'"),
        ("{cluster_name: a, provider: {head_ip: h}}", "`provider.type` is missing"),
        (
            "{cluster_name: a, provider: {type: local, head_ip: h}, auth: me}",
            "`auth` must be a section",
        ),
    ],
)
def test_other_files_are_one_clear_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(StudyError, match=message):
        find_head(tmp_path / "c.yaml")


def test_ssh_is_not_interactive_and_remembers_the_host_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DML_STUDY_CACHE", str(tmp_path))
    head = ClusterHead("own", "h0", "me", str(SSH_KEY))
    line = " ".join(head.remote_command(["study", "status", "a; reboot"]))
    for setting in ("BatchMode=yes", "StrictHostKeyChecking=accept-new", f"IdentityFile={SSH_KEY}"):
        assert setting in line
    assert line.endswith("me@h0 . ~/.dml-study/env && study status 'a; reboot'")
    reason = head.explain_ssh_failure("Host key verification failed.")
    assert str(head.known_hosts) in reason
    assert "man-in-the-middle" in reason
    with pytest.raises(StudyError, match="cannot reach the head of own"):
        ClusterHead("own", "127.0.0.1", "me", proxy="false").run_command(["true"])


def test_a_head_without_ray_up_is_an_error(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_module, "ENVIRONMENT_FILE", str(tmp_path / "none" / "env"))
    with pytest.raises(StudyError, match=r"cluster near is not up: .*`ray up` creates"):
        run_remote_command(cluster, ["status"])


def test_a_password_stays_in_the_address_through_the_tunnel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the address is tested here; another test uses a real tunnel."""
    monkeypatch.setattr(ClusterHead, "ssh_command", lambda self, *options: ["sleep", "60"])
    monkeypatch.setattr(ClusterHead, "_wait_for_tunnel", lambda *_, **__: None)
    head = ClusterHead("near", "h", "me")
    with head.open_store("postgresql://ada:s3cret@127.0.0.1:5432/mlflow?sslmode=off") as near:
        start, _, end = near.partition("@127.0.0.1:")
        assert start == "postgresql://ada:s3cret"
        assert end.endswith("/mlflow?sslmode=off")
        assert not end.startswith("5432")
