"""Tests of the text that is printed when a study ends."""

from __future__ import annotations

from dataclasses import replace

from study.analyses.epoch_selection_bias import analyse_epoch_selection_bias
from study.analyses.leaderboard import analyse_leaderboard
from study.analyses.loss_comparison import summarise_confirmed_scores
from study.cli.report_text import format_confirmed_scores, format_leaderboard
from study.trials.table import TrialTable


def test_confirmed_scores_are_printed_with_the_bias_of_epoch_selection(demo: TrialTable) -> None:
    bias = analyse_epoch_selection_bias(demo)
    text = format_confirmed_scores(demo, summarise_confirmed_scores(demo), bias)
    assert "on test classes after the last epoch" in text
    added = text.rstrip().splitlines()[-1]
    for row in bias.to_dict("records"):
        assert f"{row['loss']} +{row['inflation']:.4f}" in added
    for loss in demo.spaces:
        assert f"  {loss} " in text


def test_nothing_is_printed_before_a_point_is_confirmed(demo: TrialTable) -> None:
    search = demo.trials[demo.trials["split"] != "test"]
    table = replace(demo, trials=search)
    bias = analyse_epoch_selection_bias(table)
    assert format_confirmed_scores(table, summarise_confirmed_scores(table), bias) == ""


def test_the_leaderboard_has_a_line_per_loss_and_the_untrained_backbone(demo: TrialTable) -> None:
    board = analyse_leaderboard(demo)
    _, title, header, *lines = format_leaderboard(demo, board).splitlines()
    assert title == "glyphs-demo: map_at_r on validation classes"
    assert header.split() == ["best", "repeated", "published", "trials"]
    for row, line in zip(board.to_dict("records"), lines, strict=True):
        assert line.startswith(f"  {row['loss']}")
        assert f"{row['best']:.4f}" in line
    (untrained,) = (line for line in lines if line.startswith("  untrained backbone"))
    assert len(untrained.split()) == 3, "only its score"
