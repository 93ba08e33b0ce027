"""The planner combines a study file with the search spaces of its losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from search_spaces import OPTIONAL_PARAMS, TRAINING_PARAMS, get_space
from search_spaces.space import SearchSpace
from study.config.loader import load_config, parse_config
from study.config.plan import Plan
from study.config.planner import build_plan
from study.errors import StudyError
from tests.support.study_files import MINIMAL_FILE, build_minimal_plan, write_study_file


@pytest.mark.parametrize("name", ["template.yaml", "quickstart.yaml"])
def test_the_files_of_the_package_are_valid_studies(name: str) -> None:
    from importlib.resources import files

    plan = build_plan(load_config(Path(str(files("study.config").joinpath(name)))))
    assert len(plan.losses) == 4
    assert all(plan.published_points(loss) for loss in plan.losses)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ("[proxy_ancor]", "did you mean 'proxy_anchor'"),
        ("[triplet+synthesis]", "needs a loss with proxies"),
        (
            "{proxy_anchor: {search: {alfa: [1, 2]}}}",
            "unknown hyperparameter 'alfa'; did you mean 'alpha'?",
        ),
        ("{proxy_anchor: {fixed: {alpha: 1}, search: {alpha: [1, 2]}}}", "both searched and fixed"),
        ("{proxy_anchor: {search: {batch_size: [1.5, 4]}}}", "must be an integer"),
        ("{soft_triple: {search: {centers: [1.5, 4]}}}", "must be an integer"),
        (
            "{proxy_anchor: {search: {batch_size: {low: 8, high: 16, step: 0.5}}}}",
            "in steps of 0.5",
        ),
        ("{proxy_anchor: {search: {epochs: [2, 6]}}}", "epochs cannot be searched"),
    ],
)
def test_unknown_losses_and_hyperparameters_are_named(
    losses: str, message: str, tmp_path: Path
) -> None:
    path = write_study_file(tmp_path, f"name: s\ndata: glyphs\nlosses: {losses}\n")
    with pytest.raises(StudyError) as error:
        build_plan(load_config(path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


FROZEN = "backbone: {name: conv4, frozen: true}"
FEATURES = "backbone: none"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{FROZEN}\ntraining: {{augment: light}}", "augment is set to light"),
        (f"{FROZEN}\ntraining: {{augment: {{choices: [none, light]}}}}", "augment is searched"),
        (f"{FROZEN}\ntraining: {{bn_freeze: stats}}", "bn_freeze is set to stats"),
        (f"{FROZEN}\ntraining: {{backbone_lr: [1e-4, 1e-2]}}", "backbone_lr is searched"),
        (f"{FEATURES}\ntraining: {{augment: papers}}", "augment is set to papers"),
        (f"{FEATURES}\ntraining: {{pooling: max}}", "pooling is set to max"),
    ],
)
def test_hyperparameters_without_effect_are_rejected(
    text: str, message: str, tmp_path: Path
) -> None:
    path = write_study_file(tmp_path, f"{MINIMAL_FILE}{text}\n")
    reason = (
        "the backbone is frozen" if text.startswith(FROZEN) else "the data are precomputed features"
    )
    with pytest.raises(StudyError) as error:
        build_plan(load_config(path))
    assert f": {message} but has no effect because {reason}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("losses", "more", "message"),
    [
        (
            "[triplet]",
            "training: {negative_share: [0.1, 1.0]}",
            "training: negative_share has no effect",
        ),
        ("[triplet, contrastive]", "training: {negative_share: 0.1}", "training: negative_share"),
        ("{triplet: {search: {negative_share: [0.1, 1.0]}}, circle: }", "", "losses.triplet: neg"),
        ("{triplet: {fixed: {negative_share: 0.1}}, circle: }", "", "losses.triplet: negative_"),
        ("[triplet]", "training: {proxy_lr: 0.1}", "training: proxy_lr has no effect because"),
        ("[margin, 'pml:CircleLoss']", "training: {proxy_lr: [1e-4, 1]}", "training: proxy_lr"),
        (
            "{triplet: {search: {proxy_lr: }}, circle: }",
            "",
            "losses.triplet: proxy_lr has no effect",
        ),
        (
            "{triplet: {fixed: {proxy_lr: 0.01}}, circle: }",
            "",
            "losses.triplet: proxy_lr has no effect",
        ),
        ("[circle]", "resources: {shard_proxies: true}", "but ranks_per_trial is 1"),
    ],
)
def test_settings_of_proxies_are_rejected_for_losses_without_them(
    losses: str, more: str, message: str, tmp_path: Path
) -> None:
    path = write_study_file(tmp_path, f"name: s\ndata: glyphs\nlosses: {losses}\n{more}\n")
    with pytest.raises(StudyError) as error:
        build_plan(load_config(path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("share", [0.1, [0.1, 1.0]])
def test_a_common_negative_share_applies_to_proxy_losses_only(share: Any) -> None:
    losses = ["triplet", "pml:ProxyAnchorLoss", "proxy_anchor", "circle+synthesis"]
    content = {"pml:ProxyAnchorLoss": {"search": {"alpha": [8, 64]}}}
    plan = build_minimal_plan(
        {"losses": {k: content.get(k) for k in losses}, "training": {"negative_share": share}}
    )
    affected = [
        loss
        for loss in losses
        if "negative_share" in {*plan.spaces[loss].searched_params, *plan.spaces[loss].fixed}
    ]
    assert affected == ["proxy_anchor", "circle+synthesis"]
    build_minimal_plan({"losses": ["triplet"], "training": {"negative_share": 1}})


@pytest.mark.parametrize("rate", [0.1, [0.1, 1.0]])
def test_a_common_proxy_rate_applies_to_losses_with_proxies_only(rate: Any) -> None:
    losses = ["triplet", "pml:CircleLoss", "pml:ProxyAnchorLoss", "proxy_anchor", "circle"]
    params = {"pml:CircleLoss": "gamma", "pml:ProxyAnchorLoss": "alpha"}
    content = {loss: {"search": {param: [8, 64]}} for loss, param in params.items()}
    plan = build_minimal_plan(
        {"losses": {k: content.get(k) for k in losses}, "training": {"proxy_lr": rate}}
    )
    spaces = plan.spaces.items()
    affected = [loss for loss, s in spaces if "proxy_lr" in {*s.searched_params, *s.fixed}]
    assert affected == losses[2:]


@pytest.mark.parametrize("section", ["resnet50", "{pretrained: true}", "{frozen: true}"])
def test_a_backbone_for_features_is_rejected(section: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    text = "name: s\ndata: {name: arrays, path: x.npy, labels: y.npy}\nlosses: [triplet]\n"
    path = write_study_file(tmp_path, f"{text}backbone: {section}\n")
    with pytest.raises(StudyError, match="is not used because the data are precomputed features"):
        build_plan(load_config(path))
    # The default section, as in the study.yaml of every study directory, is accepted.
    for section in ("none", "{name: conv4, frozen: false}"):
        build_plan(load_config(write_study_file(tmp_path, f"{text}backbone: {section}\n")))


def test_hyperparameters_without_effect_may_be_set_to_their_inert_values(tmp_path: Path) -> None:
    inert = "training: {augment: none, bn_freeze: none, backbone_lr: 0, warmup_epochs: 0}"
    plan = build_plan(load_config(write_study_file(tmp_path, f"{MINIMAL_FILE}{FROZEN}\n{inert}\n")))
    for loss in plan.losses:
        assert not {"augment", "backbone_lr"} & set(plan.spaces[loss].searched_params)


def test_integer_settings_are_searched_as_integers() -> None:
    plan = build_minimal_plan({"training": {"embedding_dim": [16, 64], "warmup_epochs": [0, 2]}})
    distributions = plan.spaces["triplet"].distributions
    assert isinstance(distributions["embedding_dim"], IntDistribution)
    assert isinstance(distributions["warmup_epochs"], IntDistribution)


def test_fixed_training_values_are_not_searched() -> None:
    plan = build_minimal_plan({"training": {"backbone_lr": 0.001}})
    assert "backbone_lr" not in plan.spaces["proxy_anchor"].searched_params
    settings, _ = plan.resolve_settings("proxy_anchor", plan.example_point("proxy_anchor"))
    assert settings.backbone_lr == 0.001


def test_training_ranges_are_searched_by_every_loss() -> None:
    plan = build_minimal_plan({"training": {"weight_decay": [1e-5, 1e-2, "log"], "epochs": 3}})
    for loss in plan.losses:
        assert "weight_decay" in plan.spaces[loss].searched_params
        assert plan.spaces[loss].published, "the published points take the default decay"
        settings, _ = plan.resolve_settings(
            loss, {**plan.example_point(loss), "weight_decay": 5e-3}
        )
        assert settings.weight_decay == 5e-3


def space_with(search: Any) -> SearchSpace:
    content = {"name": "s", "data": "glyphs", "losses": {"norm_softmax": {"search": search}}}
    return build_plan(parse_config(content)).spaces["norm_softmax"]


def test_a_hyperparameter_without_a_range_has_its_default_range() -> None:
    space = space_with(["label_smoothing", "pooling"])
    assert space.searched_params["label_smoothing"].symbol == "ε"
    assert space.distributions["label_smoothing"] == OPTIONAL_PARAMS["label_smoothing"].distribution
    assert space.distributions["pooling"] == TRAINING_PARAMS["pooling"].distribution
    space = space_with({"label_smoothing": [0.0, 0.2], "weight_decay": None})
    assert space.searched_params["label_smoothing"].symbol == "ε"
    assert space.distributions["label_smoothing"] == FloatDistribution(0.0, 0.2)
    assert space.searched_params["weight_decay"].symbol == "wd"
    with pytest.raises(StudyError, match="augment has no default range"):
        space_with(["augment"])


def test_a_space_variant_of_a_loss() -> None:
    """It takes precedence over `training`; the section of the loss takes precedence over it."""
    training = {"batch_size": 64, "embedding_dim": 8, "backbone_lr": [1e-5, 1e-4, "log"]}
    losses = {"proxy_nca_pp": {"space": "official", "fixed": {"clip_grad": 1.0}}, "triplet": {}}
    plan = build_minimal_plan({"losses": losses, "training": training})
    official = get_space("proxy_nca_pp", variant="official")
    space = plan.spaces["proxy_nca_pp"]
    assert space.distributions == official.distributions
    assert space.fixed == {**official.fixed, "embedding_dim": 8, "clip_grad": 1.0}
    assert space.published[0].values["proxy_lr"] == 4e2
    assert (
        plan.resolve_settings("proxy_nca_pp", plan.example_point("proxy_nca_pp"))[0].adam_eps == 1.0
    )
    assert plan.spaces["triplet"].fixed["batch_size"] == 64
    assert Plan.from_dict(plan.to_dict()) == plan
    frozen = build_minimal_plan({"losses": losses, "backbone": {"name": "conv4", "frozen": True}})
    assert frozen.spaces["proxy_nca_pp"].fixed["backbone_lr"] == 0.0
    with pytest.raises(StudyError, match="no space variant 'oficial'; known: official"):
        build_minimal_plan({"losses": {"proxy_nca_pp": {"space": "oficial"}}})
    with pytest.raises(StudyError, match="no space variant 'official'; known: none"):
        build_minimal_plan({"losses": {"circle": {"space": "official"}}})
    with pytest.raises(StudyError, match="did you mean 'space'"):
        build_minimal_plan({"losses": {"triplet": {"spce": "official"}}})
