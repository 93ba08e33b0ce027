"""Do trials run elsewhere become studies, and do broken files end in one clear line?"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from search_spaces.claims import GoodValue
from search_spaces.space import Knob, Space, in_range
from study.analyses.samples import gather
from study.errors import StudyError
from study.importing import read_csv_trials, read_optuna, read_spaces, read_tune, store
from study.main import main
from study.report.build import write_report
from study.table import COLUMNS, TrialTable
from study.tracking.local import default_uri
from study.tracking.reader import read_table
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


ONE = "losses: {m: {knobs: {a: {low: 0, high: 1}}}}"


@pytest.fixture
def space_file(tmp_path: Path) -> Path:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE, "utf-8")
    return path


def _csv(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trials.csv"
    path.write_text(text, "utf-8")
    return path


Importing = Callable[..., TrialTable]


@pytest.fixture
def imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Importing:
    """`study import` in this process, and the table its store gives back; its error as ours."""

    def run(*arguments: object) -> TrialTable:
        words = ["import", "s", "--root", str(tmp_path / "studies"), *map(str, arguments)]
        with pytest.raises(SystemExit) as done:
            main(words)
        printed = capsys.readouterr()
        if done.value.code:
            assert done.value.code == 2
            assert not printed.out
            assert len(printed.err.splitlines()) == 1
            raise StudyError(printed.err.strip())
        return read_table(default_uri(tmp_path / "studies" / "s"), "s")

    return run


def _curve(table: TrialTable, trial: str) -> dict[int, float]:
    mine = table.curves[table.curves["trial"] == trial]
    return dict(zip(mine["epoch"], mine["score"], strict=True))


def _same(back: TrialTable, made: TrialTable) -> None:
    """The store gives back the columns an importer fills."""
    columns = [c for c in made.trials.columns if c in COLUMNS or not c.startswith("knob.")]
    frames = [t.trials.set_index("trial").sort_index() for t in (back, made)]
    for column in columns[1:]:
        pd.testing.assert_series_equal(
            frames[0][column], frames[1][column], check_dtype=False, check_index_type=False,
            obj=column,
        )  # fmt: skip


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
        ("a,b,mode,score,seconds\n0.1,0.1,x,1,long\n", "Unable to parse"),
        ("a,b,mode,score,epoch\n0.1,0.1,x,1,1.5\n", "epoch 1.5 is no whole number"),
        ("a,b,mode,score,epoch\n0.1,0.1,x,1,-1\n", "epoch -1 is no whole number"),
        ("trial,a,b,mode,score\nt,0.1,0.1,x,1\n,0.1,0.1,x,1\n", "row 2 has no `trial`"),
        ("trial,a,b,mode,score\nt,0.1,0.1,x,1\nt,0.1,0.1,x,2\n", "t: two rows of epoch 27"),
        ("", "is no readable CSV"),
        ("a,knob.a,b,mode,score\n0.1,0.2,0.1,x,1\n", "`a` and `knob.a` are both columns"),
        ("a,b,mode,score,seed\n0.1,0.1,x,1,1.5\n", "seed 1.5 is no whole number"),
        ("a,b,mode,score,seed\n0.1,0.1,x,1,99999999999999999999\n", "seed 1e+20 is no whole"),
        ("a,b,mode,score,epoch\n0.1,0.1,x,1,1e300\n", "epoch 1e+300 is no whole number"),
        ("a,b,mode,score,epoch\n0.1,0.1,x,1,30\n", "mine-0000 has 30 epochs, but a full trial"),
        ("a,b,mode,score,state\n0.1,0.1,x,,finished\n", "`finished` without a score"),
    ],
)
def test_bad_csv_is_one_clear_line(tmp_path: Path, space_file: Path, csv: str, says: str) -> None:
    with pytest.raises(StudyError) as caught:
        read_csv_trials(_csv(tmp_path, csv), space_file)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("second", "knob"),
    [("0.2,0.1,x,0,", "a"), ("0.1,0.1,y,0,", "mode"), ("0.1,0.1,x,1,", "seed"),
     ("0.1,0.1,x,0,test", "split"), ("0.1,0.1,x,0,,sobol", "origin")],
)  # fmt: skip
def test_rows_of_one_trial_that_disagree_are_one_clear_line(
    tmp_path: Path, space_file: Path, second: str, knob: str
) -> None:
    head = "trial,epoch,score,a,b,mode,seed,split,origin"
    lines = [head, "t8,1,0.5,0.1,0.1,x,0,,", f"t8,2,1,{second}"]
    with pytest.raises(StudyError, match=rf"t8: its rows disagree in `{knob}`"):
        read_csv_trials(_csv(tmp_path, "\n".join(lines)), space_file)


@pytest.mark.parametrize("column", ["", ",epoch"])
def test_epochs_of_a_csv_are_the_space_files_by_default(
    tmp_path: Path, space_file: Path, column: str
) -> None:
    cells = ["", ""] if not column else [",", ",9"]
    lines = [f"a,b,mode,score{column}", *(f"0.1,0.1,x,0.5{cell}" for cell in cells)]
    csv = _csv(tmp_path, "\n".join(lines))
    trials = read_csv_trials(csv, space_file).trials
    assert list(trials["epochs"]) == [27, 9 if column else 27]
    assert list(trials["state"]) == ["finished", "stopped" if column else "finished"]
    space_file.write_text(SPACE.replace("epochs: 27\n", ""), "utf-8")
    with pytest.raises(StudyError, match="mine-0000 has no epoch: give a column `epoch`, or"):
        read_csv_trials(csv, space_file)


def test_without_epochs_in_the_space_file_the_longest_trial_is_full(
    tmp_path: Path, space_file: Path
) -> None:
    space_file.write_text(SPACE.replace("epochs: 27\n", ""), "utf-8")
    csv = _csv(tmp_path, "a,b,mode,score,epoch\n0.1,0.1,x,0.5,3\n0.1,0.1,x,0.5,9\n")
    table = read_csv_trials(csv, space_file)
    assert table.protocol["epochs"] == 9
    assert list(table.trials["state"]) == ["stopped", "finished"]


def test_a_csv_comes_back_from_its_store(
    tmp_path: Path, space_file: Path, imported: Importing
) -> None:
    """Trial keys that restart for each loss, whole numbers one loss lacks, metrics, seconds."""
    other = "  other:\n    knobs: {n: {low: 1, high: 9, integer: true}, a: {low: 0, high: 1}}\n"
    space_file.write_text(SPACE + other, "utf-8")
    lines = [
        "loss,trial,epoch,score,state,seconds,metric.recall,a,b,mode,n",
        "mine,01,9,0.1,,4,,0.1,0.2,x,",
        "mine,01,27,0.3,,12.5,0.7,0.1,0.2,x,",
        "mine,1,27,0.4,,,0.8,0.1,0.3,y,",
        "mine,2,4,,,3,,0.1,0.3,y,",
        "other,1,27,0.5,,11,0.9,0.1,,,4",
        "other,2,3,0.2,failed,5,0.1,0.2,,,5",
        "other,3,0,,failed,,,0.2,,,6",
        "other,4,9,0.3,running,8,,0.2,,,7",
    ]
    csv = _csv(tmp_path, "\n".join(lines))
    back = imported("--csv", csv, "--space", space_file)
    _same(back, read_csv_trials(csv, space_file))
    trials = back.trials.set_index("trial")
    names = ["mine-01", "mine-1", "mine-2", "other-1", "other-2", "other-3", "other-4"]
    assert sorted(trials.index) == names
    assert trials.loc["other-4", "seconds"] == 8.0
    assert trials["score"].to_dict() == pytest.approx(
        {"mine-01": 0.3, "mine-1": 0.4, "mine-2": math.nan, "other-1": 0.5, "other-2": math.nan,
         "other-3": math.nan, "other-4": 0.3}, nan_ok=True,
    )  # fmt: skip
    assert trials.loc["mine-01", "seconds"] == 12.5
    assert trials.loc["mine-01", "metric.recall"] == 0.7
    assert list(trials["knob.n"].dropna()) == [4, 5, 6, 7]
    assert _curve(back, "mine-01") == {9: 0.1, 27: 0.3}


def test_names_the_store_refuses_are_refused_before_anything_is_written(
    tmp_path: Path, space_file: Path, imported: Importing
) -> None:
    csv = _csv(tmp_path, "a,b,mode,score,metric.p@1\n0.1,0.1,x,0.5,0.5\n")
    with pytest.raises(StudyError, match="the metric 'p@1' has '@' in its name"):
        imported("--csv", csv, "--space", space_file)
    for name in ("map_at_r", "score_std", "test/x", "../x"):
        csv = _csv(tmp_path, f"a,b,mode,score,metric.{name}\n0.1,0.1,x,0.5,0.5\n")
        with pytest.raises(StudyError, match=f"'{name}'"):
            imported("--csv", csv, "--space", space_file)
    csv = _csv(tmp_path, "a,b,mode,score\n0.1,0.1,x,0.5\n")
    space_file.write_text(SPACE.replace("map_at_r", "recall@1"), "utf-8")
    with pytest.raises(StudyError, match="the objective 'recall@1' has '@' in its name"):
        imported("--csv", csv, "--space", space_file)
    space_file.write_text(SPACE.replace("      b:", "      b(x):").replace("[b]", "[]")
                          .replace("b: 0.5", "b(x): 0.5"), "utf-8")  # fmt: skip
    csv = _csv(tmp_path, "a,b(x),mode,score\n0.1,0.1,x,0.5\n")
    with pytest.raises(StudyError, match=r"the knob 'b\(x\)' has '\(' in its name"):
        imported("--csv", csv, "--space", space_file)
    assert not (tmp_path / "studies").exists()


def test_an_import_that_the_store_refuses_fails_and_leaves_nothing(
    tmp_path: Path, space_file: Path, imported: Importing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_check_names", lambda table: None)
    space_file.write_text(SPACE.replace("map_at_r", "recall@1"), "utf-8")
    csv = _csv(tmp_path, "a,b,mode,score\n0.1,0.1,x,0.5\n0.1,0.2,x,0.5\n")
    with pytest.raises(StudyError, match=r"the store refused 2 of the records: .*recall@1"):
        imported("--csv", csv, "--space", space_file)
    assert not (tmp_path / "studies" / "s").exists()


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
        (f"tolerance: wide\n{ONE}", "`tolerance` must be a number above 0, got 'wide'"),
        (f"tolerance: -0.1\n{ONE}", "`tolerance` must be a number above 0, got -0.1"),
        (f"untrained: low\n{ONE}", "`untrained` must be a number, got 'low'"),
        ("losses: {m: {knobs: {a: {low: 0, high: 1}}, nuisance: a}}", "`nuisance` must be a list"),
        ("losses: {m: {knobs: {a: {low: 0, high: 1}}, claims: {a: 1}}}", "`claims` must be a list"),
        ("losses: {m: {knobs: {a: {low: 0, high: 1}}, claims: [{name: x}]}}", "claim"),
    ],
)
def test_bad_space_file_is_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(StudyError) as caught:
        read_csv_trials(_csv(tmp_path, "a,score\n0.1,1\n"), path)
    assert says in str(caught.value)


CLAIMED = """
losses:
  m:
    knobs: {a: {low: 1e-6, high: 1e-2, log: true}}
    published: {a: 1e-4}
    claims: [{name: c, statement: s, source: p, test: %s}]
