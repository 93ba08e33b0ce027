"""Commands as a user types them: bad input is one line and exit code 2, and writes nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from search_spaces.space import Space
from study.analyses.lint import lint_spaces
from study.checks import describe_data, open_data
from study.commands.ui import _wait
from study.home import StudyHome, create_study, new_study
from study.jobs import Job
from study.main import main
from study.plan import Plan, load_plan
from study.planning import build_plan
from study.read_file import parse_study, read_study_file
from study.running import begin
from study.tracking.server import free_port
from study.tuning.describing import protocol_record
from tests.study.tuning_simulation import drive, open_ledger

STUDY: dict[str, Any] = {
    "name": "s",
    "data": {"name": "glyphs", "classes": 200, "samples": 6},
    "losses": ["proxy_anchor", "triplet"],
    "training": {"epochs": 2, "batch_size": 32, "embedding_dim": 16},
    "search": {"trials": 3, "repeats": 1},
}


class Outcome:
    """What a command printed and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def study(
    tmp_path: Path,
    data_cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """Runs `study ...` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as done:
            main(list(arguments))
        printed = capsys.readouterr()
        code = done.value.code
        return Outcome(code if isinstance(code, int) else 0, printed.out, printed.err)

    return call


def write(content: dict[str, Any] | str) -> str:
    text = content if isinstance(content, str) else yaml.safe_dump(content)
    Path("my.yaml").write_text(text, encoding="utf-8")
    return "my.yaml"


def picture(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def folder_of(classes: int, images: int) -> str:
    for c in range(classes):
        for i in range(images):
            picture(Path("images") / f"class{c:02d}" / f"{i}.png", seed=100 * c + i)
    return "images"


def one_lone_picture() -> str:
    picture(Path("images") / "class99" / "0.png", seed=9999)
    return folder_of(20, 3)


def empty_folder() -> str:
    Path("images").mkdir()
    return "images"


def changed(**changes: Any) -> dict[str, Any]:
    return {**STUDY, **changes}


BAD: dict[str, tuple[dict[str, Any] | str, str]] = {
    "unknown key": (changed(trainin={}), "did you mean 'training'?"),
    "unknown knob": (
        changed(losses={"triplet": {"fixed": {"margn": 1}}}),
        "did you mean 'margin'?",
    ),
    "unknown training knob": (changed(training={"batchsize": 3}), "did you mean 'batch_size'?"),
    "unknown loss": (changed(losses=["circl"]), "circle"),
    "unknown data set": (changed(data="glyfs"), "glyphs"),
    "unknown data option": (changed(data={"name": "glyphs", "clases": 9}), "classes"),
    "unknown backbone": (changed(backbone="resnet5o"), "resnet50"),
    "upside down": (changed(losses={"triplet": {"search": {"margin": [1, 0]}}}), "`low <= high`"),
    "too few classes": (
        changed(training={"batch_size": 256, "images_per_class": 2}),
        "needs 128 classes, got 75",
    ),
    "too few images": (changed(training={"batch_size": 512}), "a batch of 512 needs"),
    "not yaml": ("name: [", "is not YAML"),
    "empty file": ("", "empty"),
    "bad type": (changed(search={"trials": "many"}), "`search.trials`"),
    "epochs searched": (changed(training={"epochs": [2, 6]}), "epochs cannot be searched"),
    "negative rate": (changed(training={"head_lr": [-1, 0.1]}), "`head_lr >= 0`"),
    "rate that is no number": (changed(training={"head_lr": float("nan")}), "must be finite"),
    "bad port": (changed(tracking={"uri": "postgresql://ada:pw@db:abc/x"}), "host and port"),
    "bad host": (changed(tracking={"uri": "https://[::1"}), "host and port"),
    "nested": ("a: " + 3000 * "[" + 3000 * "]", "nested too deeply"),
}


@pytest.mark.parametrize("command", ["check", "run"])
@pytest.mark.parametrize("case", BAD)
def test_a_bad_study_file_is_one_line_and_nothing_is_written(
    case: str, command: str, study: Any
) -> None:
    content, message = BAD[case]
    done = study(command, write(content))
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err
    assert sorted(p.name for p in Path.cwd().iterdir()) == ["my.yaml"]


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_shared_place_that_takes_no_checkpoints_is_one_line(
    command: str, study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is written, not after every trial has failed on it."""
    (tmp_path / "taken").touch()
    done = study(command, write(changed(storage={"checkpoints": str(tmp_path / "taken")})))
    assert done.code == 2
    assert f"storage.checkpoints: {tmp_path}/taken cannot be written, read and" in done.err
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    away = study(command, write(changed(storage={"checkpoints": "s3://my-bucket/runs"})))
    assert away.code == 2
    assert "storage.checkpoints: s3://my-bucket/runs cannot be written, read and" in away.err
    assert done.err.count("\n") == away.err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my.yaml", "taken"]


def test_check_leaves_a_shared_folder_as_it_was(study: Any, tmp_path: Path) -> None:
    done = study("check", write(changed(storage={"checkpoints": str(tmp_path / "a" / "b")})))
    assert done.code == 0, done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my.yaml"]


def test_a_missing_file(study: Any) -> None:
    done = study("run", "nowhere.yaml")
    assert done.code == 2
    assert "no study file nowhere.yaml" in done.err


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: "nowhere", "nowhere"),
        (empty_folder, "images"),
        (lambda: folder_of(16, 1), "at least 2 pictures"),
        (lambda: one_lone_picture(), "class99 has 1"),
        (lambda: folder_of(3, 4), "classes"),
    ],
    ids=["missing", "empty", "one image per class", "one lone image", "too few classes"],
)
def test_a_bad_image_folder(make: Any, message: str, study: Any) -> None:
    path = make()
    data = {"name": "folder", "path": path}
    done = study("check", write(changed(data=data, training={"batch_size": 8})))
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_class_with_one_picture_is_no_query_where_that_is_allowed(study: Any) -> None:
    data = {"name": "folder", "path": one_lone_picture(), "min_images": 1, "size": 28}
    training = {"batch_size": 8, "images_per_class": 2}
    done = study("check", write(changed(data=data, training=training)))
    assert done.code == 0, done.err
    assert "note: folder: 1 test class(es) have one image ('class99', ...)" in done.out


