"""The CSV importer: trials and epochs, defaults, and errors of one line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from study.errors import StudyError
from study.importers import read_csv_trials
from study.report.writer import write_report
from study.trials.table import TRIAL_COLUMNS
from tests.support.imported_tables import (
    SPACE,
    ImportTrials,
    assert_same_trials,
    get_curve,
    write_csv,
)
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)


def test_csv_of_epochs_becomes_trials_with_curves(tmp_path: Path, space_file: Path) -> None:
    lines = ["trial,loss,a,b,mode,score,epoch,seed,state,origin"]
    lines += [f"t1,mine,0.1,0.2,x,{0.1 * e},{e},3,,random" for e in (1, 2, 27)]
    lines += ["t2,mine,0.3,0.4,y,0.2,9,0,,", "t3,mine,0.5,0.6,y,,4,0,,"]
    table = read_csv_trials(write_csv(tmp_path, "\n".join(lines)), space_file)
    trials = table.trials.set_index("trial")
    assert set(TRIAL_COLUMNS) <= set(table.trials.columns)
    assert list(trials["state"]) == ["finished", "stopped", "diverged"]
    assert trials.loc["t1", "score"] == pytest.approx(2.7)
    assert trials.loc["t1", "origin"] == "sobol"
    assert trials.loc["t1", "seed"] == 3
    assert list(table.curves[table.curves["trial"] == "t1"]["epoch"]) == [1, 2, 27]
    assert table.baseline == {"validation": {"map_at_r": 0.2}}
    assert table.spaces["mine"].nuisance.keys() == {"b"}


@pytest.mark.slow
def test_a_report_of_an_imported_csv(tmp_path: Path) -> None:
    space = make_unit_space("mine", ["a", "b"])
    made = make_table(
        [SyntheticLoss(space, make_additive_response([0.3, 0.1]))], SyntheticPlan(trials=24)
    )
    frame = made.trials.rename(columns={"epochs": "epoch", "knob.a": "a", "knob.b": "b"})
    path = tmp_path / "trials.csv"
    frame[["loss", "a", "b", "score", "epoch", "seed", "state", "origin"]].to_csv(path, index=False)
    file = tmp_path / "space.yaml"
    params = "{a: {low: 0.0, high: 1.0}, b: {low: 0.0, high: 1.0}}"
    file.write_text(f"epochs: 27\nlosses: {{mine: {{knobs: {params}}}}}", "utf-8")
    table = read_csv_trials(path, file)
    written = write_report(table, tmp_path / "out", formats=("png",))
    content = json.loads(written.json_path.read_text("utf-8"))
    assert content["losses"]["mine"]["importance"][0]["knob"] == "a"


@pytest.mark.parametrize(
    ("csv", "says"),
    [
        ("a,b,mode,score\n", "has no rows"),
        ("a,b,mode\n0.1,0.1,x\n", "no column `score`"),
        ("a,b,score\n0.1,0.1,1\n", "no column for hyperparameter 'mode'"),
        ("a,b,mode,score,sede\n0.1,0.1,x,1,1\n", "did you mean 'seed'?"),
        ("a,b,mode,score\n7,0.1,x,1\n", "`a=7` is outside"),
        ("a,b,mode,score\n0.1,0.1,z,1\n", "`mode=z` is outside"),
        ("a,b,mode,score,loss\n0.1,0.1,x,1,yours\n", "loss 'yours' is not in the space file; "),
        ("a,b,mode,score,state\n0.1,0.1,x,1,done\n", "unknown state 'done'"),
        ("a,b,mode,score\n0.1,0.1,x,high\n", "Unable to parse"),
        ("a,b,mode,score,seconds\n0.1,0.1,x,1,long\n", "Unable to parse"),
        (
            "a,b,mode,score,epoch\n0.1,0.1,x,1,1.5\n",
            "epoch must be a whole number of at least 0, got 1.5",
        ),
        (
            "a,b,mode,score,epoch\n0.1,0.1,x,1,-1\n",
            "epoch must be a whole number of at least 0, got -1",
        ),
        ("trial,a,b,mode,score\nt,0.1,0.1,x,1\n,0.1,0.1,x,1\n", "row 2 has no `trial`"),
        ("trial,a,b,mode,score\nt,0.1,0.1,x,1\nt,0.1,0.1,x,2\n", "t: two rows have epoch 27"),
        ("", "cannot read"),
        ("a,knob.a,b,mode,score\n0.1,0.2,0.1,x,1\n", "`a` and `knob.a` are the same"),
        ("a,b,mode,score,seed\n0.1,0.1,x,1,1.5\n", "seed must be a whole number, got 1.5"),
        (
            "a,b,mode,score,seed\n0.1,0.1,x,1,99999999999999999999\n",
            "seed must be a whole number, got 1e+20",
        ),
        ("a,b,mode,score,epoch\n0.1,0.1,x,1,1e300\n", "got 1e+300"),
        (
            "a,b,mode,score,epoch\n0.1,0.1,x,1,30\n",
            "mine-0000 has 30 epochs, but the space file's `epochs` is 27",
        ),
        (
            "a,b,mode,score,state\n0.1,0.1,x,,finished\n",
            "state is `finished`, but there is no score",
        ),
    ],
)
def test_bad_csv_is_one_clear_line(tmp_path: Path, space_file: Path, csv: str, says: str) -> None:
    with pytest.raises(StudyError) as caught:
        read_csv_trials(write_csv(tmp_path, csv), space_file)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("second", "column"),
    [("0.2,0.1,x,0,", "a"), ("0.1,0.1,y,0,", "mode"), ("0.1,0.1,x,1,", "seed"),
     ("0.1,0.1,x,0,test", "split"), ("0.1,0.1,x,0,,sobol", "origin")],
)  # fmt: skip
def test_rows_of_one_trial_that_disagree_are_one_clear_line(
    tmp_path: Path, space_file: Path, second: str, column: str
) -> None:
    head = "trial,epoch,score,a,b,mode,seed,split,origin"
    lines = [head, "t8,1,0.5,0.1,0.1,x,0,,", f"t8,2,1,{second}"]
    with pytest.raises(StudyError, match=rf"t8: rows disagree in `{column}`"):
        read_csv_trials(write_csv(tmp_path, "\n".join(lines)), space_file)


@pytest.mark.parametrize("column", ["", ",epoch"])
def test_epochs_of_a_csv_are_the_space_files_by_default(
    tmp_path: Path, space_file: Path, column: str
) -> None:
    cells = ["", ""] if not column else [",", ",9"]
    lines = [f"a,b,mode,score{column}", *(f"0.1,0.1,x,0.5{cell}" for cell in cells)]
    csv = write_csv(tmp_path, "\n".join(lines))
    trials = read_csv_trials(csv, space_file).trials
    assert list(trials["epochs"]) == [27, 9 if column else 27]
    assert list(trials["state"]) == ["finished", "stopped" if column else "finished"]
    space_file.write_text(SPACE.replace("epochs: 27\n", ""), "utf-8")
    with pytest.raises(StudyError, match="mine-0000 has no epoch; add a column `epoch`, or"):
        read_csv_trials(csv, space_file)


def test_without_epochs_in_the_space_file_the_longest_trial_is_full(
    tmp_path: Path, space_file: Path
) -> None:
    space_file.write_text(SPACE.replace("epochs: 27\n", ""), "utf-8")
    csv = write_csv(tmp_path, "a,b,mode,score,epoch\n0.1,0.1,x,0.5,3\n0.1,0.1,x,0.5,9\n")
    table = read_csv_trials(csv, space_file)
    assert table.protocol["epochs"] == 9
    assert list(table.trials["state"]) == ["stopped", "finished"]


@pytest.mark.slow
def test_a_csv_comes_back_from_its_store(
    tmp_path: Path, space_file: Path, import_trials: ImportTrials
) -> None:
    """Trial keys that restart for each loss, integers that one loss lacks, metrics, seconds."""
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
    csv = write_csv(tmp_path, "\n".join(lines))
    stored = import_trials("--csv", csv, "--space", space_file)
    assert_same_trials(stored, read_csv_trials(csv, space_file))
    trials = stored.trials.set_index("trial")
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
    assert get_curve(stored, "mine-01") == {9: 0.1, 27: 0.3}


def test_the_command_prints_the_columns_and_a_space_file(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from study.cli.import_trials import import_command
    from study.importers import CSV_COLUMNS, SPACE_FILE_EXAMPLE, read_spaces

    result = CliRunner().invoke(import_command, ["--columns"])
    assert result.exit_code == 0
    for name, meaning in CSV_COLUMNS.items():
        assert any(
            line.startswith(name) and line.endswith(meaning) for line in result.output.splitlines()
        )
    example = tmp_path / "example.yaml"
    assert result.output.endswith(SPACE_FILE_EXAMPLE)
    example.write_text(SPACE_FILE_EXAMPLE, "utf-8")
    spaces, protocol, untrained = read_spaces(example)
    assert list(spaces["my_loss"].searched_params) == ["lr", "pooling", "batch_size"]
    assert [c.name for c in spaces["my_loss"].claims] == ["lr-good"]
    assert (protocol["epochs"], untrained) == (40, 0.21)
