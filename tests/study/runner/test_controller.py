"""The desk keeps a study going, whatever a single trial does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from search_spaces.space import Float
from study.checks import open_data
from study.jobs import Job, Outcome
from study.plan import Plan
from study.tuning.brake import MOST_FAILURES
from study.tuning.desk import MAX_LOSSES, Desk
from study.tuning.ledger import APART, MOST_STARTS, SUSPECT, Ledger
from study.tuning.warned import Warned
from tests.study.driven import write_features
from tests.study.tuning_simulation import make_plan, open_ledger
from trainables.backbone import build_backbone
from trainables.checkpoints import checkpoint_path, save_checkpoint
from trainables.settings import TrialSpec
from trainables.worker import Worker


class Listener:
    """Remembers how trials ended."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}

    def started(self, job: Job) -> None:
        pass

    def epoch(self, job: Job, epoch: int, metrics: Mapping[str, float], host: str) -> None:
        pass

    def ended(self, job: Job, outcome: Outcome) -> None:
        self.outcomes[job.trial] = outcome


def open_desk(plan: Plan, directory: Path, listener: Listener, **more: Any) -> Desk:
    return Desk(
        plan,
        open_ledger(plan, directory),
        listener,
        cache_dir=directory,
        checkpoint_dir=str(directory / "checkpoints"),
        slots=lambda: 1,
        errors_dir=directory / "errors",
        **more,
    )


def test_a_point_that_cannot_be_trained_fails_alone(tmp_path: Path) -> None:
    """A plan made by an older version may hold a range that this one refuses."""
    plan = make_plan(losses=["triplet"], search={"trials": 8, "sampler": "sobol", "repeats": 1})
    space = plan.spaces["triplet"].with_changes(search={"weight_decay": Float(-1.0, 1.0)})
    listener = Listener()
    desk = open_desk(replace(plan, spaces={"triplet": space}), tmp_path, listener)
    started = []
    while (spec := desk.start()) is not None:
        started.append(spec["settings"]["weight_decay"])
        result = {"state": "finished", "epoch": 9, "score": 0.5}
        assert desk.result(spec["trial"], result)
    assert desk.ledger.is_finished()
    assert min(started) >= 0
    failed = [o for o in listener.outcomes.values() if o.state == "failed"]
    assert 0 < len(failed) < 8
    assert len(started) + len(failed) == 8
    assert all("`weight_decay >= 0` must hold" in outcome.error for outcome in failed)


def test_a_score_that_is_no_number_has_diverged(tmp_path: Path) -> None:
    listener = Listener()
    desk = open_desk(make_plan(losses=["triplet"]), tmp_path, listener)
    spec = desk.start()
    assert spec is not None
    assert not desk.result(spec["trial"], {"state": "running", "epoch": 1, "score": 0.5})
    assert desk.result(spec["trial"], {"state": "running", "epoch": 2, "score": float("nan")})
    outcome = listener.outcomes[spec["trial"]]
    assert (outcome.state, outcome.epochs, outcome.error) == ("diverged", 1, "the score is nan")
    assert desk.start() is not None


def test_a_trial_that_waits_for_a_slot_does_not_run(tmp_path: Path) -> None:
    desk = open_desk(make_plan(), tmp_path, Listener())
    first, ahead = desk.start(), desk.start()
    assert first is not None
    assert ahead is not None
    assert desk.start() is None
    assert list(desk.running()) == [first["trial"]]
    assert sum(p.running for p in desk.progress()) == 1
    assert desk.result(first["trial"], {"state": "finished", "epoch": 9, "score": 0.5})
    assert list(desk.running()) == [ahead["trial"]]


