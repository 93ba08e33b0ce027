"""A trial trains what its spec says, and continues bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from search_spaces.training import TRAINING_KNOBS
from trainables.backbone import build_backbone
from trainables.checkpoints import checkpoint_path, load_checkpoint, save_checkpoint
from trainables.data.dataset import Dataset, Part
from trainables.features import compute_features
from trainables.losses.blocks import Budget
from trainables.model import EmbeddingModel, pool
from trainables.optimizer import MovementCheck, build_optimizer, check_groups, decay_factor
from trainables.replica import DivergedError, Replica, embed, to_inputs
from trainables.restored import network_weights, validation_vectors
from trainables.retrieval import nmi
from trainables.settings import Settings, TrialSpec, settings_from
from trainables.training import Training, split_tasks, untrained_metrics
from trainables.usage import Usage, moments
from trainables.workbench import Bench, open_bench
from trainables.world import World

GLYPHS = {"name": "glyphs", "classes": 200, "samples": 6}
CONV4 = {"name": "conv4", "pretrained": False, "frozen": False}
LOSSES: dict[str, dict[str, Any]] = {
    "proxy_anchor": {"alpha": 32.0, "delta": 0.1},
    "proxy_nca_pp": {"temperature": 0.11},
    "circle": {"gamma": 80.0, "m": 0.4},
    "triplet": {"margin": 0.2},
    "proxy_anchor+synthesis": {
        "alpha": 32.0,
        "delta": 0.1,
        "synthesis_alpha": 0.4,
        "synthesis_mu": 1.0,
    },
}


@pytest.fixture(scope="module")
def bench(data_cache: Path) -> Bench:
    return open_bench(GLYPHS, CONV4, cache_dir=data_cache)


def spec_of(loss: str, tmp_path: Path | str = "", **changes: Any) -> TrialSpec:
    settings = Settings(epochs=4, batch_size=32, embedding_dim=16, augment="light")
    base = TrialSpec(
        trial=f"{loss}-0000",
        loss=loss,
        loss_knobs=LOSSES[loss],
        settings=settings,
        seed=5,
        dataset=GLYPHS,
        backbone=CONV4,
        cache_dir="",
        checkpoint_dir=str(tmp_path),
        threads=1,
    )
    return replace(base, **changes)


def weights(training: Training) -> list[torch.Tensor]:
    tensors = []
    for replica in training.replicas:
        tensors += [t.clone() for t in replica.model.state_dict().values()]
        tensors += [t.clone() for t in replica.loss.state_dict().values()]
    return tensors


@pytest.mark.parametrize("loss", LOSSES)
def test_a_restored_trial_continues_bit_for_bit(loss: str, bench: Bench, tmp_path: Path) -> None:
    spec = spec_of(loss, tmp_path)
    whole = Training(replace(spec, checkpoint_dir=""), bench)
    results = [whole.run_epoch() for _ in range(4)]
    first = Training(spec, bench)
    first.run_epoch()
    first.run_epoch()
    first.save()
    torch.manual_seed(999)  # whatever else happened in the process
    second = Training(spec, bench)
    assert second.restore()
    assert second.last_result["score"] == results[1]["score"]
    rest = [second.run_epoch(), second.run_epoch()]
    assert [r["score"] for r in rest] == [r["score"] for r in results[2:]]
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(second), strict=True))
    assert second.is_done


def test_the_memory_bound_of_a_study_reaches_its_loss(bench: Bench) -> None:
    for resources, kept in (({"keep_mib": 2.0}, 2 * 2**20), ({}, 384 * 2**20)):
        (replica,) = Training(spec_of("proxy_anchor", resources=resources), bench).replicas
        budgets = [getattr(m, "budget", None) for m in replica.loss.modules()]
        assert {b.keep_bytes for b in budgets if isinstance(b, Budget)} == {kept}


def test_a_state_whose_learned_temperature_was_among_the_proxies_still_loads(bench: Bench) -> None:
    knobs = {**LOSSES["proxy_nca_pp"], "temperature_mode": "learned"}
    spec = spec_of("proxy_nca_pp", loss_knobs=knobs)
    training = Training(spec, bench)
    training.run_epoch()
    (replica,) = training.replicas
    state = replica.state_dict()
    *rest, proxies, scalars = state["optimizer"]["param_groups"]
    assert (proxies["name"], scalars["name"]) == ("proxies", "scalars")
    old = {**proxies, "params": proxies["params"] + scalars["params"]}
    state["optimizer"]["param_groups"] = [*rest, old]
    other = Training(spec, bench).replicas[0]
    other.load_state_dict(state)
    assert other.state_dict()["optimizer"]["param_groups"][-1]["weight_decay"] == 0.0
    for index, saved in state["optimizer"]["state"].items():
        loaded = other.state_dict()["optimizer"]["state"][index]
        assert torch.equal(loaded["exp_avg"], saved["exp_avg"])


@pytest.mark.parametrize("frozen", [False, True])
def test_a_network_alone_is_restored_from_a_checkpoint(
    frozen: bool, data_cache: Path, tmp_path: Path
) -> None:
    own = open_bench(GLYPHS, {**CONV4, "frozen": frozen}, cache_dir=data_cache)
    spec = spec_of("triplet", tmp_path, folds=2, backbone=dict(own.backbone))
    assert network_weights(spec) is None
    training = Training(spec, own)
    training.run_epoch()
    training.save()
    restored = network_weights(spec)
    assert restored is not None
    replica = training.replicas[0]
    expected = embed(replica.model, replica.task.score, replica.augment)
    assert np.array_equal(validation_vectors(spec, own, restored), expected)


@pytest.mark.parametrize("loss", ["softmax", "pml:LargeMarginSoftmaxLoss"])
def test_losses_that_count_lengths_see_them(loss: str, bench: Bench) -> None:
    """Of unit vectors a softmax over inner products could hardly tell classes apart."""
    spec = replace(spec_of("triplet"), loss=loss, loss_knobs={})
    replica = Training(spec, bench).replicas[0]
    replica.model.head.weight.data *= 20.0
    batch = np.arange(0, 64, 2)
    value = replica.gradients(batch, torch.Generator().manual_seed(1))
    inputs = to_inputs(
        replica.task.train.read(batch), replica.augment, torch.Generator().manual_seed(1)
    )
    with torch.no_grad():
        vectors = replica.model.head(replica.model.features(inputs))
        labels = torch.from_numpy(replica.task.train.labels[batch])
        assert value == pytest.approx(float(replica.loss(vectors, labels)), rel=1e-4)
        assert value != pytest.approx(float(replica.loss(replica.model(inputs), labels)), rel=1e-2)


def test_training_learns_unseen_classes(bench: Bench) -> None:
    spec = spec_of("proxy_anchor")
    settings = replace(spec.settings, epochs=8, backbone_lr=3e-3, head_lr=3e-3)
    training = Training(replace(spec, settings=settings), bench)
    untrained = untrained_metrics(spec, bench)
    while not training.is_done:
        result = training.run_epoch()
    assert result["score"] > 1.5 * untrained["map_at_r"]
    assert result["metrics"]["recall_at_1"] > untrained["recall_at_1"]


def test_nmi_is_scored_when_asked_for(bench: Bench) -> None:
    spec = spec_of("triplet")
    assert "nmi" not in Training(spec, bench).replicas[0].score()
    asked = replace(spec, nmi=True)
    replica = Training(asked, bench).replicas[0]
    expected = nmi(
        embed(replica.model, replica.task.score, replica.augment), replica.task.score.labels
    )
    assert replica.score()["nmi"] == expected
    assert 0 < expected < 1
    assert 0 < untrained_metrics(asked, bench)["nmi"] < 1


def test_seeds_differ_and_repeat(bench: Bench) -> None:
    score = [
        Training(spec_of("triplet", seed=seed), bench).run_epoch()["score"] for seed in (1, 1, 2)
    ]
    assert score[0] == score[1] != score[2]


def test_replicas_are_the_seeds_of_a_trial(bench: Bench) -> None:
    pair = Training(spec_of("triplet", replicas=2), bench).run_epoch()
    single = [
        Training(spec_of("triplet", seed=seed), bench).run_epoch()["score"] for seed in (5, 6)
    ]
    assert pair["score"] == pytest.approx(np.mean(single), abs=1e-12)
    assert pair["score_std"] == pytest.approx(np.std(single, ddof=1), abs=1e-12)


def test_folds_train_side_by_side(bench: Bench) -> None:
    training = Training(spec_of("triplet", folds=2), bench)
    assert len(training.replicas) == 2
    assert np.isfinite(training.run_epoch()["score"])


def test_splits_share_no_class(bench: Bench) -> None:
    for split, folds in (("validation", 1), ("validation", 4), ("test", 1)):
        for task in split_tasks(bench.dataset, split, folds):
            assert not set(task.train.labels) & set(task.score.labels)
            assert not (
                split == "validation" and set(task.score.labels) & set(bench.dataset.test.labels)
            )


@pytest.mark.parametrize("n_folds", [1, 2, 4])
def test_validation_asks_queries_of_the_gallery_as_the_test_does(n_folds: int) -> None:
    labels = np.repeat(np.arange(16), 6)
    queries = np.tile([True, False, False], 32)
    items = np.arange(96, dtype=np.float32)[:, None] + np.zeros(4, np.float32)
    half = Part(items, labels, queries)
    data = Dataset("arrays", half, half, tuple(map(str, range(16))), "")
    for task in split_tasks(data, "validation", n_folds):
        assert task.score.is_query is not None
        asked = task.score.read(slice(None))[:, 0].astype(int)
        np.testing.assert_array_equal(task.score.is_query, queries[asked])


@pytest.mark.parametrize("n_folds", [1, 2, 4])
def test_folds_of_mixed_classes_copy_nothing(n_folds: int) -> None:
    labels = np.tile(np.arange(16), 6)  # classes do not lie together
    half = Part(np.arange(96, dtype=np.float32)[:, None], labels)
    data = Dataset("arrays", half, half, tuple(map(str, range(16))), "")
    for task in split_tasks(data, "validation", n_folds):
        for part in (task.train, task.score):
            assert np.shares_memory(part.items, half.items)
            assert len(part) == len(part.read(slice(None)))
            rows = part.read(np.array([3, 0]))[:, 0].astype(int)
            np.testing.assert_array_equal(labels[rows], part.labels[[3, 0]])


@pytest.mark.parametrize("loss", LOSSES)
def test_a_nan_loss_is_a_divergence(loss: str, bench: Bench) -> None:
    training = Training(spec_of(loss), bench)
    with torch.no_grad():
        training.replicas[0].model.head.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="training diverged"):
        training.run_epoch()


def test_embeddings_that_are_no_numbers_are_a_divergence(bench: Bench) -> None:
    replica = Training(spec_of("triplet"), bench).replicas[0]
    with torch.no_grad():
        replica.model.head.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="embeddings"):
        replica.score()


def test_half_a_checkpoint_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, "a-0", {"epoch": 1})

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(tmp_path, "a-0", {"epoch": 2})
    assert load_checkpoint(tmp_path, "a-0") == {"epoch": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a-0.pt"]


def test_checkpoints_load_no_code(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return print, ("executed",)

    checkpoint_path(tmp_path, "a-0").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(pickle.UnpicklingError):
        load_checkpoint(tmp_path, "a-0")


def test_keys_stay_inside_the_folder(tmp_path: Path) -> None:
    assert checkpoint_path(tmp_path, "../../etc/x").parent == tmp_path
    assert checkpoint_path(tmp_path, "pml:Loss-1").parent == tmp_path


class TestOptimizer:
    def parts(self) -> tuple[EmbeddingModel, nn.Module]:
        from trainables.losses import build_loss

        settings = Settings(embedding_dim=4)
        model = EmbeddingModel(nn.Conv2d(1, 8, 3), 8, settings)
        return model, build_loss("proxy_anchor", n_classes=5, dim=4, alpha=32.0, delta=0.1)

    def test_each_part_has_its_own_rate(self) -> None:
        model, loss = self.parts()
        settings = Settings(embedding_dim=4, backbone_lr=1.0, head_lr=2.0, proxy_lr=3.0)
        rates = {g["name"]: g["lr"] for g in build_optimizer(model, loss, settings).param_groups}
        assert rates == {"backbone": 1.0, "head": 2.0, "proxies": 3.0}

    @pytest.mark.parametrize(
        ("name", "knobs"),
        [
            ("norm_softmax", {"temperature": 0.05, "temperature_mode": "learned"}),
            ("margin", {"margin": 0.2, "beta": 1.2, "learn_beta": True}),
        ],
    )
    def test_a_learned_number_of_the_loss_neither_flies_nor_decays(
        self, name: str, knobs: dict[str, Any]
    ) -> None:
        from trainables.losses import build_loss

        model, _ = self.parts()
        loss = build_loss(name, n_classes=5, dim=4, **knobs)
        settings = Settings(embedding_dim=4, head_lr=1e-3, proxy_lr=1.0, weight_decay=0.1)
        optimizer = build_optimizer(model, loss, settings)
        (group,) = (g for g in optimizer.param_groups if g["name"] == "scalars")
        (number,) = group["params"]
        before = number.item()
        number.grad = torch.zeros_like(number)
        optimizer.step()
        assert number.item() == before
        number.grad = torch.ones_like(number)
        optimizer.step()
        assert 0 < before - number.item() <= 2e-3

    def test_a_number_that_is_not_to_move_is_not_missed(self) -> None:
        from trainables.losses import build_loss

        model, _ = self.parts()
        loss = build_loss(
            "norm_softmax", n_classes=5, dim=4, temperature=0.05, temperature_mode="learned"
        )
        settings = Settings(embedding_dim=4, head_lr=0.0)
        check = MovementCheck(loss, build_optimizer(model, loss, settings))
        with pytest.raises(RuntimeError, match="`proxies` did not move"):
            check.check(loss)
        with torch.no_grad():
            loss.get_parameter("proxies").add_(0.1)
        check.check(loss)

    def test_forgotten_proxies_are_refused(self) -> None:
        model, loss = self.parts()
        with pytest.raises(RuntimeError, match="proxies is in 0 optimiser groups"):
            check_groups(torch.optim.AdamW(model.parameters()), model, loss)

    def test_a_parameter_in_two_groups_is_refused(self) -> None:
        model, loss = self.parts()
        optimizer = build_optimizer(model, loss, Settings(embedding_dim=4))
        optimizer.param_groups[0]["params"].append(model.head.weight)
        with pytest.raises(RuntimeError, match="in 2 optimiser groups"):
            check_groups(optimizer, model, loss)

    def test_proxies_that_stand_still_are_noticed(self) -> None:
        _, loss = self.parts()
        check = MovementCheck(loss)
        with pytest.raises(RuntimeError, match="`proxies` did not move"):
            check.check(loss)
        with torch.no_grad():
            next(loss.parameters()).add_(0.1)
        check.check(loss)

    def test_decay(self) -> None:
        cosine = Settings(epochs=10)
        assert decay_factor(0, cosine) == 1.0
        assert decay_factor(5, cosine) == pytest.approx(0.5)
        step = Settings(epochs=8, lr_decay="step")
        assert [decay_factor(e, step) for e in (0, 3, 4, 6)] == [1.0, 1.0, 0.1, 0.01]
        assert decay_factor(7, Settings(lr_decay="none")) == 1.0


# Every knob of the training that a space may search, at a value that is not the default.
CHANGED: dict[str, Any] = {
    "backbone_lr": 3e-3,
    "head_lr": 3e-3,
    "proxy_lr": 3e-2,
    "weight_decay": 0.1,
    "adam_eps": 1e-2,
    "clip_grad": 1e-4,
    "batch_size": 24,
    "images_per_class": 2,
    "pooling": "max",
    "layer_norm": True,
    "embedding_dim": 24,
    "warmup_epochs": 1,
    "bn_freeze": "stats",
    "lr_decay": "none",
}


def trained(bench: Bench, **changes: Any) -> list[torch.Tensor]:
    spec = spec_of("proxy_anchor")
    training = Training(replace(spec, settings=replace(spec.settings, epochs=2, **changes)), bench)
    for _ in range(2):
        training.run_epoch()
    return weights(training)


@pytest.fixture(scope="module")
def unchanged(bench: Bench) -> list[torch.Tensor]:
    return trained(bench)


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("knob", CHANGED)
def test_a_training_knob_changes_what_is_trained(
    knob: str, bench: Bench, unchanged: list[torch.Tensor]
) -> None:
    assert not same(trained(bench, **{knob: CHANGED[knob]}), unchanged)


def test_every_training_knob_is_tried(bench: Bench, unchanged: list[torch.Tensor]) -> None:
    assert set(CHANGED) == set(TRAINING_KNOBS)
    assert same(trained(bench), unchanged)  # else any difference would prove nothing


def test_warm_up_keeps_the_backbone_still(bench: Bench) -> None:
    spec = spec_of("proxy_anchor")
    settings = replace(spec.settings, warmup_epochs=1)
    training = Training(replace(spec, settings=settings), bench)
    backbone = training.replicas[0].model.backbone
    assert backbone is not None
    before = [p.clone() for p in backbone.parameters()]
    training.run_epoch()
    assert all(torch.equal(a, b) for a, b in zip(before, backbone.parameters(), strict=True))
    training.run_epoch()
    assert not all(torch.equal(a, b) for a, b in zip(before, backbone.parameters(), strict=True))


def test_a_trial_freezes_the_norms_of_its_own_copy_of_the_pretrained_backbone(
    data_cache: Path, tmp_path: Path
) -> None:
    source = build_backbone("conv4", in_channels=1, image_size=28)
    torch.save(source.model.state_dict(), tmp_path / "w.pth")
    given = {**CONV4, "pretrained": str(tmp_path / "w.pth")}
    bench = open_bench(GLYPHS, given, cache_dir=data_cache)
    own = bench.new_backbone(seed=1, bn_freeze="all")
    assert own is not None
    assert bench.prototype is not None
    norms = [m for m in own.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert not any(m.training or m.weight.requires_grad for m in norms)
    assert bench.prototype.bn_freeze == "none"
    for name, value in source.model.state_dict().items():
        assert torch.equal(own.model.state_dict()[name], value), name


def test_gpu_use_is_logged_and_costs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of a GPU's driver, and a driver that has none to give."""
    import pynvml  # torch asks through it; a dependency of ours for that

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    peak, busy = [9 * 2**20], iter([60, 80])
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda: peak.__setitem__(0, 3 * 2**20)
    )
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: peak[0])
    monkeypatch.setattr(torch.cuda, "utilization", lambda: next(busy))
    usage = Usage()  # an earlier trial of this process used more
    usage.sample()
    usage.sample()
    use = usage.take()
    assert (use["gpu_memory_mib"], use["gpu_use_percent"]) == (3.0, 70.0)
    assert "gpu_use_percent" not in usage.take()

    def refuse() -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(torch.cuda, "utilization", refuse)
    usage.sample()
    use = usage.take()
    assert "gpu_use_percent" not in use
    assert use["gpu_memory_mib"] == 3.0


