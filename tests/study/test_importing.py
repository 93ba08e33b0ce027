"""Do trials run elsewhere become studies, and do broken files end in one clear line?"""

from __future__ import annotations

import json
import math
from pathlib import Path

import optuna
import pytest
from optuna.distributions import FloatDistribution

from search_spaces.space import Knob, Space
from study.errors import StudyError
from study.importing import read_csv_trials, read_optuna, read_tune
from study.report.build import write_report
from study.table import COLUMNS
from tests.study.synthetic import Plan, Problem, additive, make_table, unit_space

SPACE = """
objective: map_at_r
epochs: 27
dataset: elsewhere
untrained: 0.2
losses:
  mine:
    knobs:
      a: {low: 0.0, high: 1.0, symbol: α}
      b: {low: 0.0, high: 1.0}
      mode: {choices: [x, y]}
    nuisance: [b]
    published: {a: 0.5, b: 0.5, mode: x}
"""


@pytest.fixture
def space_file(tmp_path: Path) -> Path:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE, "utf-8")
    return path


def _csv(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trials.csv"
    path.write_text(text, "utf-8")
    return path


def test_csv_of_epochs_becomes_trials_with_curves(tmp_path: Path, space_file: Path) -> None:
    lines = ["trial,loss,a,b,mode,score,epoch,seed,state,origin"]
    lines += [f"t1,mine,0.1,0.2,x,{0.1 * e},{e},3,,random" for e in (1, 2, 27)]
    lines += ["t2,mine,0.3,0.4,y,0.2,9,0,,", "t3,mine,0.5,0.6,y,,4,0,,"]
    table = read_csv_trials(_csv(tmp_path, "\n".join(lines)), space_file)
    trials = table.trials.set_index("trial")
    assert set(COLUMNS) <= set(table.trials.columns)
    assert list(trials["state"]) == ["finished", "stopped", "diverged"]
    assert trials.loc["t1", "score"] == pytest.approx(2.7)
    assert trials.loc["t1", "origin"] == "sobol"
    assert trials.loc["t1", "seed"] == 3
    assert list(table.curves[table.curves["trial"] == "t1"]["epoch"]) == [1, 2, 27]
    assert table.baseline == {"validation": {"map_at_r": 0.2}}
    assert table.spaces["mine"].nuisance.keys() == {"b"}


def test_a_report_of_an_imported_csv(tmp_path: Path) -> None:
    space = unit_space("mine", ["a", "b"])
    made = make_table([Problem(space, additive([0.3, 0.1]))], Plan(trials=24))
    frame = made.trials.rename(columns={"epochs": "epoch", "knob.a": "a", "knob.b": "b"})
    path = tmp_path / "trials.csv"
    frame[["loss", "a", "b", "score", "epoch", "seed", "state", "origin"]].to_csv(path, index=False)
    file = tmp_path / "space.yaml"
    knobs = "{a: {low: 0.0, high: 1.0}, b: {low: 0.0, high: 1.0}}"
    file.write_text(f"epochs: 27\nlosses: {{mine: {{knobs: {knobs}}}}}", "utf-8")
    table = read_csv_trials(path, file)
    written = write_report(table, tmp_path / "out", formats=("png",))
    content = json.loads(written.record.read_text("utf-8"))
    assert content["losses"]["mine"]["importance"][0]["knob"] == "a"


@pytest.mark.parametrize(
    ("csv", "says"),
    [
        ("a,b,mode,score\n", "has no rows"),
        ("a,b,mode\n0.1,0.1,x\n", "has no column `score`"),
        ("a,b,score\n0.1,0.1,1\n", "no column for knob 'mode'"),
        ("a,b,mode,score,sede\n0.1,0.1,x,1,1\n", "did you mean 'seed'?"),
        ("a,b,mode,score\n7,0.1,x,1\n", "`a=7` is outside"),
        ("a,b,mode,score\n0.1,0.1,z,1\n", "`mode=z` is outside"),
        ("a,b,mode,score,loss\n0.1,0.1,x,1,yours\n", "loss 'yours' has no space"),
        ("a,b,mode,score,state\n0.1,0.1,x,1,done\n", "state 'done' is unknown"),
        ("a,b,mode,score\n0.1,0.1,x,high\n", "Unable to parse"),
        ("", "is no readable CSV"),
    ],
)
def test_bad_csv_is_one_clear_line(tmp_path: Path, space_file: Path, csv: str, says: str) -> None:
    with pytest.raises(StudyError) as caught:
        read_csv_trials(_csv(tmp_path, csv), space_file)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "must be a mapping"),
        ("losses: {}", "at least one loss"),
        ("loses: {}", "did you mean 'losses'?"),
        ("losses: {m: {knobs: {a: {low: 1}}}}", "needs 'high'"),
        ("losses: {m: {knobs: {a: {low: 2, high: 1}}}}", "low <= high"),
        ("losses: {m: {knobs: {a: {low: 0, high: 1, long: true}}}}", "did you mean 'log'?"),
        (
            "losses: {m: {knobs: {a: {low: 0, high: 1}}, published: {a: 3}}}",
            "`a=3` is outside",
        ),
        ("a: [", "no readable YAML"),
    ],
)
def test_bad_space_file_is_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(StudyError) as caught:
        read_csv_trials(_csv(tmp_path, "a,score\n0.1,1\n"), path)
    assert says in str(caught.value)