def test_checkpoints_are_written_and_kept_as_the_file_says(tmp_path: Path) -> None:
    storage = {"checkpoint_every": 3, "keep_best": 2}
    plan = make_plan(losses=["triplet"], storage=storage, search={"trials": 6, "repeats": 1})
    desk = open_desk(plan, tmp_path, Listener())
    scores = [0.3, 0.5, 0.1, 0.4, 0.2, 0.4]
    trials = []
    for score in scores:
        spec = desk.start()
        assert spec is not None
        assert spec["checkpoint_every"] == 3
        trials.append(spec["trial"])
        save_checkpoint(spec["checkpoint_dir"], spec["trial"], {"epoch": 9})
        assert desk.result(spec["trial"], {"state": "finished", "epoch": 9, "score": score})
    kept = {path.stem for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {trials[1], trials[3]}


def test_an_exception_in_the_data_fails_one_trial(tmp_path: Path) -> None:
    """The data of one trial cannot be read (a node without its disk); the others go on."""
    path = write_features(tmp_path)
    plan = make_plan(
        losses=["triplet"],
        data={"name": "arrays", "path": str(path)},
        training={"epochs": 1, "batch_size": 32, "embedding_dim": 4},
        search={"trials": 4, "repeats": 1, "sampler": "sobol"},
    )
    listener = Listener()
    desk = open_desk(plan, tmp_path, listener)
    trials: list[str] = []
    while (spec := desk.start()) is not None:
        trials.append(spec["trial"])
        away = path.rename(tmp_path / "away") if len(trials) == 2 else None
        worker = Worker()
        worker.start(TrialSpec.from_dict(spec))
        desk.result(spec["trial"], worker.step())
        if away is not None:
            away.rename(path)
    assert desk.ledger.is_finished()
    states = [listener.outcomes[trial].state for trial in trials]
    assert states == ["finished", "failed", "finished", "finished"]
    assert "features.npz" in listener.outcomes[trials[1]].error
    assert "Traceback" in (tmp_path / "errors" / f"{trials[1]}.txt").read_text()


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_the_trial_goes_on(
    tmp_path: Path,
) -> None:
    """A real training whose checkpoints meet a disk that refuses, then takes them again."""
    plan = make_plan(
        losses=["triplet"],
        data={"name": "arrays", "path": str(write_features(tmp_path))},
        training={"epochs": 4, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 1, "repeats": 1, "stop_early": False},
    )
    said: list[str] = []
    listener = Listener()
    warned = Warned(tmp_path / "warnings.txt", said.append)
    desk = open_desk(plan, tmp_path, listener, warn=warned)
    spec = desk.start()
    assert spec is not None
    worker = Worker()
    worker.start(TrialSpec.from_dict(spec))
    blocked = tmp_path / "checkpoints"
    blocked.write_text("not a folder")
    for epoch in range(1, 5):
        if epoch == 3:
            blocked.unlink()
        desk.result(spec["trial"], worker.step())
        assert len(said) == 1, "once, not every epoch"
        assert checkpoint_path(blocked, spec["trial"]).exists() == (epoch in (3, 4))
    assert "checkpoint of epoch 1 not written: FileExistsError" in said[0]
    assert said[0] in (tmp_path / "warnings.txt").read_text()
    assert listener.outcomes[spec["trial"]].state == "finished"


def test_a_host_with_other_data_is_named_once(tmp_path: Path) -> None:
    """As when a copy of the data broke off: trials there learn from fewer pictures."""
    said: list[str] = []
    plan = make_plan(
        losses=["triplet"],
        data={"name": "arrays", "path": str(write_features(tmp_path))},
        training={"epochs": 2, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 1, "repeats": 1, "stop_early": False},
    )
    bench = open_data(plan, cache_dir=tmp_path)
    known = bench.dataset.fingerprint
    for here, warnings in ((known, 0), ("another", 1)):
        (tmp_path / here).mkdir()
        desk = open_desk(plan, tmp_path / here, Listener(), warn=said.append, fingerprint=here)
        spec = desk.start()
        assert spec is not None
        worker = Worker()
        worker.start(TrialSpec.from_dict({**spec, "checkpoint_dir": ""}))
        for _ in range(2):
            desk.result(spec["trial"], {**worker.step(), "host": "gpu2"})
        assert len(said) == warnings, "once, not every epoch"
    assert f"the data on gpu2 are not those of the study (fingerprint {known}, here" in said[0]


@pytest.mark.parametrize("gpus", [0, 0.5])
def test_a_host_whose_gpus_torch_does_not_see_is_named_once(
    tmp_path: Path, gpus: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that was given a GPU and trains on processors goes on, but not in silence."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said: list[str] = []
    plan = make_plan(
        losses=["triplet"],
        data={"name": "arrays", "path": str(write_features(tmp_path))},
        training={"epochs": 3, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 1, "repeats": 1, "stop_early": False},
        resources={"gpus_per_trial": gpus},
    )
    desk = open_desk(plan, tmp_path, Listener(), warn=said.append)
    spec = desk.start()
    assert spec is not None
    worker = Worker()
    worker.start(TrialSpec.from_dict(spec))
    for host in ("gpu1", "gpu1", "gpu2"):
        desk.result(spec["trial"], {**worker.step(), "host": host})
    hosts = [text.partition(": trials have a GPU there, but torch sees none")[0] for text in said]
    assert hosts == (["gpu1", "gpu2"] if gpus else [])


def test_a_host_with_other_weights_is_named_once(tmp_path: Path) -> None:
    """As when the weights file was replaced on one node only."""
    torch.manual_seed(0)
    state = build_backbone("conv4", in_channels=1, image_size=28).model.state_dict()
    torch.save(state, tmp_path / "w.pth")
    plan = make_plan(
        losses=["triplet"],
        data={"name": "glyphs", "classes": 80, "samples": 4},
        backbone={"pretrained": str(tmp_path / "w.pth")},
        training={"epochs": 2, "batch_size": 16, "embedding_dim": 8},
        search={"trials": 1, "repeats": 1, "stop_early": False},
    )
    bench = open_data(plan, cache_dir=tmp_path)
    here = {"fingerprint": bench.dataset.fingerprint, "weights": bench.weights}
    said: list[str] = []
    for expected in (0, 1):
        directory = tmp_path / str(expected)
        directory.mkdir()
        desk = open_desk(plan, directory, Listener(), warn=said.append, **here)
        spec = desk.start()
        assert spec is not None
        worker = Worker()
        worker.start(TrialSpec.from_dict({**spec, "checkpoint_dir": ""}))
        for _ in range(2):
            desk.result(spec["trial"], {**worker.step(), "host": "gpu2"})
        assert len(said) == expected, "once, not every epoch"
        torch.save({k: v + 1 for k, v in state.items()}, tmp_path / "w.pth")
    assert "the backbone's weights on gpu2 are not those of the study" in said[0]


def test_a_trial_that_kills_its_process_in_every_second_epoch_fails_in_the_end(
    tmp_path: Path,
) -> None:
    """Whoever takes it up repeats the report of its checkpoint: that is no new epoch."""
    listener = Listener()
    desk = open_desk(make_plan(losses=["triplet"]), tmp_path, listener)
    spec = desk.start()
    assert spec is not None
    trial = spec["trial"]
    for _ in range(60):
        desk.result(trial, {"state": "running", "epoch": 1, "score": 0.5})
        desk.lost(trial)
        if trial in listener.outcomes:
            break
        again = desk.start()
        assert again is not None
        assert again["trial"] == trial
    outcome = listener.outcomes[trial]
    assert (outcome.state, outcome.epochs) == ("failed", 1)


def test_a_trial_that_cannot_be_built_again_keeps_its_epochs(tmp_path: Path) -> None:
    listener = Listener()
    desk = open_desk(make_plan(losses=["triplet"]), tmp_path, listener)
    spec = desk.start()
    assert spec is not None
    for epoch in (1, 2, 3):
        desk.result(spec["trial"], {"state": "running", "epoch": epoch, "score": 0.5})
    desk.lost(spec["trial"])
    assert desk.start() is not None
    desk.result(spec["trial"], {"state": "failed", "epoch": 0, "error": "OSError: gone"})
    assert listener.outcomes[spec["trial"]].epochs == 3


def test_a_limit_on_trials_at_once_is_kept(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], resources={"max_concurrent": 1})
    desk = open_desk(plan, tmp_path, Listener())
    assert desk.start() is not None
    assert desk.start() is None, "Tune would start it, where resources allow"


def test_of_equals_the_first_asked_is_best_and_its_checkpoint_stays(tmp_path: Path) -> None:
    """In whatever order they end, and after a resume."""
    search = {"trials": 6, "repeats": 2, "stop_early": False, "sampler": "random"}
    plan = make_plan(losses=["triplet"], search=search)
    desk = open_desk(plan, tmp_path, Listener())
    places = tmp_path / "checkpoints"
    waiting: list[str] = []
    while True:
        while (spec := desk.start()) is not None:
            waiting.append(spec["trial"])
        if not waiting:
            break
        trial = waiting.pop()  # the one that was asked last ends first
        save_checkpoint(places, trial, {"epoch": 9})
        desk.result(trial, {"state": "finished", "epoch": 9, "score": 1.0})
    kept = sorted(path.name for path in places.iterdir())
    assert desk.ledger.is_finished()
    assert len(kept) == plan.file.storage.keep_best
    again = open_desk(plan, tmp_path, Listener())
    assert again.ledger.is_finished()
    assert again.ledger.best("triplet", 3) == desk.ledger.best("triplet", 3)
    assert sorted(path.name for path in places.iterdir()) == kept


@pytest.mark.parametrize("damage", ["cut short", "empty", "noise", "no mapping"])
def test_a_damaged_checkpoint_counts_as_none_and_is_said(tmp_path: Path, damage: str) -> None:
    """A real training that is to go on from a file which a bad disk has left."""
    plan = make_plan(
        losses=["triplet"],
        data={"name": "arrays", "path": str(write_features(tmp_path))},
        training={"epochs": 2, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 1, "repeats": 1, "stop_early": False},
    )
    said: list[str] = []
    listener = Listener()
    desk = open_desk(plan, tmp_path, listener, warn=said.append)
    spec = desk.start()
    assert spec is not None
    trial = spec["trial"]
    worker = Worker()
    worker.start(TrialSpec.from_dict(spec))
    desk.result(trial, worker.step())
    path = checkpoint_path(tmp_path / "checkpoints", trial)
    whole = path.read_bytes()
    assert not said
    if damage == "no mapping":
        torch.save([1, 2], path)
    else:
        path.write_bytes({"cut short": whole[:-500], "empty": b"", "noise": b"x" * 999}[damage])
    desk.lost(trial)
    assert desk.start() is not None
    worker.start(TrialSpec.from_dict(spec))
    for _ in range(2):
        desk.result(trial, worker.step())
    assert listener.outcomes[trial].state == "finished"
    assert listener.outcomes[trial].epochs == 2
    assert len(said) == 1, said
    assert f"{trial}: its checkpoint is damaged" in said[0]


def all_fail(desk: Desk, error: str = "OSError: gone") -> list[str]:
    """Every trial that is handed out fails before its first epoch; gives them in order."""
    tried = []
    while (spec := desk.start()) is not None:
        tried.append(spec["trial"])
        assert desk.result(spec["trial"], {"state": "failed", "epoch": 0, "error": error})
    return tried


def finish(desk: Desk) -> list[str]:
    """Every trial that is handed out trains; gives them in order."""
    tried = []
    while (spec := desk.start()) is not None:
        tried.append(spec["trial"])
        desk.result(spec["trial"], {"state": "finished", "epoch": 9, "score": 0.5})
    return tried


def test_an_outage_stops_the_run_and_costs_no_trial(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 12, "repeats": 1, "sampler": "sobol"})
    listener = Listener()
    desk = open_desk(plan, tmp_path, listener)
    before = desk.start()
    assert before is not None
    desk.result(before["trial"], {"state": "finished", "epoch": 9, "score": 0.5})
    tried = all_fail(desk)
    assert len(tried) == MOST_FAILURES
    assert desk.trouble == "5 trials in a row failed before their first epoch (OSError: gone)"
    assert list(listener.outcomes) == [before["trial"]], "the others are open"
    assert not desk.ledger.is_finished()
    again = open_desk(plan, tmp_path, listener)
    rest = finish(again)
    assert rest[:MOST_FAILURES] == tried, "they come first"
    assert again.ledger.is_finished()
    assert not again.trouble
    assert len(listener.outcomes) == 12
    assert {o.state for o in listener.outcomes.values()} == {"finished"}