def test_queries_without_anything_to_find_are_refused_before_any_trial(study: Any) -> None:
    labels = np.repeat(np.arange(24), 4)
    features = np.random.default_rng(0).normal(size=(96, 8)).astype(np.float32)
    asks = (labels % 2).astype(np.int64)  # whole classes ask, so that no query finds its own
    np.savez("a.npz", features=features, labels=labels, asks=asks)
    data = {"name": "arrays", "path": "a.npz", "query": "asks=1"}
    done = study("check", write(changed(data=data, training={"batch_size": 8})))
    assert done.code == 2
    assert "no validation image has another one of its class to find" in done.err
    assert done.err.count("\n") == 1


def test_an_unknown_study_names_the_nearest(study: Any, tmp_path: Path) -> None:
    (tmp_path / "studies" / "mine").mkdir(parents=True)
    (tmp_path / "studies" / "mine" / "plan.json").write_text("{")
    done = study("resume", "mien")
    assert done.code == 2
    assert "did you mean 'mine'?" in done.err
    damaged = study("resume", "mine")
    assert damaged.code == 2
    assert "damaged" in damaged.err
    assert (tmp_path / "studies" / "mine" / "plan.json").read_text() == "{"


@pytest.mark.parametrize("content", [b"this is no database" * 99, b""])
@pytest.mark.parametrize("command", ["resume", "report", "ui"])
def test_a_damaged_store_is_one_line(
    command: str, content: bytes, study: Any, tmp_path: Path
) -> None:
    home = new_study("s", tmp_path / "studies")
    create_study(home, build_plan(parse_study(STUDY)))
    (home.directory / "mlflow.db").write_bytes(content)
    done = study(command, "s")
    assert done.code == 2
    assert "mlflow.db" in done.err
    assert done.err.count("\n") == 1


