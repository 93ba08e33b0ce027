"""A study file means what it says, or says what is wrong in one line."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from search_spaces import EXTRA, TRAINING_KNOBS, get_space
from search_spaces.space import Space
from study.errors import StudyError
from study.jobs import Job
from study.plan import Plan, load_plan, save_plan
from study.planning import build_plan
from study.read_file import parse_study, read_study_file
from trainables.settings import TrialSpec

GOOD = "name: s\ndata: glyphs\nlosses: [proxy_anchor, triplet]\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_are_written_down(tmp_path: Path) -> None:
    file = read_study_file(write(tmp_path, GOOD))
    assert file.search.sampler == "auto"
    assert file.search.sobol_share == 0.4
    assert file.protocol.objective == "map_at_r"
    assert list(file.losses) == ["proxy_anchor", "triplet"]


def test_nmi_is_measured_only_when_asked_for(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="'nmi' is not measured"):
        read_study_file(write(tmp_path, GOOD + "protocol: {objective: nmi}\n"))
    asked = GOOD + "protocol: {objective: nmi, nmi: true}\n"
    plan = build_plan(read_study_file(write(tmp_path, asked)))
    job = Job("t-0", "triplet", 0, "published", plan.example("triplet"), seed=0)
    spec = plan.trial_spec(job, cache_dir=tmp_path, checkpoint_dir="")
    assert spec.nmi
    assert TrialSpec.from_dict(spec.to_dict()) == spec


def test_learning_rates_without_a_dot_are_numbers(tmp_path: Path) -> None:
    file = read_study_file(write(tmp_path, GOOD + "training: {proxy_lr: 1e-4}\n"))
    assert file.training["proxy_lr"] == 1e-4


def test_overrides_reach_every_depth(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    file = read_study_file(
        path,
        ["search.trials=7", "losses.proxy_anchor.fixed.delta=0.2", "data.classes=220", "name=t"],
    )
    assert file.search.trials == 7
    assert file.losses["proxy_anchor"].fixed == {"delta": 0.2}
    assert file.data.options == {"classes": 220}
    assert file.name == "t"


def test_relative_paths_are_meant_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "pictures").mkdir()
    text = "name: s\ndata: {name: folder, path: PATH}\nlosses: [triplet]\n"
    monkeypatch.chdir(tmp_path / "here")
    near = read_study_file(write(tmp_path, text.replace("PATH", "pictures")))
    assert near.data.options["path"] == str(tmp_path / "pictures")
    other = read_study_file(write(tmp_path, text.replace("PATH", "elsewhere")))
    assert other.data.options["path"] == str(tmp_path / "here" / "elsewhere")
    fixed = read_study_file(write(tmp_path, text.replace("PATH", "/data/x")))
    assert fixed.data.options["path"] == "/data/x"


@pytest.mark.parametrize("name", ["template.yaml", "quickstart.yaml"])
def test_the_files_we_ship_are_valid_studies(name: str) -> None:
    from importlib.resources import files

    plan = build_plan(read_study_file(Path(str(files("study").joinpath(name)))))
    assert len(plan.losses) == 4
    assert all(plan.published(loss) for loss in plan.losses)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("serch: {trials: 3}", "unknown key `serch`; did you mean 'search'?"),
        ("search: {trails: 3}", "unknown key `search.trails`; did you mean 'trials'?"),
        ("search: {trials: 0}", "`search.trials`"),
        ("search: {sampler: bayes}", "'tpe'"),
        ("search: {stop_early: {grace: 1}}", "did you mean 'grace_epochs'?"),
        ("protocol: {objective: recall_at_16}", "objective 'recall_at_16' is not measured"),
        ("protocol: {folds: 3}", "`protocol.folds`"),
        ("resources: {cpus_per_trial: 0}", "`resources.cpus_per_trial`"),
        ("resources: {keep_mib: 0}", "`resources.keep_mib`"),
        ("resources: {keep_mib: .inf}", "`resources.keep_mib`"),
        ("name: 'a/b'", "key 'name' appears twice"),
        ("training: [1]", "`training`"),
        ("training: {head_lr: [1, 2, cubic]}", "`training.head_lr`: the third entry of a range"),
        ("training: {head_lr: [2, 1]}", "`training.head_lr`: `low <= high` must hold"),
        ("training: {head_lr: {low: 1, hihg: 2}}", "`training.head_lr.hihg`; did you mean 'high'"),
        ("training: {head_lr: {low: 0, high: 1, step: 0}}", "greater than 0"),
        ("training: {head_lr: {low: 0, high: 1, step: -1}}", "greater than 0"),
        ("training: {head_lr: [0, .inf]}", "`training.head_lr.high`: input should be a finite"),
        ("training: {head_lr: [.nan, 1]}", "`training.head_lr.low`: input should be a finite"),
        ("training: {head_lr: {choices: [0.1, .inf]}}", "`choices` must be finite"),
        ("training: {head_lr: {choices: [1, 1.0]}}", "`choices` must differ"),
        ("training: {head_lr: {choices: [1, 2], low: 1}}", "either choices or low and high"),
        ("training: {head_lr: {choices: [1, 2], log: true}}", "choices have no log"),
        ("training: {layer_norm: {choices: [[a]]}}", "a number, a word, true or false"),
        ("training: {head_lr: }", "a number, a word, true or false"),
        ("training: {head_lr: 2024-01-01}", "a number, a word, true or false"),
        ("tracking: {uri: 'foo://bar'}", "http(s)://HOST"),
        ("tracking: {uri: 'foo://me:secret@bar'}", "foo://me:***@bar"),
        ("tracking: {uri: 'postgresql://me:secret@db:abc/x'}", "'postgresql://me:***@db:abc/x'"),
        ("tracking: {uri: 'postgresql://me:secret@db:70000/x'}", "host and port"),
        ("tracking: {uri: 'https://[::1'}", "host and port of the tracking store cannot be read"),
        ("tracking: {uri: 'https://'}", "host and port"),
        ("tracking: {uri: 'sqlite:///'}", "is a file, sqlite:///PATH"),
        ("tracking: {uri: 'sqlite://'}", "is a file, sqlite:///PATH"),
        ("tracking: {uri: 'sqlite:///:memory:'}", "is a file, sqlite:///PATH"),
        ("x: " + 2000 * "[" + 2000 * "]", "nested too deeply"),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(StudyError) as error:
        read_study_file(write(tmp_path, GOOD + text + "\n"))
    assert message in str(error.value)
    assert "boolean" not in str(error.value)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ("[proxy_ancor]", "did you mean 'proxy_anchor'"),
        ("[triplet+synthesis]", "needs a loss with proxies"),
        ("[triplet, triplet]", "listed twice"),
        ("[]", "at least one loss"),
        ("{proxy_anchor: {search: {alfa: [1, 2]}}}", "unknown knob 'alfa'; did you mean 'alpha'?"),
        ("{proxy_anchor: {search: {alpha: [20, 2]}}}", "`low <= high` must hold"),
        ("{proxy_anchor: {search: {alpha: [0, 2, log]}}}", "`low > 0`"),
        ("{proxy_anchor: {search: {alpha: 3}}}", "`losses.proxy_anchor.search.alpha`"),
        ("{proxy_anchor: {fixed: {alpha: 1}, search: {alpha: [1, 2]}}}", "both searched and fixed"),
        ("{proxy_anchor: {fixed: {pooling: median}}}", "avg, max, avg+max"),
        ("{proxy_anchor: {fixed: {batch_size: 2, images_per_class: 4}}}", "images_per_class"),
        ("{proxy_anchor: {search: {batch_size: [1.5, 4]}}}", "whole number"),
        ("{soft_triple: {search: {centers: [1.5, 4]}}}", "whole number"),
        (
            "{proxy_anchor: {search: {batch_size: {low: 8, high: 16, step: 0.5}}}}",
            "in steps of 0.5",
        ),
        ("[[a]]", "a loss is listed by its name, but got ['a']"),
        ("{proxy_anchor: {search: {epochs: [2, 6]}}}", "epochs cannot be searched"),
        ("{proxy_anchor: {search: {head_lr: [-1, 0.1]}}}", "`head_lr >= 0` must hold"),
        ("{proxy_anchor: {search: {head_lr: {choices: [-0.1, 0.1]}}}}", "`head_lr >= 0` must hold"),
        ("{proxy_anchor: {search: {head_lr: {choices: [x, y]}}}}", "`head_lr` is of type float"),
        ("{proxy_anchor: {search: {alpha: [-5, 5]}}}", "`alpha > 0` must hold"),
        ("{proxy_anchor: {search: {alpha: [-5, 5, log]}}}", "`low > 0`"),
        ("{proxy_anchor: {search: {alpha: {choices: [x, y]}}}}", "must be a finite number"),
        ("{proxy_anchor: {fixed: {alpha: abc}}}", "must be a finite number"),
        ("{proxy_anchor: {fixed: {alpha: .nan}}}", "must be a finite number"),
        ("{proxy_anchor: {fixed: {alpha: true}}}", "must be a finite number"),
        ("{proxy_anchor: {fixed: {alpha: -5}}}", "`alpha > 0` must hold"),
        ("{proxy_anchor: {fixed: {head_lr: .nan}}}", "`head_lr` must be finite"),
        ("{proxy_anchor: {fixed: {augment: papre}}}", "did you mean 'papers'?"),
        ("{proxy_anchor: {search: {augment: {choices: [none, x]}}}}", "unknown `augment` 'x'"),
        (
            "{proxy_anchor: {fixed: {batch_size: 8}, search: {images_per_class: [2, 16]}}}",
            "images_per_class=16, batch_size=8",
        ),
    ],
)
def test_wrong_losses_and_knobs_are_named(losses: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"name: s\ndata: glyphs\nlosses: {losses}\n")
    with pytest.raises(StudyError) as error:
        build_plan(read_study_file(path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


STILL = "backbone: {name: conv4, frozen: true}"
FEATURES = "backbone: none"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{STILL}\ntraining: {{augment: light}}", "augment is set to light"),
        (f"{STILL}\ntraining: {{augment: {{choices: [none, light]}}}}", "augment is searched"),
        (f"{STILL}\ntraining: {{bn_freeze: stats}}", "bn_freeze is set to stats"),
        (f"{STILL}\ntraining: {{backbone_lr: [1e-4, 1e-2]}}", "backbone_lr is searched"),
        (f"{FEATURES}\ntraining: {{augment: papers}}", "augment is set to papers"),
        (f"{FEATURES}\ntraining: {{pooling: max}}", "pooling is set to max"),
    ],
)
def test_knobs_that_change_nothing_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"{GOOD}{text}\n")
    why = "the backbone is frozen" if text.startswith(STILL) else "the data are features"
    with pytest.raises(StudyError) as error:
        build_plan(read_study_file(path))
    assert f": {message} but changes nothing, because {why}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("losses", "more", "message"),
    [
        ("[triplet]", "training: {negative_share: [0.1, 1.0]}", "training: negative_share changes"),
        ("[triplet, contrastive]", "training: {negative_share: 0.1}", "training: negative_share"),
        ("{triplet: {search: {negative_share: [0.1, 1.0]}}, circle: }", "", "losses.triplet: neg"),
        ("{triplet: {fixed: {negative_share: 0.1}}, circle: }", "", "losses.triplet: negative_"),
        ("[triplet]", "training: {proxy_lr: 0.1}", "training: proxy_lr changes nothing, because"),
        ("[margin, 'pml:CircleLoss']", "training: {proxy_lr: [1e-4, 1]}", "training: proxy_lr"),
        ("{triplet: {search: {proxy_lr: }}, circle: }", "", "losses.triplet: proxy_lr changes"),
        ("{triplet: {fixed: {proxy_lr: 0.01}}, circle: }", "", "losses.triplet: proxy_lr changes"),
        ("[circle]", "resources: {shard_proxies: true}", "but ranks_per_trial is 1"),
    ],
)
def test_what_is_asked_of_proxies_that_are_not_there_is_refused(
    losses: str, more: str, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, f"name: s\ndata: glyphs\nlosses: {losses}\n{more}\n")
    with pytest.raises(StudyError) as error:
        build_plan(read_study_file(path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("share", [0.1, [0.1, 1.0]])
def test_a_share_of_negatives_for_all_reaches_losses_with_proxies_only(share: Any) -> None:
    losses = ["triplet", "pml:ProxyAnchorLoss", "proxy_anchor", "circle+synthesis"]
    content = {"pml:ProxyAnchorLoss": {"search": {"alpha": [8, 64]}}}
    plan = plan_of(
        {"losses": {k: content.get(k) for k in losses}, "training": {"negative_share": share}}
    )
    reached = [
        loss
        for loss in losses
        if "negative_share" in {*plan.spaces[loss].searched, *plan.spaces[loss].fixed}
    ]
    assert reached == ["proxy_anchor", "circle+synthesis"]
    plan_of({"losses": ["triplet"], "training": {"negative_share": 1}})


@pytest.mark.parametrize("rate", [0.1, [0.1, 1.0]])
def test_a_rate_of_proxies_for_all_reaches_losses_with_proxies_only(rate: Any) -> None:
    losses = ["triplet", "pml:CircleLoss", "pml:ProxyAnchorLoss", "proxy_anchor", "circle"]
    knobs = {"pml:CircleLoss": "gamma", "pml:ProxyAnchorLoss": "alpha"}
    content = {loss: {"search": {knob: [8, 64]}} for loss, knob in knobs.items()}
    plan = plan_of({"losses": {k: content.get(k) for k in losses}, "training": {"proxy_lr": rate}})
    spaces = plan.spaces.items()
    reached = [loss for loss, s in spaces if "proxy_lr" in {*s.searched, *s.fixed}]
    assert reached == losses[2:]


@pytest.mark.parametrize("section", ["resnet50", "{pretrained: true}", "{frozen: true}"])
def test_a_backbone_for_features_is_refused(section: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    text = "name: s\ndata: {name: arrays, path: x.npy, labels: y.npy}\nlosses: [triplet]\n"
    path = write(tmp_path, f"{text}backbone: {section}\n")
    with pytest.raises(StudyError, match="sees no picture, because the data are features"):
        build_plan(read_study_file(path))
    # As every study file that a study keeps says it.
    for harmless in ("none", "{name: conv4, frozen: false}"):
        build_plan(read_study_file(write(tmp_path, f"{text}backbone: {harmless}\n")))


def test_knobs_at_rest_may_be_written_down(tmp_path: Path) -> None:
    still = "training: {augment: none, bn_freeze: none, backbone_lr: 0, warmup_epochs: 0}"
    plan = build_plan(read_study_file(write(tmp_path, f"{GOOD}{STILL}\n{still}\n")))
    for loss in plan.losses:
        assert not {"augment", "backbone_lr"} & set(plan.spaces[loss].searched)


def test_whole_settings_are_searched_as_whole_numbers() -> None:
    plan = plan_of({"training": {"embedding_dim": [16, 64], "warmup_epochs": [0, 2]}})
    known = plan.spaces["triplet"].distributions
    assert isinstance(known["embedding_dim"], IntDistribution)
    assert isinstance(known["warmup_epochs"], IntDistribution)


def test_training_values_are_not_searched() -> None:
    plan = plan_of({"training": {"backbone_lr": 0.001}})
    assert "backbone_lr" not in plan.spaces["proxy_anchor"].searched
    settings, _ = plan.settings("proxy_anchor", plan.example("proxy_anchor"))
    assert settings.backbone_lr == 0.001


def test_training_ranges_are_searched_by_every_loss() -> None:
    plan = plan_of({"training": {"weight_decay": [1e-5, 1e-2, "log"], "epochs": 3}})
    for loss in plan.losses:
        assert "weight_decay" in plan.spaces[loss].searched
        assert plan.spaces[loss].published, "the published points take the default decay"
        settings, _ = plan.settings(loss, {**plan.example(loss), "weight_decay": 5e-3})
        assert settings.weight_decay == 5e-3


def test_a_point_becomes_settings_and_arguments() -> None:
    plan = plan_of({"losses": {"proxy_anchor": {"fixed": {"pooling": "max"}}}})
    values = {**plan.example("proxy_anchor"), "alpha": 50.0, "proxy_lr": 0.5}
    settings, arguments = plan.settings("proxy_anchor", values)
    assert arguments["alpha"] == 50.0
    assert settings.proxy_lr == 0.5
    assert settings.pooling == "max"
    assert "alpha" not in vars(settings)


def test_all_scores_of_a_search_are_the_mean_of_as_many_seeds() -> None:
    """A repeat of one seed would vary more than the point it repeats."""
    plan = plan_of({"search": {"seeds_per_point": 3}})
    jobs = [
        Job("t", "triplet", 0, origin, plan.example("triplet"), 0)
        for origin in ("published", "sobol", "bayes", "repeat", "sweep")
    ]
    jobs.append(replace(jobs[0], origin="confirm", split="test"))
    specs = [plan.trial_spec(job, cache_dir=Path("c"), checkpoint_dir="") for job in jobs]
    assert [spec.replicas for spec in specs] == [3, 3, 3, 3, 3, 1]


def test_plans_survive_the_disk(tmp_path: Path) -> None:
    plan = plan_of({}).extended(5)
    save_plan(plan, tmp_path)
    assert load_plan(tmp_path) == plan


def test_a_plan_is_on_the_disk_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut could leave an empty file in the place of a good plan."""
    done: list[str] = []
    sync, rename = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append(f"on disk: {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        sync(descriptor)

    def replaced(path: Path, target: Path) -> Path:
        done.append("replaced")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    save_plan(plan_of({}), tmp_path)
    assert done == ["on disk: .plan.json.new", "replaced", f"on disk: {tmp_path.name}"]


@pytest.mark.parametrize("text", ["", "{", '{"file": {}}', '{"file": {"name": "a"}}'])
def test_a_damaged_plan_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(StudyError, match="damaged"):
        load_plan(tmp_path)


def test_budgets_are_equal_and_published_points_come_out_of_them() -> None:
    plan = plan_of({"search": {"trials": 20}})
    for loss in plan.losses:
        parts = [len(plan.published(loss)), plan.sobol(loss, 0), plan.chosen(loss, 0)]
        assert sum(parts) == 20
        assert plan.sobol(loss, 0) == 8
    longer = plan.extended(10)
    assert longer.sobol("triplet", 1) == 12
    assert longer.points("triplet") == 30


def plan_of(changes: dict[str, object]) -> Plan:
    base = {"name": "s", "data": "glyphs", "losses": ["proxy_anchor", "triplet"]}
    return build_plan(parse_study({**base, **changes}))


def space_with(search: Any) -> Space:
    content = {"name": "s", "data": "glyphs", "losses": {"norm_softmax": {"search": search}}}
    return build_plan(parse_study(content)).spaces["norm_softmax"]


def test_a_knob_searched_by_name_has_the_range_symbol_and_reason_we_know() -> None:
    space = space_with(["label_smoothing", "pooling"])
    assert space.searched["label_smoothing"].symbol == "ε"
    assert space.distributions["label_smoothing"] == EXTRA["label_smoothing"].distribution
    assert space.distributions["pooling"] == TRAINING_KNOBS["pooling"].distribution
    space = space_with({"label_smoothing": [0.0, 0.2], "weight_decay": None})
    assert space.searched["label_smoothing"].symbol == "ε"
    assert space.distributions["label_smoothing"] == FloatDistribution(0.0, 0.2)
    assert space.searched["weight_decay"].symbol == "wd"
    with pytest.raises(StudyError, match="no range of augment is known; give one"):
        space_with(["augment"])


def test_another_ready_made_space_of_a_loss() -> None:
    """It wins over what the study says of all losses; the loss's own section wins over it."""
    training = {"batch_size": 64, "embedding_dim": 8, "backbone_lr": [1e-5, 1e-4, "log"]}
    losses = {"proxy_nca_pp": {"space": "official", "fixed": {"clip_grad": 1.0}}, "triplet": {}}
    plan = plan_of({"losses": losses, "training": training})
    official = get_space("proxy_nca_pp", variant="official")
    space = plan.spaces["proxy_nca_pp"]
    assert space.distributions == official.distributions
    assert space.fixed == {**official.fixed, "embedding_dim": 8, "clip_grad": 1.0}
    assert space.published[0].values["proxy_lr"] == 4e2
    assert plan.settings("proxy_nca_pp", plan.example("proxy_nca_pp"))[0].adam_eps == 1.0
    assert plan.spaces["triplet"].fixed["batch_size"] == 64
    assert Plan.from_dict(plan.to_dict()) == plan
    frozen = plan_of({"losses": losses, "backbone": {"name": "conv4", "frozen": True}})
    assert frozen.spaces["proxy_nca_pp"].fixed["backbone_lr"] == 0.0
    with pytest.raises(StudyError, match="no other space 'oficial'; known: official"):
        plan_of({"losses": {"proxy_nca_pp": {"space": "oficial"}}})
    with pytest.raises(StudyError, match="no other space 'official'; known: none"):
        plan_of({"losses": {"circle": {"space": "official"}}})
    with pytest.raises(StudyError, match="did you mean 'space'"):
        plan_of({"losses": {"triplet": {"spce": "official"}}})
