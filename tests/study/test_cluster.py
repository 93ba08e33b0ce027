"""Cluster files, the head as seen from a laptop, and studies that outlive their starter.

What needs real hosts is in tests/cluster.
"""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from study.cluster import detached
from study.cluster.attach import run_file
from study.cluster.files import onprem_file
from study.cluster.head import Head, find_head
from study.cluster.places import CHECKPOINTS_VARIABLE, MLFLOW_PORT, TRACKING_VARIABLE
from study.cost import spread
from study.errors import StudyError
from study.file import ResourcesSection
from study.jobs import Job, Outcome
from study.main import main
from study.plan import load_plan, save_plan
from study.tuning.desk import MAX_LOSSES, Desk
from study.tuning.growth import UPDATE_SECONDS, Growth, possible_nodes, wanted
from tests.study.tuning_simulation import drive, make_plan, open_ledger

KEY = Path("/keys/id_ed25519")
FILE = "name: far\ndata: glyphs\nlosses: [triplet]\nsearch: {trials: 2, repeats: 1}\n"


def own(**changes: Any) -> str:
    options: dict[str, Any] = {"name": "own", "hosts": ["h0", "10.0.0.2"], "user": "me", "key": KEY}
    return onprem_file(**{**options, **changes})


# Cluster files


@pytest.mark.parametrize("venv", [None, "/opt/dml"])
def test_ray_accepts_the_file_of_own_machines(venv: str | None) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load(own(venv=venv, shared="/mnt/nfs"))
    assert config["provider"] == {"type": "local", "head_ip": "h0", "worker_ips": ["10.0.0.2"]}
    assert config["auth"] == {"ssh_user": "me", "ssh_private_key": str(KEY)}
    commands = " ".join(config["setup_commands"])
    assert ("pip install" in commands) == (venv is None)
    assert ("file_mounts" in config) == (venv is None)
    assert "DML_STUDY_CHECKPOINTS=/mnt/nfs'" in commands
    assert f'PATH="{venv or "$HOME/dml-study/.venv"}/bin:' in commands
    for word in ("VENV", "PROJECT", "SSH_", "HOST", "SHARED", "INSTALL", "CLUSTER_NAME"):
        assert word not in own(venv=venv).replace("$HOME", "")
    validate_config(prepare_config(config))


def config_of(kind: str) -> dict[str, Any]:
    root = Path(__file__).resolve().parents[2]
    text = own() if kind == "onprem" else (root / "cluster.yaml").read_text()
    config: dict[str, Any] = yaml.safe_load(text)
    return config