def test_a_gpu_is_asked_while_it_trains(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(Usage, "sample", lambda _: events.append("asked"))
    monkeypatch.setattr(Replica, "score", _noted(Replica.score, events))
    Training(spec_of("triplet"), bench).run_epoch()
    assert events[-1] == "scored"
    assert set(events[:-1]) == {"asked"}
    assert moments(1) == {0}
    assert moments(10) == {1, 4, 6, 9}


def _noted(method: Any, events: list[str]) -> Any:
    def call(replica: Replica) -> Any:
        events.append("scored")
        return method(replica)

    return call


def test_features_and_the_untrained_row_are_computed_on_the_trials_device(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cpu", 0)  # unequal, and every machine has both
    told: list[tuple[str, int, int]] = []
    frozen = open_bench(
        GLYPHS,
        {**CONV4, "frozen": True},
        cache_dir=tmp_path,
        progress=lambda *news: told.append(news),
    )
    asked: list[torch.device] = []

    def features(*arguments: Any, device: torch.device, **more: Any) -> Dataset:
        asked.append(device)
        return compute_features(*arguments, device=device, **more)

    def vectors(model: nn.Module, part: Part, augment: Any, world: World) -> Any:
        asked.append(world.device)
        return embed(model, part, augment, world)

    monkeypatch.setattr("trainables.world.default_device", lambda: gpu)
    monkeypatch.setattr("trainables.workbench.compute_features", features)
    monkeypatch.setattr("trainables.training.embed", vectors)
    for gpus, expected in ((1, gpu), (0.25, gpu), (0, cpu)):
        spec = spec_of("triplet", resources={"gpus_per_trial": gpus})
        asked.clear()
        assert Training(spec, frozen).replicas[0].world.device == expected
        rows = [untrained_metrics(spec, given) for given in (frozen, bench)]
        assert asked == [expected] * 4
        # Both backbones start from the same seed.
        assert rows[0] == pytest.approx(rows[1], abs=1e-6)
    assert told.count(("features-conv4", 1200, 1200)) == 1, "computed once, and told"


def test_pictures_that_are_enlarged_are_told(data_cache: Path) -> None:
    for size, told in ((28, 0), (29, 1)):
        own = open_bench(GLYPHS, {**CONV4, "image_size": size}, cache_dir=data_cache)
        said = [n for n in own.notes if "kept at 28 px and enlarged to the backbone's 29 px" in n]
        assert len(said) == told


def test_pooling() -> None:
    maps = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert pool(maps, "avg").item() == 7.5
    assert pool(maps, "max").item() == 15.0
    assert pool(maps, "avg+max").item() == 22.5
    with pytest.raises(ValueError, match="avg, max, avg\\+max"):
        pool(maps, "median")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_sise": 3}, "did you mean 'batch_size'"),
        ({"epochs": 0}, "`epochs >= 1`"),
        ({"adam_eps": 0.0}, "`adam_eps > 0`"),
        ({"lr_decay": "linear"}, "none, step, cosine"),
        ({"layer_norm": 1}, "type bool"),
        ({"batch_size": 2.5}, "type int"),
    ],
)
def test_wrong_settings_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        settings_from(values)
    assert message in str(error.value)


def test_specs_cross_borders_as_plain_values() -> None:
    import json

    spec = spec_of("circle")
    assert TrialSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
