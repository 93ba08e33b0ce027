"""Analyses: pure functions from a trial table to tables of results.

`ANALYSES` names every analysis. Most of them fill the field of the same name in
`study.analyses.findings`; `study.analyses.findings.analyse_study` runs them all.

To add an analysis: write one module, add one line here and one field to the findings, and let its
test inherit `tests.support.analysis_contract.AnalysisContract`.
"""

from __future__ import annotations

from typing import NamedTuple


class Analysis(NamedTuple):
    """An analysis.

    Args:
        question: The question it answers, in one line.
        function: The function that answers it, as `module:name`. A string, so that this package
            imports nothing heavy.
    """

    question: str
    function: str


ANALYSES: dict[str, Analysis] = {
    # The study
    "leaderboard": Analysis(
        "Which loss scored best in the search, and with how much effort?",
        "study.analyses.leaderboard:analyse_leaderboard",
    ),
    "optimization_history": Analysis(
        "How fast did the search improve?",
        "study.analyses.optimization_history:analyse_optimization_history",
    ),
    "confirmed_scores": Analysis(
        "What do the tuned and the published points score on the test classes?",
        "study.analyses.loss_comparison:summarise_confirmed_scores",
    ),
    "epoch_selection_bias": Analysis(
        "How much would reporting the best test epoch inflate the score of each loss?",
        "study.analyses.epoch_selection_bias:analyse_epoch_selection_bias",
    ),
    "pairwise_tests": Analysis(
        "Which differences between two losses are significant?",
        "study.analyses.loss_comparison:compare_losses_pairwise",
    ),
    "best_probabilities": Analysis(
        "How probable is it that a loss is the best one?",
        "study.analyses.loss_comparison:estimate_probability_best",
    ),
    "noise_floor": Analysis(
        "How far apart are two names of the same loss?",
        "study.analyses.loss_comparison:measure_noise_floor",
    ),
    "epoch_cost": Analysis(
        "How long does an epoch of each loss take?",
        "study.analyses.loss_comparison:summarise_epoch_cost",
    ),
    "claims": Analysis(
        "Do the claims of the papers hold in this study?",
        "study.analyses.claims.judge:analyse_claims",
    ),
    "settling_trials": Analysis(
        'Which trials would turn a "cannot tell" into a verdict?',
        "study.analyses.claims.settling_trials:suggest_settling_trials",
    ),
    "suggested_trials": Analysis(
        "Which further trials would narrow the answers most?",
        "study.analyses.next_trials:suggest_trials",
    ),
    "diagnostics": Analysis(
        "What is wrong with the study that its scores do not show?",
        "study.analyses.diagnostics:check_results",
    ),
    "equivalent_losses": Analysis(
        "Which losses are the same function under different names, trained identically?",
        "study.analyses.equivalent_losses:find_equivalent_losses",
    ),
    # One loss
    "seed_noise": Analysis(
        "How much does the score vary between seeds?",
        "study.analyses.surrogate.seed_noise:estimate_seed_noise",
    ),
    "surrogate": Analysis(
        "Which model describes the trials, and can it be used at all?",
        "study.analyses.surrogate.surrogate:fit_surrogate",
    ),
    "importance": Analysis(
        "Which hyperparameters affect the score, alone and in pairs?",
        "study.analyses.importance:analyse_importance",
    ),
    "response_curves": Analysis(
        "How does the score respond to one hyperparameter, and which values are safe?",
        "study.analyses.response_curves:analyse_response_curves",
    ),
    "stable_ranges": Analysis(
        "Over which values of a hyperparameter does the score stay within the tolerance?",
        "study.analyses.stable_ranges:analyse_stable_ranges",
    ),
    "tuning": Analysis(
        "Is tuning worth it, and which hyperparameters need no tuning?",
        "study.analyses.tunability:analyse_tunability",
    ),
    "surfaces": Analysis(
        "How do two hyperparameters act together?",
        "study.analyses.interactions:analyse_interaction",
    ),
    "sweeps": Analysis(
        "What did one-at-a-time sweeps measure?",
        "study.analyses.sweeps:analyse_sweeps",
    ),
    "divergence": Analysis(
        "Where does training diverge?",
        "study.analyses.divergence:analyse_divergence",
    ),
    "collapsed_trials": Analysis(
        "Which trials end below the untrained backbone?",
        "study.analyses.divergence:find_collapsed_trials",
    ),
    "expected_best": Analysis(
        "How good a score can one expect after tuning with n trials?",
        "study.analyses.expected_best:analyse_expected_best",
    ),
    "early_stopping": Analysis(
        "Was it safe to stop trials early?",
        "study.analyses.early_stopping:analyse_early_stopping",
    ),
    # Several studies
    "common_ranges": Analysis(
        "Which stable ranges hold in every study?",
        "study.analyses.cross_study:find_common_ranges",
    ),
    "rank_agreement": Analysis(
        "Do the studies rank losses and hyperparameters in the same order?",
        "study.analyses.cross_study:analyse_rank_agreement",
    ),
}
