"""What a person reads on the terminal when a study ends."""

from __future__ import annotations

from dataclasses import replace

from study.analyses.inflation import analyse
from study.reporting import confirmed_text
from study.table import TrialTable


def test_confirmed_scores_come_with_the_inflation_they_were_spared(demo: TrialTable) -> None:
    text = confirmed_text(demo)
    assert "on test classes after the last epoch" in text
    added = text.rstrip().splitlines()[-1]
    for row in analyse(demo).to_dict("records"):
        assert f"{row['loss']} +{row['inflation']:.4f}" in added
    for loss in demo.spaces:
        assert f"  {loss} " in text


def test_nothing_is_said_of_test_classes_before_they_are_read(demo: TrialTable) -> None:
    search = demo.trials[demo.trials["split"] != "test"]
    assert confirmed_text(replace(demo, trials=search)) == ""
