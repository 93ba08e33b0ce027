"""Winner registration: the network of the confirmed winner as a registered MLflow model."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pandas as pd

from study.runner.context import RunContext
from study.runner.trained_networks import CHECKPOINT_UNREADABLE_MESSAGE, load_trained_weights
from study.search.requests import confirm_seed, to_param_value
from study.trials.table import PARAM_PREFIX, TrialTable
from trainables.models.backbone import TimmBackbone
from trainables.models.embedding import EmbeddingModel
from trainables.training.context import TrainingContext
from trainables.training.restored_network import restore_network

if TYPE_CHECKING:
    from study.tracking.model_registry import FeatureInputs, ImageInputs


def register_winner(run_context: RunContext, table: TrialTable, loss: str) -> None:
    """Register the network of the winning loss at its confirmed point.

    Args:
        run_context: The run.
        table: The study's trials.
        loss: The loss in the report's headline; empty for none.
    """
    from study.tracking.model_registry import log_model

    study_dir, plan, training = run_context.study_dir, run_context.plan, run_context.training
    row = find_winning_trial(table, loss, seed=confirm_seed(plan, 0))
    if row is None:
        return
    distributions = plan.spaces[loss].distributions
    spec = plan.build_spec(
        loss,
        {k: to_param_value(d, row[PARAM_PREFIX + k]) for k, d in distributions.items()},
        trial=row["trial"],
        seed=int(row["seed"]),
        split="test",
        cache_dir=training.cache_dir,
        checkpoint_dir=study_dir.checkpoint_location(plan),
    )
    weights = load_trained_weights(spec)
    if weights is None:
        reason = CHECKPOINT_UNREADABLE_MESSAGE.format(spec.trial)
        run_context.display.show_warning(f"the winner's model is not registered: {reason}")
        return
    network, inputs = attach_backbone(training, restore_network(spec, training, weights))
    log_model(
        study_dir.tracking_uri(plan),
        study=plan.name,
        trial=spec.trial,
        network=network,
        inputs=inputs,
        tags={"loss": loss},
    )


def find_winning_trial(table: TrialTable, loss: str, *, seed: int) -> pd.Series | None:
    """Return the confirmation of a loss's best point whose network is kept; None if none is.

    Args:
        table: The study's trials.
        loss: The winner; empty for none.
        seed: Seed of the confirmations whose networks are kept.
    """
    from study.analyses.loss_comparison import select_confirmed_trials

    if not loss:
        return None
    trials = select_confirmed_trials(table, loss)
    is_finished = (trials["origin"] == "confirm") & (trials["state"] == "finished")
    trials = trials[is_finished & (trials["seed"] == seed)]
    return None if trials.empty else trials.sort_values("number").iloc[-1]


def attach_backbone(
    training: TrainingContext, network: EmbeddingModel
) -> tuple[EmbeddingModel, ImageInputs | FeatureInputs]:
    """Return a network that starts from images, and its inputs for the model signature.

    A trial with a frozen backbone trains on features; users of the registered model have images.
    """
    from study.tracking.model_registry import FeatureInputs, ImageInputs

    if network.backbone is None and training.prototype is not None:
        network = copy.deepcopy(network)
        network.backbone = training.prototype
    if isinstance(network.backbone, TimmBackbone):
        size = training.image_size
        return network, ImageInputs(size, size, network.backbone.mean, network.backbone.std)
    return network, FeatureInputs(network.head.in_features)
