"""The journal stores jobs and outcomes as Optuna trials; readers leave it alone."""

from __future__ import annotations

import math
import os
from collections import Counter
from pathlib import Path

import pytest
from optuna.trial import TrialState

from study.errors import StudyError
from study.search.job_scheduler import JobScheduler
from study.search.journal import (
    StudyJournal,
    job_from_trial,
    outcome_from_trial,
    start_count_from_trial,
)
from study.trials.job import Job, TrialOutcome
from study.trials.table import SEARCH_ORIGINS, TRIAL_ORIGINS, TrialOrigin
from tests.support.scheduler_simulation import (
    closeness_score,
    load_optuna_study,
    make_plan,
    open_scheduler,
    simulate_trials,
)


def test_optuna_states_and_values_match_the_outcomes(tmp_path: Path) -> None:
    plan = make_plan(search={"stop_early": {"grace_epochs": 1, "reduction": 3}})

    def curve(job: Job, epoch: int) -> float:
        return math.nan if job.number == 2 and epoch == 3 else closeness_score(job, epoch)

    jobs = simulate_trials(open_scheduler(plan, tmp_path), curve)
    study = load_optuna_study(tmp_path, "triplet")
    by_key = {t.user_attrs["job"]["trial"]: t for t in study.trials}
    states = Counter(t.state for t in study.trials)
    assert states[TrialState.RUNNING] == 0
    assert by_key["triplet-0002"].state == TrialState.FAIL
    assert by_key["triplet-0002"].intermediate_values.keys() == {1, 2}
    assert states[TrialState.PRUNED] > 0
    for trial in study.trials:
        last = max(trial.intermediate_values)
        if trial.state == TrialState.PRUNED:
            assert last < 9
            assert trial.user_attrs["job"]["origin"] == "bayes"
        if trial.state == TrialState.COMPLETE:
            assert last == 9
            assert trial.value == trial.intermediate_values[9]
    assert len(study.trials) == sum(j.loss == "triplet" and j.origin != "repeat" for j in jobs)


def test_samplers_never_see_repeats(tmp_path: Path) -> None:
    plan = make_plan()
    simulate_trials(open_scheduler(plan, tmp_path))
    origins = {t.user_attrs["job"]["origin"] for t in load_optuna_study(tmp_path, "triplet").trials}
    extra = {
        t.user_attrs["job"]["origin"] for t in load_optuna_study(tmp_path, "triplet/extra").trials
    }
    assert origins == {"published", "sobol", "bayes"}
    assert extra == {"repeat"}


def test_readers_write_nothing(tmp_path: Path) -> None:
    plan = make_plan()
    assert StudyJournal(tmp_path, plan.spaces).get_trials("triplet") == []
    assert list(tmp_path.iterdir()) == []
    simulate_trials(open_scheduler(plan, tmp_path), crash_after=10)
    journal = tmp_path / "optuna.journal"
    before = journal.read_bytes()
    os.utime(journal, (1.0, 1.0))
    assert len(StudyJournal(tmp_path, plan.spaces).get_trials("triplet")) > 0
    assert journal.stat().st_mtime == 1.0, "reading needs no permission to write"
    other = make_plan(search={"sampler": "random"})  # another description of the search
    assert not JobScheduler(other, StudyJournal(tmp_path, plan.spaces)).is_finished()
    assert (tmp_path / "optuna.journal").read_bytes() == before


@pytest.mark.parametrize("text", ["not json\n{}\n", '{"op_code": 99}\n', "[]\n"])
def test_a_damaged_journal_is_a_one_line_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "optuna.journal").write_text(text)
    with pytest.raises(StudyError, match="damaged"):
        StudyJournal(tmp_path, make_plan().spaces, writable=True)
    assert (tmp_path / "optuna.journal").read_text() == text


def open_journal(directory: Path, *, writable: bool = True) -> StudyJournal:
    return StudyJournal(directory, make_plan(losses=["triplet"]).spaces, writable=writable)


def make_job(number: int, origin: TrialOrigin = "sobol") -> Job:
    params = make_plan(losses=["triplet"]).example_point("triplet")
    return Job(f"triplet-{number:04d}", "triplet", number, origin, params, seed=number)


def test_jobs_and_outcomes_come_back(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    outcomes = [
        TrialOutcome("finished", 9, 0.5, 0.1, 12.0, host="a", metrics={"recall_at_1": 0.6}),
        TrialOutcome("diverged", 1, math.nan, error="loss is NaN"),
        None,
    ]
    for number, outcome in enumerate(outcomes):
        journal.start_trial(make_job(number))
        if outcome is not None:
            journal.end_trial(f"triplet-{number:04d}", outcome)
    trials = open_journal(tmp_path, writable=False).get_search_trials("triplet")
    assert [job_from_trial(t) for t in trials] == [make_job(n) for n in range(3)]
    finished, diverged, running = map(outcome_from_trial, trials)
    assert finished == outcomes[0]
    assert diverged is not None
    assert math.isnan(diverged.score)
    assert math.isnan(diverged.score_std)
    assert (diverged.state, diverged.error) == ("diverged", "loss is NaN")
    assert running is None


def test_extra_trials_are_kept_apart_from_the_search(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for number, origin in enumerate(TRIAL_ORIGINS):
        journal.start_trial(make_job(number, origin))
    search = [job_from_trial(t).origin for t in journal.get_search_trials("triplet")]
    extra = [job_from_trial(t).origin for t in journal.get_extra_trials("triplet")]
    assert search == list(SEARCH_ORIGINS)
    assert [*search, *extra] == list(TRIAL_ORIGINS)
    assert len(journal.get_trials("triplet")) == len(TRIAL_ORIGINS)


def test_requests_are_kept_in_order(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    batches = [[make_job(0, "sweep"), make_job(1, "sweep")], [make_job(2, "confirm")]]
    for batch in batches:
        journal.add_requests(batch)
    assert open_journal(tmp_path, writable=False).read_requests() == [*batches[0], *batches[1]]


def test_starts_count_until_an_epoch_is_complete(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.start_trial(make_job(0))

    def count() -> int:
        return start_count_from_trial(
            open_journal(tmp_path, writable=False).get_trials("triplet")[0]
        )

    assert count() == 1, "without a recorded count"
    journal.write_start_count("triplet-0000", 3, 0)
    assert count() == 3
    journal.report_score("triplet-0000", 1, 0.5)
    assert count() == 0
    journal.write_start_count("triplet-0000", 2, 1)
    assert count() == 2


def test_learning_curves_are_not_kept_in_memory(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.start_trial(make_job(0))
    journal.report_score("triplet-0000", 1, 0.5)
    assert journal.get_trials("triplet")[0].intermediate_values == {}
    reader = open_journal(tmp_path, writable=False)
    assert reader.get_trials("triplet")[0].intermediate_values == {1: 0.5}
    reader.clear_intermediate_values()
    assert reader.get_trials("triplet")[0].intermediate_values == {}


def test_equal_attributes_are_not_written_again(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.write_search_attrs("triplet", {"sampler": {"name": "gp"}})
    size = (tmp_path / "optuna.journal").stat().st_size
    journal.write_search_attrs("triplet", {"sampler": {"name": "gp"}})
    assert (tmp_path / "optuna.journal").stat().st_size == size
    journal.write_search_attrs("triplet", {"sampler": {"name": "tpe"}})
    assert load_optuna_study(tmp_path, "triplet").user_attrs["sampler"] == {"name": "tpe"}
