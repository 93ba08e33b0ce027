"""The Optuna importer: states, curves, ranges and errors of one line."""

from __future__ import annotations

import math
from pathlib import Path

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from search_spaces.space import in_range
from study.analyses.surrogate.observations import collect_observations
from study.errors import StudyError
from study.importers import read_csv_trials, read_optuna
from tests.support.imported_tables import (
    ImportTrials,
    assert_same_trials,
    get_curve,
    make_optuna_study,
    write_csv,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("ranges", "step"), [([(0, 9, 3), (1, 9, 2)], 1), ([(0, 9, 3), (1, 10, 3)], 1),
                         ([(0, 9, 3), (3, 12, 3)], 3)],
)  # fmt: skip
def test_grids_with_different_offsets_lose_their_steps(
    tmp_path: Path, ranges: list[tuple[int, int, int]], step: int
) -> None:
    def objective(trial: optuna.Trial) -> float:
        low, high, by = ranges[trial.number % 2]
        return float(trial.suggest_int("n", low, high, step=by))

    url, _ = make_optuna_study(tmp_path, objective, 8)
    table = read_optuna(url, "theirs")
    distribution = table.spaces["theirs"].distributions["n"]
    assert isinstance(distribution, IntDistribution)
    assert distribution.step == step
    assert all(in_range(distribution, int(n)) for n in table.trials["knob.n"])


def test_pruned_and_failed_trials_are_imported(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    study = optuna.create_study(study_name="theirs", storage=url, direction="minimize")

    def objective(trial: optuna.Trial) -> float:
        lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
        layers = trial.suggest_int("layers", 1, 3)
        for step in range(4):
            trial.report(1.0 / (step + 1), step)
            if trial.number == 1 and step == 1:
                raise optuna.TrialPruned
        if trial.number == 2:
            return math.nan
        return abs(math.log10(lr) + 3) + layers

    study.optimize(objective, n_trials=5)
    table = read_optuna(url, "theirs")
    assert list(table.trials["state"]) == ["finished", "stopped", "failed", "finished", "finished"]
    assert (table.trials["score"].dropna() <= 0).all()
    assert list(table.curves[table.curves["trial"] == "theirs-0001"]["epoch"]) == [1, 2]
    assert table.spaces["theirs"].distributions["lr"] == FloatDistribution(1e-5, 1e-1, log=True)
    with pytest.raises(StudyError, match="did you mean 'theirs'"):
        read_optuna(url, "their")
    with pytest.raises(StudyError, match="no database file"):
        read_optuna(f"sqlite:///{tmp_path / 'none.db'}", "theirs")


def test_trials_without_reports_keep_their_values(
    tmp_path: Path, import_trials: ImportTrials
) -> None:
    url, study = make_optuna_study(tmp_path, lambda t: t.suggest_float("x", 0, 1) ** 2, 20)
    stored = import_trials("--optuna", url, "theirs")
    assert list(stored.trials["score"]) == [t.value for t in study.trials]
    assert set(stored.trials["epochs"]) == {1}
    durations = [t.duration for t in study.trials if t.duration is not None]
    assert list(stored.trials["seconds"]) == [d.total_seconds() for d in durations]
    assert_same_trials(stored, read_optuna(url, "theirs"))


def test_the_value_that_a_trial_returns_is_its_score(
    tmp_path: Path, import_trials: ImportTrials
) -> None:
    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        for step in range(1, 4):
            trial.report(x * step, step)
            if trial.number == 1 and step == 2:
                raise optuna.TrialPruned
            if trial.number == 2 and step == 2:
                raise ArithmeticError
        return 7.0 + x

    url, study = make_optuna_study(tmp_path, objective, 4)
    stored = import_trials("--optuna", url, "theirs")
    assert_same_trials(stored, read_optuna(url, "theirs"))
    xs = [t.params["x"] for t in study.trials]
    assert list(stored.trials["score"])[:2] == [7.0 + xs[0], 2 * xs[1]]
    assert list(stored.trials["epochs"]) == [3, 2, 2, 3]
    assert get_curve(stored, "theirs-0000") == {1: xs[0], 2: 2 * xs[0], 3: 7.0 + xs[0]}
    assert get_curve(stored, "theirs-0001") == {1: xs[1], 2: 2 * xs[1]}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("{x: {low: 0, high: 1}, y: {low: 0, high: 1}}", "trial 0 of Optuna study 'theirs' has no"),
        ("{x: {low: 0, high: 0.01}}", "is outside the space file's range [0, 0.01]"),
        ("{x: {low: 0, high: 1, step: 0.1}}", "is outside the space file's range [0, 1] in steps"),
    ],
)
def test_trials_that_do_not_fit_the_space_are_one_clear_line(
    tmp_path: Path, import_trials: ImportTrials, params: str, message: str
) -> None:
    url, study = make_optuna_study(tmp_path, lambda t: t.suggest_float("x", 0, 1), 0)
    study.enqueue_trial({"x": 0.123})
    study.optimize(lambda t: t.suggest_float("x", 0, 1), n_trials=1)
    file = tmp_path / "space.yaml"
    file.write_text(f"losses: {{mine: {{knobs: {params}}}}}", "utf-8")
    with pytest.raises(StudyError) as caught:
        import_trials("--optuna", url, "theirs", "--space", file)
    assert message in str(caught.value)
    assert not (tmp_path / "studies").exists()