def test_points_that_fail_again_after_a_stop_have_failed(tmp_path: Path) -> None:
    """Their failure was their own: the study goes on behind them."""
    plan = make_plan(losses=["triplet"], search={"trials": 12, "repeats": 1, "sampler": "sobol"})
    tried = all_fail(open_desk(plan, tmp_path, Listener()))
    listener = Listener()
    desk = open_desk(plan, tmp_path, listener)
    while (spec := desk.start()) is not None:
        bad = spec["trial"] in tried
        error = {"state": "failed", "epoch": 0, "error": "ValueError: too large"}
        desk.result(spec["trial"], error if bad else {"state": "finished", "epoch": 9, "score": 1})
    assert desk.ledger.is_finished()
    failed = [trial for trial, o in listener.outcomes.items() if o.state == "failed"]
    assert failed == tried


def test_a_study_whose_every_point_fails_ends_after_a_few_of_them(tmp_path: Path) -> None:
    """A bug in the data: each run says so, and none goes through the whole budget."""
    plan = make_plan(losses=["triplet"], search={"trials": 12, "repeats": 1, "sampler": "sobol"})
    listener = Listener()
    runs = 0
    while True:
        desk = open_desk(plan, tmp_path, listener)
        tried = all_fail(desk, "KeyError: 'labels'")
        runs += 1
        assert len(tried) <= 2 * MOST_FAILURES
        if desk.ledger.is_finished():
            break
        assert "KeyError: 'labels'" in desk.trouble
    assert runs == 3
    assert [o.state for o in listener.outcomes.values()] == ["failed"] * 12