@pytest.mark.parametrize("kind", ["aws", "onprem"])
def test_every_command_is_one_the_shell_understands(kind: str) -> None:
    """Ray puts each into brackets: a comment at its end would swallow the closing one."""
    config = config_of(kind)
    lists = [value for key, value in config.items() if key.endswith("_commands")]
    commands = [command for part in lists for command in part]
    assert len(commands) >= 8
    for command in commands:
        done = subprocess.run(["bash", "-n", "-c", f"({command})"], capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"


@pytest.mark.parametrize("kind", ["aws", "onprem"])
def test_every_ray_process_uses_the_token(kind: str) -> None:
    config = config_of(kind)
    environment = next(c for c in config["setup_commands"] if "RAY_AUTH_MODE=token" in c)
    assert environment.rstrip().endswith("> ~/.dml-study/env")
    assert config["cluster_synced_files"] == ["~/.ray/auth_token"]
    assert "get-auth-token --generate" in " ".join(config["head_setup_commands"])
    for part in ("head_start_ray_commands", "worker_start_ray_commands"):
        for command in config[part]:
            assert command.startswith(". ~/.dml-study/env && ")
    assert f"127.0.0.1:{MLFLOW_PORT}" in environment


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": []}, "needs --host HEAD"),
        ({"hosts": ["a", "b", "a"]}, "--host a is given twice"),
        ({"hosts": ["a; reboot"]}, "host name or an address"),
        ({"user": "me'"}, "user name"),
        ({"venv": "/x'; reboot '"}, "plain path"),
        ({"shared": "/a b"}, "plain path"),
    ],
)
def test_words_that_are_no_hosts_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        own(**changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["new", "--cluster", "onprem"], "needs --host"),
        (["new", "x.yaml", "--host", "a"], "--host, --user"),
        (["new"], "name the file"),
        (["run", "my.yaml", "--cluster", "none.yaml"], "no cluster file"),
        (["status", "--cluster", "none.yaml"], "no cluster file"),
        (["status", "s", "--follow"], "--follow is for studies on a cluster"),
        (["report", "s", "--cluster", "none.yaml"], "no cluster file"),
        (["ui", "--cluster", "none.yaml"], "no cluster file"),
        (["stop", "s", "--cluster", "c.yaml", "--root", "x"], "--root is for studies of this"),
        (["run", "my.yaml", "--cluster", "c.yaml", "--address", "auto"], "--address is for"),
        (["run", "near.yaml", "--cluster", "c.yaml"], "name a path that every node has"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(FILE)
    Path("near.yaml").write_text(FILE.replace("glyphs", "{name: folder, path: here}"))
    with pytest.raises(SystemExit) as done:
        main(arguments)
    error = capsys.readouterr().err
    assert done.value.code == 2
    assert message in error
    assert error.count("\n") == 1


# The head from outside


def test_the_head_of_own_machines_is_found_without_ray(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(own())
    assert find_head(path) == Head("own", "h0", "me", str(KEY))
    config = yaml.safe_load(own())
    config["provider"]["external_head_ip"] = "203.0.113.9"
    config["auth"]["ssh_proxy_command"] = "nc %h %p"
    path.write_text(yaml.safe_dump(config))
    assert find_head(path) == Head("own", "203.0.113.9", "me", str(KEY), "nc %h %p")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "cannot read"),
        ("x", "is not a cluster file"),
        ("cluster_name: a", "`provider` is missing"),
        ("{cluster_name: a, provider: {type: local}}", "needs a head_ip"),
        ("{cluster_name: a, provider: {type: local}, docker: {container_name: c}}", "docker"),
    ],
)
def test_files_that_are_no_cluster_files(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(StudyError, match=message):
        find_head(tmp_path / "c.yaml")


def test_ssh_asks_nothing_and_remembers_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DML_STUDY_CACHE", str(tmp_path))
    head = Head("own", "h0", "me", str(KEY))
    line = " ".join(head.command(["study", "status", "a; reboot"]))
    for setting in ("BatchMode=yes", "StrictHostKeyChecking=accept-new", f"IdentityFile={KEY}"):
        assert setting in line
    assert line.endswith("me@h0 . ~/.dml-study/env && study status 'a; reboot'")
    assert "made anew" in head.explain("Host key verification failed.")
    with pytest.raises(StudyError, match="cannot reach the head of own"):
        Head("own", "127.0.0.1", "me", proxy="false").run(["true"])


def test_relative_paths_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(FILE)
    with pytest.raises(StudyError, match=r"`data.path` is 'pictures'"):
        run_file(
            tmp_path / "none.yaml",
            path,
            ["data.name=folder", "data.path=pictures"],
            report=True,
            detach=False,
        )


# On the head


@pytest.fixture
def head_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DML_STUDY_HOME", str(tmp_path / "studies"))
    monkeypatch.setenv(TRACKING_VARIABLE, "http://127.0.0.1:5000")
    monkeypatch.setenv(CHECKPOINTS_VARIABLE, "s3://bucket/x")
    return tmp_path / "studies"


def prepared(text: str, *options: str) -> tuple[list[str], str]:
    run = detached.Run("far")
    run.folder.mkdir(parents=True, exist_ok=True)
    run.file.write_text(text)
    return detached._prepared(run, list(options))


def test_a_new_study_gets_what_the_cluster_has(head_folder: Path) -> None:
    command, _ = prepared(FILE, "--no-report", "--set", "search.trials=3")
    assert command[0] == "run"
    assert command[2] == "--no-report"
    overrides = [value for key, value in zip(command[3::2], command[4::2], strict=True)]
    assert overrides == [
        "search.trials=3",
        "tracking.uri=http://127.0.0.1:5000",
        "storage.checkpoints=s3://bucket/x",
    ]
    own_places = FILE + "tracking: {uri: 'http://x'}\nstorage: {checkpoints: /mnt/y}\n"
    assert prepared(own_places)[0][3:] == []


def test_the_same_file_again_goes_on_and_another_is_refused(head_folder: Path) -> None:
    plan = make_plan(
        name="far",
        losses=["triplet"],
        training={},
        search={"trials": 2, "repeats": 1},
        tracking={"uri": "http://127.0.0.1:5000"},
        storage={"checkpoints": "s3://bucket/x"},
    )
    text = FILE + "training: {epochs: 9}\n"
    home = head_folder / "far"
    home.mkdir(parents=True)
    save_plan(plan, home)
    assert prepared(text)[0] == ["resume", "far", "--report"]
    with pytest.raises(StudyError, match="study far exists"):
        prepared(text, "--set", "search.trials=5")
    drive(open_ledger(load_plan(home), home))
    command, news = prepared(text)
    assert command == []
    assert "far is finished" in news


def test_following_starts_where_it_was_broken_off_and_ends_with_the_study(
    head_folder: Path,
) -> None:
    run = detached.Run("far")
    with pytest.raises(StudyError, match="no study 'far' was started"):
        detached.follow("far", 0, io.BytesIO())
    run.folder.mkdir(parents=True)
    run.log.write_bytes(b"one\ntwo\n")
    with pytest.raises(StudyError, match="ended without a word"):
        detached.follow("far", 0, io.BytesIO())
    run.exit.write_text("1")
    out = io.BytesIO()
    assert detached.follow("far", 4, out) == 1
    assert out.getvalue() == b"two\n"


def test_a_study_that_runs_is_followed_not_started_twice(head_folder: Path) -> None:
    lock = detached.Run("far").hold()
    assert detached.Run("far").folder.stat().st_mode & 0o077 == 0
    assert lock is not None
    assert detached.start("far", ["run"], FILE) == "far is running; following it"
    with pytest.raises(StudyError, match="extend it when it has ended"):
        detached.start("far", ["extend", "far", "--trials", "3"], "")
    fcntl.flock(lock, fcntl.LOCK_UN)
    assert not detached.Run("far").is_running()


def test_names_that_are_no_names_start_nothing(head_folder: Path) -> None:
    with pytest.raises(SystemExit):
        detached.main(["start", "../x", "run"])
    assert not head_folder.exists()


# Autoscaling, lost nodes and cost


def test_all_nodes_are_asked_for_at_once_and_let_go() -> None:
    config = {
        "max_workers": 4,
        "head_node_type": "head",
        "available_node_types": {
            "head": {"resources": {"CPU": 0}, "max_workers": 0},
            "gpu": {"resources": {"CPU": 8, "GPU": 2}},
        },
    }
    nodes = possible_nodes(config)
    assert len(nodes) == 5
    resources = ResourcesSection(gpus_per_trial=1, cpus_per_trial=2)
    asked: list[int] = []
    now = [0.0]
    growth = Growth(resources, nodes, lambda b: asked.append(len(b)), clock=lambda: now[0])
    for left in (100, 100, 60, 3, 2):
        growth.update(left)
        now[0] += UPDATE_SECONDS
    growth.close()
    growth.close()
    assert asked == [8, 3, 2, 0]


def test_never_more_is_asked_than_the_cluster_can_have() -> None:
    nodes = [{"CPU": 8.0, "GPU": 4.0}] * 3
    two = ResourcesSection(gpus_per_trial=4, ranks_per_trial=4, nodes_per_trial=2, cpus_per_trial=4)
    assert wanted(two, 50, nodes) == [{"CPU": 2, "GPU": 2}] * 6
    assert (
        wanted(ResourcesSection(gpus_per_trial=1, max_concurrent=2), 50, nodes)
        == [{"CPU": 1, "GPU": 1}] * 2
    )
    assert wanted(ResourcesSection(cpus_per_trial=9), 50, nodes) == []


class Silent:
    """A tracker that is told nothing of interest."""

    def started(self, job: Job) -> None: ...

    def epoch(self, job: Job, epoch: int, metrics: Any) -> None: ...

    def ended(self, job: Job, outcome: Outcome) -> None: ...


def lose(folder: Path, nodes_lost: Callable[[], int], times: int) -> Desk:
    """A trial that never finishes an epoch, because its process is lost again and again."""
    plan = make_plan()
    desk = Desk(
        plan,
        open_ledger(plan, folder),
        Silent(),
        cache_dir=folder,
        checkpoint_dir=str(folder / "c"),
        slots=lambda: 1,
        nodes_lost=nodes_lost,
    )
    for _ in range(times):
        spec = desk.start()
        assert spec is not None
        desk.lost(spec["trial"])
    return desk


def test_lost_nodes_are_pauses_and_lost_processes_are_not_for_ever(tmp_path: Path) -> None:
    count = iter(range(1000))
    for name in "ab":
        (tmp_path / name).mkdir()
    spot = lose(tmp_path / "a", lambda: next(count), 4 * MAX_LOSSES)
    assert sum(p.failed for p in spot.ledger.progress()) == 0
    assert sum(p.ended for p in spot.ledger.progress()) == 0
    crash = lose(tmp_path / "b", lambda: 0, MAX_LOSSES + 1)
    assert sum(p.failed for p in crash.ledger.progress()) == 1


def test_cost_is_trials_times_epochs_times_seconds() -> None:
    plan = make_plan(
        losses=["triplet"],
        search={"trials": 10, "repeats": 1},
        resources={"gpus_per_trial": 2, "ranks_per_trial": 2, "cpus_per_trial": 2},
    )
    cost = spread(plan, {"triplet": 80.0}, gpu_price=1.5)
    assert plan.trials("triplet") * plan.epochs("triplet") == 90
    assert cost["gpu_hours_at_most"] == pytest.approx(2.0)
    assert cost["price_at_most"] == pytest.approx(3.0)


def test_a_running_study_is_stopped_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan()
    home = tmp_path / "s"
    home.mkdir()
    save_plan(plan, home)
    code = (
        "import sys, time; from pathlib import Path; from study.home import StudyHome\n"
        "with StudyHome(Path(sys.argv[1])).locked():\n    print('held', flush=True)\n"
        "    time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(home)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    started = time.monotonic()
    with pytest.raises(SystemExit) as done:
        main(["stop", "s", "--root", str(tmp_path)])
    assert done.value.code == 0
    assert holder.wait(timeout=10) == -15
    assert time.monotonic() - started < 30
    with pytest.raises(SystemExit) as again:
        main(["stop", "s", "--root", str(tmp_path)])
    assert again.value.code == 2