def test_none_is_a_choice(tmp_path: Path, import_trials: ImportTrials) -> None:
    def objective(trial: optuna.Trial) -> float:
        smoothing = trial.suggest_categorical("smoothing", [None, 0.1])
        return (0.5 if smoothing is None else 0.4) + 0.1 * trial.suggest_float("x", 0, 1)

    url, study = make_optuna_study(tmp_path, objective, 12)
    stored = import_trials("--optuna", url, "theirs")
    assert list(stored.trials["knob.smoothing"].astype(str)) == [
        str(t.params["smoothing"]) for t in study.trials
    ]
    units = collect_observations(stored, "theirs").units
    column = list(stored.spaces["theirs"].distributions).index("smoothing")
    empty = [t.params["smoothing"] is None for t in study.trials]
    assert 0 < sum(empty) < 12
    assert len(set(zip(empty, units[:, column], strict=True))) == 2
    file = tmp_path / "space.yaml"
    params = "{smoothing: {choices: [null, 0.1]}, x: {low: 0, high: 1}}"
    file.write_text(f"losses: {{l: {{knobs: {params}, published: {{smoothing: null, x: 0.5}}}}}}")
    csv = write_csv(
        tmp_path, "smoothing,x,score,epoch\n,0.1,0.5,1\nNone,0.2,0.5,1\n0.1,0.3,0.5,1\n"
    )
    assert list(read_csv_trials(csv, file).trials["knob.smoothing"]) == ["None", "None", 0.1]


def test_trials_that_reported_nan_diverged(tmp_path: Path) -> None:
    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        trial.report(math.nan if trial.number == 1 else x, 1)
        if trial.number == 2:
            raise ArithmeticError
        return math.nan if trial.number == 1 else x

    url, _ = make_optuna_study(tmp_path, objective, 3)
    assert list(read_optuna(url, "theirs").trials["state"]) == ["finished", "diverged", "failed"]


def test_a_journal_file_is_read(tmp_path: Path) -> None:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path = tmp_path / "journal.log"
    storage = JournalStorage(JournalFileBackend(str(path)))
    study = optuna.create_study(study_name="j", storage=storage, direction="maximize")
    study.optimize(lambda t: t.suggest_float("x", 0, 1), n_trials=3)
    assert len(read_optuna(str(path), "j").trials) == 3


def test_enqueued_values_outside_the_range_are_kept(tmp_path: Path) -> None:
    url, study = make_optuna_study(tmp_path, lambda t: t.suggest_float("x", 0, 1), 0)
    study.enqueue_trial({"x": 3.5})
    with pytest.warns(UserWarning, match="out of range"):
        study.optimize(lambda t: t.suggest_float("x", 0, 1), n_trials=2)
    assert read_optuna(url, "theirs").trials["knob.x"][0] == 3.5