def test_failures_of_one_loss_are_its_own_once_another_trains(tmp_path: Path) -> None:
    """While it is not known whether anything trains, nothing is started; then all goes on."""
    plan = make_plan(search={"trials": 12, "repeats": 1, "sampler": "sobol"})
    listener = Listener()
    desk = open_desk(plan, tmp_path, listener)
    desk._slots = lambda: 20
    specs = [spec for _ in range(20) if (spec := desk.start()) is not None]
    bad = [spec["trial"] for spec in specs if spec["loss"] == "triplet"]
    good = [spec["trial"] for spec in specs if spec["loss"] != "triplet"]
    for trial in bad:
        desk.result(trial, {"state": "failed", "epoch": 0, "error": "ValueError: no"})
    assert len(bad) > MOST_FAILURES
    assert desk.start() is None
    assert not desk.trouble, "others may still get going"
    assert not listener.outcomes
    desk.result(good[0], {"state": "running", "epoch": 1, "score": 0.5})
    assert sorted(listener.outcomes) == sorted(bad)
    assert desk.start() is not None


def test_a_trial_that_runs_on_hides_no_outage(tmp_path: Path) -> None:
    """It has its data in memory, so its epochs say nothing about those that start now."""
    desk = open_desk(make_plan(losses=["triplet"], search={"trials": 12}), tmp_path, Listener())
    spec = desk.start()
    assert spec is not None
    epoch = 0
    while not desk.trouble:
        epoch += 1
        desk.result(spec["trial"], {"state": "running", "epoch": epoch, "score": 0.5})
        other = desk.start()
        assert other is not None
        desk.result(other["trial"], {"state": "failed", "epoch": 0, "error": "OSError: gone"})
    assert epoch == MOST_FAILURES
    assert not desk.result(spec["trial"], {"state": "running", "epoch": epoch + 1, "score": 0.5})
    assert desk.trouble