def test_optuna_log_keeps_pruned_and_failed_trials(tmp_path: Path) -> None:
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


def test_optuna_journal(tmp_path: Path) -> None:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path = tmp_path / "journal.log"
    storage = JournalStorage(JournalFileBackend(str(path)))
    study = optuna.create_study(study_name="j", storage=storage, direction="maximize")
    study.optimize(lambda t: t.suggest_float("x", 0, 1), n_trials=3)
    assert len(read_optuna(str(path), "j").trials) == 3


def _tune_trial(folder: Path, name: str, values: list[float], lr: float) -> None:
    place = folder / name
    place.mkdir(parents=True)
    (place / "params.json").write_text(json.dumps({"loss": {"lr": lr}}))
    lines = [
        json.dumps({"acc": v, "training_iteration": i + 1, "time_total_s": i + 1.0})
        for i, v in enumerate(values)
    ]
    (place / "result.json").write_text("\n".join(lines) + "\n")


def test_tune_folder(tmp_path: Path) -> None:
    space = Space(
        loss="l",
        paper="",
        scientific={"lr": Knob(FloatDistribution(1e-5, 1e-1, log=True), "η", "")},
    )
    _tune_trial(tmp_path / "run", "t_0", [0.1, 0.2, 0.3], 1e-3)
    _tune_trial(tmp_path / "run", "t_1", [0.1], 1e-2)
    _tune_trial(tmp_path / "run", "t_2", [0.1, math.nan], 1e-1)
    _tune_trial(tmp_path / "run", "t_3", [0.1, 0.2], 1e-4)
    (tmp_path / "run" / "t_3" / "error.txt").write_text("boom")
    table = read_tune(tmp_path / "run", space, metric="acc")
    assert list(table.trials["state"]) == ["finished", "stopped", "diverged", "failed"]
    assert list(table.trials["knob.lr"]) == [1e-3, 1e-2, 1e-1, 1e-4]
    with pytest.raises(StudyError, match=r"no result\.json"):
        read_tune(tmp_path / "nothing", space, metric="acc")
    with pytest.raises(StudyError, match="reports 'accuracy'"):
        read_tune(tmp_path / "run", space, metric="accuracy")


@pytest.mark.ray
def test_a_real_tune_run(tmp_path: Path, shared_ray: None) -> None:
    """The folder as Ray Tune itself writes it."""
    from ray import tune

    def train(config: dict[str, float]) -> None:
        for epoch in range(2):
            tune.report({"acc": config["lr"] * (epoch + 1)})

    tuner = tune.Tuner(
        train,
        param_space={"lr": tune.grid_search([1e-3, 1e-2])},
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="real", verbose=0),
    )
    tuner.fit()
    knob = Knob(FloatDistribution(1e-5, 1e-1, log=True), "η", "")
    space = Space(loss="l", paper="", scientific={"lr": knob})
    table = read_tune(tmp_path / "real", space, metric="acc")
    assert sorted(table.trials["score"]) == pytest.approx([2e-3, 2e-2])
    assert set(table.trials["state"]) == {"finished"}


def test_the_columns_of_a_csv_are_told() -> None:
    from click.testing import CliRunner

    from study.commands.import_trials import command
    from study.importing import CSV_COLUMNS

    said = CliRunner().invoke(command, ["--columns"])
    assert said.exit_code == 0
    for name, meaning in CSV_COLUMNS.items():
        assert any(
            line.startswith(name) and line.endswith(meaning) for line in said.output.splitlines()
        )