def test_ctrl_c_says_how_to_go_on_wherever_it_strikes(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_study(new_study("s", tmp_path / "studies"), build_plan(parse_study(STUDY)))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("study.tuning.run.open_data", interrupt)
    done = study("resume", "s")
    assert done.code == 130
    assert "study resume s" in done.out


def test_a_damaged_study_does_not_hide_the_others(study: Any, tmp_path: Path) -> None:
    create_study(new_study("s", tmp_path / "studies"), build_plan(parse_study(STUDY)))
    (tmp_path / "studies" / "mine").mkdir()
    (tmp_path / "studies" / "mine" / "plan.json").write_text("{")
    done = study("status")
    assert done.code == 0
    assert "mine: damaged" in done.out
    assert "s: stopped" in done.out
    states = {r["study"]: r["state"] for r in json.loads(study("status", "--json").out)}
    assert states == {"mine": "damaged", "s": "stopped"}
    assert study("status", "mine").code == 2


def test_an_existing_name_is_refused_and_left_alone(study: Any, tmp_path: Path) -> None:
    (tmp_path / "studies" / "s").mkdir(parents=True)
    (tmp_path / "studies" / "s" / "precious").write_text("x")
    done = study("run", write(STUDY))
    assert done.code == 2
    assert "study resume s" in done.err
    assert (tmp_path / "studies" / "s" / "precious").read_text() == "x"


def test_unknown_commands_and_options(study: Any) -> None:
    assert "did you mean 'resume'?" in study("resum").err
    done = study("run", "--sett", "x")
    assert done.code == 2
    assert done.err.count("\n") == 1


def test_new_never_overwrites(study: Any) -> None:
    assert study("new", "a.yaml").code == 0
    before = Path("a.yaml").read_text()
    assert all(word in before for word in ("on_bad_image: skip", "on_duplicate: drop"))
    done = study("new", "a.yaml")
    assert done.code == 2
    assert Path("a.yaml").read_text() == before
    assert "name: a" in before


@pytest.mark.parametrize("file", ["2024.yaml", "on.yaml", "my file.yaml", "_ü.yaml", "1e3.yaml"])
def test_new_writes_a_file_that_check_accepts(file: str, study: Any) -> None:
    assert study("new", file).code == 0
    plan = build_plan(read_study_file(Path(file)))
    assert plan.name == {"my file.yaml": "my-file", "_ü.yaml": "study"}.get(file, Path(file).stem)


def test_new_refuses_an_impossible_name(study: Any) -> None:
    done = study("new", "a.yaml", "--name", "a b")
    assert done.code == 2
    assert not Path("a.yaml").exists()


def test_check_prints_the_plan_and_the_cost(study: Any) -> None:
    done = study("check", write(STUDY))
    assert done.code == 0, done.err
    assert "proxy_anchor: 3 points" in done.out
    assert "proxy_anchor  3 trials x 2 epochs x " in done.out
    assert "in all 12 epochs" in done.out
    report = json.loads(study("check", "my.yaml", "--json").out)
    assert report["data"]["train_classes"] == 75
    assert {loss["loss"] for loss in report["losses"]} == {"proxy_anchor", "triplet"}
    assert report["cost"]["epochs_at_most"] == 12


@pytest.mark.parametrize("sampler", ["cmaes", "tpe"])
def test_check_says_which_knobs_cma_es_draws_at_random(study: Any, sampler: str) -> None:
    """It has no model of choices; of numbers, and of a loss without a choice, nothing is said."""
    searched = {"alpha": [8, 128, "log"], "augment": {"choices": ["light", "none"]}}
    losses = {"proxy_anchor": {"search": searched}, "triplet": None}
    search = {**STUDY["search"], "sampler": sampler}
    file = write({**STUDY, "losses": losses, "search": search})
    done = study("check", file)
    assert done.code == 0, done.err
    lines = [line for line in done.out.splitlines() if "CMA-ES" in line]
    told = "proxy_anchor: CMA-ES has no model of augment: drawn at random."
    assert lines == ([f"advice: {told}"] if sampler == "cmaes" else [])
    advice = json.loads(study("check", file, "--json").out)["advice"]
    assert (told in advice) == (sampler == "cmaes")


def test_a_published_point_outside_the_ranges_is_refused_aloud(
    study: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At check, at run and in the report; the search goes on without it."""
    narrow = {"proxy_anchor": {"search": {"alpha": [64, 128, "log"]}}, "triplet": None}
    done = study("check", write(changed(losses=narrow)))
    said = "alpha=32 is outside [64, 128] log"
    assert said in done.out
    home = new_study("s", tmp_path / "studies")
    begin(home, build_plan(read_study_file(Path("my.yaml"))))
    lines = [line for line in capsys.readouterr().out.splitlines() if "note:" in line]
    assert lines
    assert all(line.startswith("note: proxy_anchor: the published point (") for line in lines)
    assert all(said in line for line in lines)
    plan = load_plan(home.directory)
    assert plan.published("proxy_anchor") == []
    assert len(plan.published("triplet")) == 1
    stored = {loss: Space.from_dict(space.to_dict()) for loss, space in plan.spaces.items()}
    found = lint_spaces(stored)
    assert (
        found[found["rule"] == "published out of range"]["message"]
        .str.contains(said, regex=False)
        .any()
    )
    fitting = build_plan(parse_study(STUDY)).spaces
    assert "published out of range" not in set(lint_spaces(fitting)["rule"])


def test_what_did_not_fit_of_the_weights_is_said(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainables.backbone import build_backbone

    state = dict(build_backbone("conv4", in_channels=1, image_size=28).model.state_dict())
    del state["blocks.13.bias"]
    torch.save(state, "weights.pth")
    content = changed(backbone={"name": "conv4", "pretrained": "weights.pth"})
    said = "note: weights: weights.pth: 23 weights loaded; 1 missing (blocks.13.bias)"
    done = study("check", write(content))
    assert done.code == 0, done.err
    assert said in done.out
    # What `study run` does before trials start, and what it keeps of it.
    monkeypatch.setattr("study.running.execute", lambda *_, **__: 0)
    assert said in study("run", "my.yaml").out
    plan = build_plan(read_study_file(Path("my.yaml")))
    data = describe_data(plan, open_data(plan, cache_dir=tmp_path / "cache"))
    kept = protocol_record(plan, data)
    assert kept["notes"] == [said.removeprefix("note: ")]


def test_lists_for_scripts(study: Any) -> None:
    losses = {item["loss"]: item for item in json.loads(study("losses", "--json").out)}
    assert losses["proxy_anchor"]["knobs"]["alpha"]["symbol"] == "α"
    one = json.loads(study("losses", "circle+synthesis", "--json").out)
    assert "synthesis_mu" in one["knobs"]
    names = {item["name"] for item in json.loads(study("datasets", "--json").out)}
    assert "glyphs" in names
    assert one["optional"]["temperature_mode"]["default"] == "fixed"
    assert set(one["optional"]) >= {"label_smoothing", "proxies_per_class", "synthesis_draw"}
    assert study("losses", "circel").code == 2
    assert one["spaces"] == []
    assert "`space: official` in a study file" in study("losses", "proxy_nca_pp").out
    assert json.loads(study("status", "--json").out) == []


def test_losses_are_listed_with_all_there_is_to_search(study: Any) -> None:
    overview = study("losses").out
    assert "+synthesis" in overview
    assert "pml:" in overview
    for word in ("proxy_anchor", "arXiv:2003.13911", "α", "published 32"):
        assert word in overview
    one = study("losses", "soft_triple").out
    for word in ("label_smoothing", "temperature_mode", "anneal_ratio", "optional, default 0"):
        assert word in one


def test_a_library_loss_is_listed_with_its_own_knobs(study: Any) -> None:
    pytest.importorskip("pytorch_metric_learning")
    said = study("losses", "pml:CircleLoss").out
    for words in ("m                  default 0.4, your range", "gamma              default 80"):
        assert words in said
    one = json.loads(study("losses", "pml:ProxyNCALoss", "--json").out)
    # As a study would search them.
    assert set(one["knobs"]) == {"backbone_lr", "head_lr", "proxy_lr"}
    assert one["optional"] == {
        "softmax_scale": {"default": 1, "required": False, "symbol": "", "range": None}
    }


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("pml:Nope", "has no loss 'Nope'"),
        ("pml:ManifoldLoss", "it uses no labels"),
        ("pml:ProxyAnchorLoss+synthesis", "takes no plug-in"),
    ],
)
def test_a_library_loss_that_cannot_be_studied_is_one_line(study: Any, name: str, why: str) -> None:
    pytest.importorskip("pytorch_metric_learning")
    done = study("losses", name)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert why in done.err


def test_a_library_that_is_not_installed_is_one_line(
    study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning.losses", None)
    done = study("losses", "pml:CircleLoss")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "pip install 'dml-study[pml]'" in done.err


def test_the_installed_command_answers() -> None:
    executable = Path(sys.executable).parent / "study"
    done = subprocess.run(
        [str(executable), "--version"], capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0
    assert "study" in done.stdout


CSV = """trial,loss,epoch,score,state,seed,lr,margin
{rows}
"""
SPACE = """
objective: map_at_r
epochs: 2
losses:
  mine:
    knobs:
      lr: {low: 1.0e-5, high: 1.0e-1, log: true}
      margin: {low: 0.0, high: 1.0}
    published: {lr: 1.0e-3, margin: 0.2}
"""


def test_trials_from_elsewhere_become_a_study(study: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for i in range(24):
        lr, margin = 10 ** rng.uniform(-5, -1), rng.uniform()
        for epoch in (1, 2):
            score = epoch * (0.4 - 0.1 * abs(np.log10(lr) + 3) - 0.1 * (margin - 0.5) ** 2)
            rows.append(f"t{i},mine,{epoch},{score:.5f},finished,{i},{lr:.6g},{margin:.4f}")
    Path("trials.csv").write_text(CSV.format(rows="\n".join(rows)))
    Path("space.yaml").write_text(SPACE)
    done = study("import", "theirs", "--csv", "trials.csv", "--space", "space.yaml")
    assert done.code == 0, done.err
    assert "24 trials" in done.out
    report = study("report", "theirs", "--out", "out")
    assert report.code == 0, report.err
    assert (tmp_path / "out" / "index.html").stat().st_size > 10_000
    assert "mine" in report.out
    advice = study("refine", "theirs", "--trials", "3")
    assert advice.code == 0, advice.err
    assert advice.out.count("lr=") == 3
    refused = study("refine", "theirs", "--trials", "3", "--run")
    assert refused.code == 2
    assert "was imported" in refused.err
    status = study("status", "theirs")
    assert status.code == 2
    assert "theirs was imported: there is nothing to run; `study report`" in status.err
    assert "did you mean 'theirs'?" in study("report", "their").err
    assert study("import", "theirs", "--csv", "trials.csv", "--space", "space.yaml").code == 2
    assert study("import", "other").code == 2


def saved_plan(uri: str | None, name: str = "s") -> Path:
    from study.home import studies_root
    from study.plan import save_plan
    from study.planning import build_plan
    from study.read_file import read_study_file

    content = changed(name=name, tracking={"uri": uri})
    plan = build_plan(read_study_file(Path(write(content)), ()))
    directory = studies_root(None).absolute() / plan.name
    directory.mkdir(parents=True)
    save_plan(plan, directory)
    return directory


def test_sweep_confirm_and_extend_ask_for_what_they_say(
    study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = saved_plan(None)
    asked: list[tuple[Plan, Sequence[Job], bool]] = []

    def execute(home: StudyHome, plan: Plan, **options: Any) -> int:
        asked.append((plan, options.get("requests", ()), options.get("search", True)))
        return 0

    monkeypatch.setattr("study.running.execute", execute)
    for words in (["extend", "s", "--trials", "4"], ["confirm", "s"]):
        early = study(*words)
        assert early.code == 2
        assert early.err.count("\n") == 1
        assert "study resume s" in early.err
    ledger = open_ledger(load_plan(directory), directory)
    drive(ledger, lambda job, epoch: 0.1 * epoch + 0.01 * job.number, epochs=2)
    for words, known in ((["--knob", "alpa"], "alpha"), (["--loss", "triplt"], "triplet")):
        wrong = study("sweep", "s", "--knob", "alpha", *words)
        assert wrong.code == 2
        assert known in wrong.err
    assert not asked
    assert study("sweep", "s", "--knob", "alpha", "--values", "3", "--seeds", "2").code == 0
    assert study("confirm", "s").code == 0
    assert study("extend", "s", "--trials", "4").code == 0
    (_, swept, _), (_, confirmed, _), (longer, nothing, _) = asked
    anchors = ("incumbent", "published")
    assert {(j.loss, j.swept, j.split) for j in swept} == {("proxy_anchor", "alpha", "validation")}
    assert sorted({j.anchor for j in swept}) == list(anchors)
    assert len(swept) in (12, 14, 16), "three values and the anchor's own, two seeds, two anchors"
    assert {(j.loss, j.anchor) for j in confirmed} == {
        (loss, anchor) for loss in longer.losses for anchor in anchors
    }
    assert {j.split for j in confirmed} == {"test"}
    assert [search for _, _, search in asked] == [False, False, True]
    assert not nothing
    assert [stage.points for stage in longer.stages] == [3, 4]
    assert load_plan(directory) == longer


@pytest.mark.parametrize(
    ("uri", "private"),
    [
        ("postgresql://ada:s3cret@127.0.0.1:1/mlflow", True),
        ("http://127.0.0.1:5000", False),
    ],
)
def test_a_plan_with_a_password_is_for_its_owner_alone(study: Any, uri: str, private: bool) -> None:
    mode = (saved_plan(uri) / "plan.json").stat().st_mode & 0o777
    assert (mode == 0o600) == private


def test_a_store_that_cannot_be_opened_is_said_before_anything_runs(
    study: Any, tmp_path: Path
) -> None:
    file = write(changed(tracking={"uri": "mysql://ada:s3cret@db/x"}))
    for command in ("check", "run"):
        done = study(command, file)
        assert done.code == 2
        assert "cannot be opened" in done.err
        assert "s3cret" not in done.err
    assert not (tmp_path / "studies").exists()
    down = study("check", write(changed(tracking={"uri": "http://127.0.0.1:9"})))
    assert down.code == 0
    assert "warning: the tracking store http://127.0.0.1:9 does not answer" in down.err


@pytest.mark.parametrize(
    "uri",
    [
        *("foo", "ftp://x", "databricks", "sqlite:///", "sqlite://", "https://[::1"),
        "postgresql://ada:s3cret@127.0.0.1:abc/x",
    ],
)
def test_a_mistyped_store_of_a_report_is_one_line(uri: str, study: Any) -> None:
    done = study("report", "x", "--tracking-uri", uri)
    assert done.code == 2
    assert "tracking store" in done.err
    assert (done.err.count("\n"), "s3cret" in done.err) == (1, False)
    assert len(done.err) < 200


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stores that `study ui` would serve; tracking/test_servers.py starts real servers."""
    uris: list[str] = []

    @contextlib.contextmanager
    def serve(uri: str, **_: Any) -> Iterator[str]:
        uris.append(uri)
        yield "http://127.0.0.1:1"

    monkeypatch.setattr("study.tracking.server.serve", serve)
    monkeypatch.setattr("study.tracking.reader.study_path", lambda _, name: f"/#/{name}")
    monkeypatch.setattr("study.tracking.local.relocate", lambda _: 0)
    monkeypatch.setattr("study.commands.ui._wait", lambda *_: 0)
    monkeypatch.setattr("study.commands.ui.signal.signal", lambda *_: None)  # not pytest's own
    return uris


DATABASE = "postgresql://ada:s3cret@127.0.0.1:1/mlflow"


def test_ui_serves_a_study_kept_in_postgresql(
    study: Any, served: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_plan(DATABASE)
    handlers: dict[int, Any] = {}
    monkeypatch.setattr("study.commands.ui.signal.signal", handlers.__setitem__)
    done = study("ui", "s")
    assert done.code == 0
    for end in (signal.SIGTERM, signal.SIGHUP):  # its terminal may be closed
        with pytest.raises(KeyboardInterrupt):
            handlers[end](end, None)
    assert served == [DATABASE]
    assert "http://127.0.0.1:1/#/s" in done.out
    assert "s3cret" not in done.out + done.err


def test_ui_says_when_its_server_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def end() -> None:
        server.shutdown()
        server.server_close()

    threading.Timer(2.5, end).start()
    address = f"http://127.0.0.1:{server.server_port}"
    began = time.monotonic()
    assert _wait(address) == 1
    assert time.monotonic() - began > 2.0
    assert f"study: the MLflow server at {address} has ended\n" in capsys.readouterr().err


def test_ui_without_a_name_serves_the_last_study_and_tells_of_the_others(
    study: Any, served: list[str], tmp_path: Path
) -> None:
    own = saved_plan(DATABASE, "one"), saved_plan(DATABASE, "two"), saved_plan(None, "alone")
    (own[2] / "mlflow.db").write_bytes(b"a store")
    saved_plan("http://ada:s3cret@127.0.0.1:9", "far")
    saved_plan(None, "never-run")
    (tmp_path / "studies" / "damaged").mkdir()
    (tmp_path / "studies" / "damaged" / "plan.json").write_text("{")

    def last(directory: Path) -> Any:
        newest = max(p.stat().st_mtime for p in (tmp_path / "studies").glob("*/*")) + 10
        os.utime(directory / "plan.json", (newest, newest))
        return study("ui")

    done = last(own[0])
    assert done.code == 0
    assert served == [DATABASE]
    assert "one: http://127.0.0.1:1/#/one  (ctrl-C stops)" in done.out
    assert "two: http://127.0.0.1:1/#/two\n" in done.out  # in the same store
    assert "alone: has a store of its own  (study ui alone)" in done.out
    assert "far: has a store of its own  (http://ada:***@127.0.0.1:9)" in done.out
    assert "never-run" not in done.out
    assert "s3cret" not in done.out + done.err
    assert last(own[2]).code == 0
    assert served[1:] == [f"sqlite:///{own[2] / 'mlflow.db'}"]
    done = last(tmp_path / "studies" / "far")
    assert "far is kept on http://ada:***@127.0.0.1:9" in done.out
    assert "one: has a store of its own  (study ui one)" in done.out
    assert len(served) == 2


def test_ui_without_any_study_says_so(study: Any) -> None:
    done = study("ui")
    assert done.code == 2
    assert "holds no study that has been run" in done.err