def test_a_checkpoint_store_that_does_not_answer_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real trial with nothing to restore, while S3 is away for a moment; then for long."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody listens
    plan = make_plan(
        losses=["triplet"],
        data={"name": "arrays", "path": str(write_features(tmp_path))},
        training={"epochs": 1, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 1, "repeats": 1, "stop_early": False},
    )
    listener = Listener()
    desk = open_desk(plan, tmp_path, listener)
    worker = Worker()
    for away in (True, False):
        spec = desk.start()
        assert spec is not None
        place = "s3://bucket/prefix" if away else spec["checkpoint_dir"]
        worker.start(TrialSpec.from_dict({**spec, "checkpoint_dir": place}))
        result = worker.step()
        assert result["state"] == ("lost" if away else "finished"), result["error"]
        assert desk.result(spec["trial"], result)
    assert [o.state for o in listener.outcomes.values()] == ["finished"]


def test_a_trial_that_never_reaches_its_checkpoint_says_why_it_failed(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 1, "repeats": 1})
    listener = Listener()
    desk = open_desk(plan, tmp_path, listener)
    tries = 0
    while (spec := desk.start()) is not None:
        tries += 1
        desk.result(spec["trial"], {"state": "lost", "epoch": 0, "error": "OSError: S3 is away"})
    assert tries == MAX_LOSSES + 1
    (outcome,) = listener.outcomes.values()
    assert (outcome.state, outcome.error) == ("failed", "OSError: S3 is away")


