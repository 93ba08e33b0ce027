"""Checkpoint retention: the checkpoints that a study keeps."""

from __future__ import annotations

from pathlib import Path

from tests.support.controllers import RecordingListener, open_controller
from tests.support.scheduler_simulation import make_plan
from trainables.training.checkpoints import save_checkpoint


def test_checkpoints_are_written_and_kept_as_the_file_says(tmp_path: Path) -> None:
    storage = {"checkpoint_every": 3, "keep_best": 2}
    plan = make_plan(losses=["triplet"], storage=storage, search={"trials": 6, "repeats": 1})
    controller = open_controller(plan, tmp_path, RecordingListener())
    scores = [0.3, 0.5, 0.1, 0.4, 0.2, 0.4]
    trials = []
    for score in scores:
        spec = controller.start_next_trial()
        assert spec is not None
        assert spec["checkpoint_every"] == 3
        trials.append(spec["trial"])
        save_checkpoint(spec["checkpoint_dir"], spec["trial"], {"epoch": 9})
        assert controller.handle_result(
            spec["trial"], {"state": "finished", "epoch": 9, "score": score}
        )
    kept = {path.stem for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {trials[1], trials[3]}


def test_of_equals_the_first_asked_is_best_and_its_checkpoint_stays(tmp_path: Path) -> None:
    """In whatever order they end, and after a resume."""
    search = {"trials": 6, "repeats": 2, "stop_early": False, "sampler": "random"}
    plan = make_plan(losses=["triplet"], search=search)
    controller = open_controller(plan, tmp_path, RecordingListener())
    places = tmp_path / "checkpoints"
    waiting: list[str] = []
    while True:
        while (spec := controller.start_next_trial()) is not None:
            waiting.append(spec["trial"])
        if not waiting:
            break
        trial = waiting.pop()  # the one that was asked last ends first
        save_checkpoint(places, trial, {"epoch": 9})
        controller.handle_result(trial, {"state": "finished", "epoch": 9, "score": 1.0})
    kept = sorted(path.name for path in places.iterdir())
    assert controller.scheduler.is_finished()
    assert len(kept) == plan.file.storage.keep_best
    again = open_controller(plan, tmp_path, RecordingListener())
    assert again.scheduler.is_finished()
    assert again.scheduler.best_trials("triplet", 3) == controller.scheduler.best_trials(
        "triplet", 3
    )
    assert sorted(path.name for path in places.iterdir()) == kept