"""


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ("{kind: StableRange, knob: a, low: abc}", "`low` must be a number, got 'abc'"),
        ("{kind: GoodValue, knob: a, value: [1, 2]}", "`value` must be a number, got [1, 2]"),
        ("{kind: GoodValue, knob: a, value: high}", "`value` must be a number, got 'high'"),
        ("{kind: BetterValue, knob: a, better: [0.1], worse: 1}", "a range [low, high], got [0.1]"),
        ("{kind: BetterValue, knob: a, better: 1, worse: [2, 1]}", "range [low, high], got [2, 1]"),
        ("{kind: CostRatio, other: b, at_most: x}", "`at_most` must be a number, got 'x'"),
        ("{kind: CostRatio, other: b, at_most: }", "`at_most` must be a number, got None"),
        ("{kind: BetterLoss, other: 3}", "`other` must be a word, got 3"),
        ("{kind: BetterLoss, other: HOST}", "`other: HOST` would compare m with itself"),
        ("{kind: FasterLoss, other: m}", "`other: m` would compare m with itself"),
        ("[1]", "claim"),
    ],
)
def test_a_claim_that_cannot_be_judged_is_one_clear_line(
    tmp_path: Path, test: str, says: str
) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(CLAIMED % test, "utf-8")
    with pytest.raises(StudyError) as caught:
        read_spaces(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_that_yaml_takes_for_text_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(CLAIMED % "{kind: GoodValue, knob: a, value: 1e-4}", "utf-8")
    space = read_spaces(path)[0]["m"]
    assert space.published[0].values == {"a": 1e-4}
    assert space.claims[0].test == GoodValue("a", 1e-4)


@pytest.mark.parametrize(
    ("ranges", "step"), [([(0, 9, 3), (1, 9, 2)], 1), ([(0, 9, 3), (1, 10, 3)], 1),
                         ([(0, 9, 3), (3, 12, 3)], 3)],
)  # fmt: skip
def test_optuna_grids_that_do_not_meet_lose_their_steps(
    tmp_path: Path, ranges: list[tuple[int, int, int]], step: int
) -> None:
    def objective(trial: optuna.Trial) -> float:
        low, high, by = ranges[trial.number % 2]
        return float(trial.suggest_int("n", low, high, step=by))

    url, _ = _optuna(tmp_path, objective, 8)
    table = read_optuna(url, "theirs")
    found = table.spaces["theirs"].distributions["n"]
    assert isinstance(found, IntDistribution)
    assert found.step == step
    assert all(in_range(found, int(n)) for n in table.trials["knob.n"])


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


def _optuna(tmp_path: Path, objective: Callable[[optuna.Trial], float], trials: int) -> Any:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    study = optuna.create_study(study_name="theirs", storage=url, direction="maximize")
    study.optimize(objective, n_trials=trials, catch=(ArithmeticError,))
    return url, study


def test_optuna_trials_without_reports_keep_their_values(
    tmp_path: Path, imported: Importing
) -> None:
    url, study = _optuna(tmp_path, lambda t: t.suggest_float("x", 0, 1) ** 2, 20)
    back = imported("--optuna", url, "theirs")
    assert list(back.trials["score"]) == [t.value for t in study.trials]
    assert set(back.trials["epochs"]) == {1}
    assert list(back.trials["seconds"]) == [t.duration.total_seconds() for t in study.trials]
    _same(back, read_optuna(url, "theirs"))


def test_the_value_an_optuna_trial_returns_is_its_score(
    tmp_path: Path, imported: Importing
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

    url, study = _optuna(tmp_path, objective, 4)
    back = imported("--optuna", url, "theirs")
    _same(back, read_optuna(url, "theirs"))
    xs = [t.params["x"] for t in study.trials]
    assert list(back.trials["score"])[:2] == [7.0 + xs[0], 2 * xs[1]]
    assert list(back.trials["epochs"]) == [3, 2, 2, 3]
    assert _curve(back, "theirs-0000") == {1: xs[0], 2: 2 * xs[0], 3: 7.0 + xs[0]}
    assert _curve(back, "theirs-0001") == {1: xs[1], 2: 2 * xs[1]}


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ("{x: {low: 0, high: 1}, y: {low: 0, high: 1}}", "trial 0 of Optuna study 'theirs' has no"),
        ("{x: {low: 0, high: 0.01}}", "is outside the space file's range [0, 0.01]"),
        ("{x: {low: 0, high: 1, step: 0.1}}", "is outside the space file's range [0, 1] in steps"),
    ],
)
def test_optuna_trials_that_do_not_fit_the_space_are_one_clear_line(
    tmp_path: Path, imported: Importing, knobs: str, says: str
) -> None:
    url, study = _optuna(tmp_path, lambda t: t.suggest_float("x", 0, 1), 0)
    study.enqueue_trial({"x": 0.123})
    study.optimize(lambda t: t.suggest_float("x", 0, 1), n_trials=1)
    file = tmp_path / "space.yaml"
    file.write_text(f"losses: {{mine: {{knobs: {knobs}}}}}", "utf-8")
    with pytest.raises(StudyError) as caught:
        imported("--optuna", url, "theirs", "--space", file)
    assert says in str(caught.value)
    assert not (tmp_path / "studies").exists()


def test_a_choice_of_nothing_is_a_choice(tmp_path: Path, imported: Importing) -> None:
    def objective(trial: optuna.Trial) -> float:
        smoothing = trial.suggest_categorical("smoothing", [None, 0.1])
        return (0.5 if smoothing is None else 0.4) + 0.1 * trial.suggest_float("x", 0, 1)

    url, study = _optuna(tmp_path, objective, 12)
    back = imported("--optuna", url, "theirs")
    assert list(back.trials["knob.smoothing"].astype(str)) == [
        str(t.params["smoothing"]) for t in study.trials
    ]
    units = gather(back, "theirs").units
    column = list(back.spaces["theirs"].distributions).index("smoothing")
    empty = [t.params["smoothing"] is None for t in study.trials]
    assert 0 < sum(empty) < 12
    assert len(set(zip(empty, units[:, column], strict=True))) == 2
    file = tmp_path / "space.yaml"
    knobs = "{smoothing: {choices: [null, 0.1]}, x: {low: 0, high: 1}}"
    file.write_text(f"losses: {{l: {{knobs: {knobs}, published: {{smoothing: null, x: 0.5}}}}}}")
    csv = _csv(tmp_path, "smoothing,x,score,epoch\n,0.1,0.5,1\nNone,0.2,0.5,1\n0.1,0.3,0.5,1\n")
    assert list(read_csv_trials(csv, file).trials["knob.smoothing"]) == ["None", "None", 0.1]


def test_a_log_is_of_one_loss_of_the_space_file_and_of_its_protocol(
    tmp_path: Path, imported: Importing
) -> None:
    url, _ = _optuna(tmp_path, lambda t: t.suggest_float("x", 0, 1), 3)
    file = tmp_path / "space.yaml"
    knobs = "{knobs: {x: {low: 0, high: 1}}}"
    file.write_text(
        f"dataset: cub\ntolerance: 0.02\nuntrained: 0.1\nlosses: {{a: {knobs}, b: {knobs}}}"
    )
    with pytest.raises(StudyError, match=r"has 2 losses: say which one was run with --loss \(a, b"):
        imported("--optuna", url, "theirs", "--space", file)
    with pytest.raises(StudyError, match="has no loss 'c'"):
        imported("--optuna", url, "theirs", "--space", file, "--loss", "c")
    back = imported("--optuna", url, "theirs", "--space", file, "--loss", "b")
    assert set(back.trials["loss"]) == set(back.spaces) == {"b"}
    assert back.protocol["dataset"] == "cub"
    assert back.protocol["tolerance"] == 0.02
    assert back.baseline == {"validation": {"score": 0.1}}


def test_optuna_trials_that_reported_nan_diverged(tmp_path: Path) -> None:
    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        trial.report(math.nan if trial.number == 1 else x, 1)
        if trial.number == 2:
            raise ArithmeticError
        return math.nan if trial.number == 1 else x

    url, _ = _optuna(tmp_path, objective, 3)
    assert list(read_optuna(url, "theirs").trials["state"]) == ["finished", "diverged", "failed"]


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


def test_a_tune_trial_that_was_started_again_is_read_once(tmp_path: Path) -> None:
    """Tune goes on in the same log after a crash: epochs come twice, and the error file stays."""
    space = Space("l", "", scientific={"lr": Knob(FloatDistribution(1e-5, 1e-1, log=True), "", "")})
    _tune_trial(tmp_path / "run", "t_0", [0.1, 0.2, 0.3], 1e-3)
    _tune_trial(tmp_path / "run", "t_1", [0.1, 0.2], 1e-2)
    _tune_trial(tmp_path / "run", "t_2", [0.1, 0.2], 1e-2)
    log = tmp_path / "run" / "t_1" / "result.json"
    again = [{"acc": v, "training_iteration": i} for i, v in ((2, 0.25), (3, 0.35))]
    cut = '\n{"acc": 0.4, "training_it'  # the machine was switched off
    log.write_text(log.read_text() + "\n".join(map(json.dumps, again)) + cut)
    for name in ("t_1", "t_2"):
        (tmp_path / "run" / name / "error.txt").write_text("boom")
    table = read_tune(tmp_path / "run", space, metric="acc")
    assert list(table.trials["state"]) == ["finished", "finished", "failed"]
    assert list(table.trials["epochs"]) == [3, 3, 2]
    assert _curve(table, "l-0001") == {1: 0.1, 2: 0.25, 3: 0.35}


def test_a_tune_metric_may_be_nested(tmp_path: Path) -> None:
    space = Space("l", "", scientific={"lr": Knob(FloatDistribution(1e-5, 1e-1, log=True), "", "")})
    _tune_trial(tmp_path / "run", "t_0", [], 1e-3)
    (tmp_path / "run" / "t_0" / "result.json").write_text('{"eval": {"acc": 0.5}}\n')
    assert list(read_tune(tmp_path / "run", space, metric="eval/acc").trials["score"]) == [0.5]


@pytest.mark.parametrize("name", ["../elsewhere", "<script>alert(1)</script>", ""])
def test_an_impossible_name_is_refused(
    tmp_path: Path, space_file: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    csv = _csv(tmp_path, "a,b,mode,score\n0.1,0.1,x,1\n")
    root = tmp_path / "studies"
    with pytest.raises(SystemExit) as done:
        main(["import", name, "--root", str(root), "--csv", str(csv), "--space", str(space_file)])
    assert done.value.code == 2
    assert "letters, digits" in capsys.readouterr().err
    assert not root.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["space.yaml", "trials.csv"]


def test_a_tune_folder_comes_back_from_its_store(tmp_path: Path, imported: Importing) -> None:
    _tune_trial(tmp_path / "run", "t_0", [0.1, 0.2, 0.3], 1e-3)
    _tune_trial(tmp_path / "run", "t_1", [0.1], 1e-2)
    _tune_trial(tmp_path / "run", "t_2", [0.1, math.nan], 1e-1)
    _tune_trial(tmp_path / "run", "t_3", [], 1e-4)
    file = tmp_path / "space.yaml"
    file.write_text("losses: {l: {knobs: {lr: {low: 1.0e-5, high: 0.1, log: true}}}}", "utf-8")
    back = imported("--tune", tmp_path / "run", "--space", file, "--metric", "acc")
    assert list(back.trials["state"]) == ["finished", "stopped", "diverged", "failed"]
    assert list(back.trials["epochs"]) == [3, 1, 2, 0]
    assert list(back.trials["score"])[:2] == [0.3, 0.1]
    assert list(back.trials["seconds"])[:3] == [3.0, 1.0, 2.0]
    file.write_text("losses: {l: {knobs: {lr: {low: 1.0e-5, high: 0.01}}}}", "utf-8")
    with pytest.raises(StudyError, match=r"`lr=0\.1` is outside"):
        imported("--tune", tmp_path / "run", "--space", file, "--metric", "acc", "--root", tmp_path)


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


def test_the_columns_of_a_csv_and_a_space_file_are_told(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from study.commands.import_trials import command
    from study.importing import CSV_COLUMNS, read_spaces

    said = CliRunner().invoke(command, ["--columns"])
    assert said.exit_code == 0
    for name, meaning in CSV_COLUMNS.items():
        assert any(
            line.startswith(name) and line.endswith(meaning) for line in said.output.splitlines()
        )
    example = tmp_path / "example.yaml"
    example.write_text(said.output.split("for example:")[1], "utf-8")
    spaces, protocol, untrained = read_spaces(example)
    assert list(spaces["my_loss"].searched) == ["lr", "pooling", "batch_size"]
    assert [c.name for c in spaces["my_loss"].claims] == ["lr-good"]
    assert (protocol["epochs"], untrained) == (40, 0.21)