def run_with_a_killer(desk: Desk, killer: str, *, slots: int, waits: bool = False) -> list[str]:
    """Trials train, `slots` at once, until all have ended or the killer's start ends the run.

    Gives them in the order of their starts. Those beside the killer have finished no epoch by then
    if it `waits` until they have started.
    """
    live: list[str] = []
    tried: list[str] = []
    while True:
        while len(live) < slots and (spec := desk.start()) is not None:
            live.append(spec["trial"])
            tried.append(spec["trial"])
            if spec["trial"] == killer and not waits:
                return tried
        if killer in live or not live:
            return tried
        desk.result(live.pop(0), {"state": "finished", "epoch": 9, "score": 0.5})


@pytest.mark.parametrize(("slots", "waits"), [(1, False), (3, False), (3, True)])
def test_a_trial_that_takes_its_run_with_it_comes_last_and_is_given_up(
    tmp_path: Path, slots: int, waits: bool
) -> None:
    """A run that dies writes nothing more: the record holds what it held when a trial started."""
    plan = make_plan(losses=["triplet"], resources={"max_concurrent": slots})
    listener, said, killer = Listener(), list[str](), "triplet-0000"
    runs = []
    while True:
        desk = open_desk(plan, tmp_path, listener, warn=said.append)
        desk._slots = lambda: slots
        runs.append(run_with_a_killer(desk, killer, slots=slots, waits=waits))
        if desk.ledger.is_finished():
            break
    assert len(runs) == MOST_STARTS + 1
    assert [run[0] == killer for run in runs[:SUSPECT]] == [True] * SUSPECT
    assert len(runs[SUSPECT]) > plan.points("triplet") / 2
    for number, run in enumerate(runs[SUSPECT:MOST_STARTS], start=SUSPECT):
        if number >= APART or not waits:
            assert run[-1] == killer, "after all others"
    assert killer not in runs[MOST_STARTS]
    failed = {trial: o for trial, o in listener.outcomes.items() if o.state == "failed"}
    assert list(failed) == [killer], "nobody who ran beside it"
    assert f"the run died {MOST_STARTS} times before this trial finished" in failed[killer].error
    assert said == [f"{killer} is given up: {failed[killer].error}"]
    assert len(listener.outcomes) > plan.points("triplet")


def suspects(plan: Plan, folder: Path, deaths: int) -> Ledger:
    """A study whose three trials were running when the run died, so many times."""
    folder.mkdir(exist_ok=True)
    ledger = open_ledger(plan, folder)
    for _ in range(3):
        job = ledger.next_job()
        assert job is not None
        ledger._record.count_starts(job.trial, deaths, 0)
    return open_ledger(plan, folder)


def test_suspects_start_one_by_one_after_more_deaths(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 3, "repeats": 1})
    ledger = suspects(plan, tmp_path / "few", APART - 1)
    assert None not in [ledger.next_job() for _ in range(3)]
    ledger = suspects(plan, tmp_path / "many", APART)
    for number in range(3):
        job = ledger.next_job()
        assert job is not None
        assert ledger.starts(job.trial) == APART
        assert ledger.next_job() is None, number
        ledger.report(job.trial, 1, 0.5)  # which clears it: the next may start beside it


def test_a_trial_that_repeats_epochs_is_not_to_blame(tmp_path: Path) -> None:
    """Its checkpoint was lost; what counts is that it trains, not that it says anything new."""
    plan = make_plan(losses=["triplet"], search={"trials": 1, "repeats": 1})
    ledger = open_ledger(plan, tmp_path)
    job = ledger.next_job()
    assert job is not None
    for epoch in range(1, 8):
        ledger.report(job.trial, epoch, 0.5)
    for run in range(MOST_STARTS + 2):
        ledger = open_ledger(plan, tmp_path)
        assert ledger.next_job() == job
        assert ledger.starts(job.trial) <= 1, run
        ledger.report(job.trial, 3, 0.5)  # of the checkpoint
        ledger.report(job.trial, 4, 0.5)
    for run in range(3):
        ledger = open_ledger(plan, tmp_path)
        assert ledger.next_job() == job
        assert ledger.starts(job.trial) == run
        ledger.report(job.trial, 7, 0.5)  # of the checkpoint, and no more


def test_a_suspect_that_lost_its_process_is_not_blamed_for_an_end_in_order(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 3, "repeats": 1})
    ledger = suspects(plan, tmp_path, SUSPECT)
    for _ in range(MOST_STARTS):
        job = ledger.next_job()
        assert job is not None
        assert ledger.starts(job.trial) == SUSPECT
        ledger.give_back(job.trial)
        ledger.pause()
        ledger = open_ledger(plan, tmp_path)


@pytest.mark.parametrize("what", ["ctrl-C", "progress", "lost processes"])
def test_pauses_are_not_the_trials_fault(tmp_path: Path, what: str) -> None:
    """However often a study is stopped, and however often a trial's node goes."""
    plan, listener = make_plan(losses=["triplet"]), Listener()
    for epoch in range(1, MOST_STARTS + 3):
        desk = open_desk(plan, tmp_path, listener)
        spec = desk.start()
        assert spec is not None
        assert spec["trial"] == "triplet-0000", "it comes first as ever"
        if what == "progress":
            desk.result(spec["trial"], {"state": "running", "epoch": epoch, "score": 0.5})
            continue
        if what == "lost processes":
            desk.lost(spec["trial"])
        desk.ledger.pause()
    assert not listener.outcomes


def test_a_pause_clears_nobody(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 1, "repeats": 1})
    for runs in range(1, MOST_STARTS + 1):
        for ending in ("pause", "death"):
            ledger = open_ledger(plan, tmp_path)
            job = ledger.next_job()
            assert job is not None
            assert ledger.starts(job.trial) == runs - 1
            if ending == "pause":
                ledger.pause()
