"""Local weights files: what is loaded, what is reported, and what is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trainables.models.backbone import TimmBackbone, build_backbone
from trainables.models.pretrained_weights import load_weights

pytestmark = pytest.mark.split


def build_conv4() -> TimmBackbone:
    return build_backbone("conv4", in_channels=1, image_size=28)


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_local_weights_load(tmp_path: Path, ending: str, wrapped: bool) -> None:
    torch.manual_seed(1)
    state = dict(build_conv4().model.state_dict())
    if wrapped:  # like files of DataParallel and training scripts
        state = {f"module.backbone.{name}": value for name, value in state.items()}
    path = tmp_path / f"weights{ending}"
    if ending == ".pth":
        torch.save({"state_dict": state, "epoch": 3} if wrapped else state, path)
    else:
        save_file({name: value.contiguous() for name, value in state.items()}, path)
    backbone = build_backbone("conv4", in_channels=1, image_size=28, pretrained=path)
    report = backbone.weight_report
    assert report is not None
    assert report.is_complete
    assert not report.unexpected
    expected = next(iter(state.values()))
    assert torch.equal(next(backbone.model.parameters()), expected)


def test_the_report_lists_what_did_not_match(tmp_path: Path) -> None:
    state = dict(build_conv4().model.state_dict())
    first = next(iter(state))
    state[first] = torch.zeros(16, 3, 3, 3)
    del state["blocks.13.bias"]
    state["fc.weight"] = torch.zeros(10, 128)
    state["extra.weight"] = torch.zeros(1)
    torch.save(state, tmp_path / "w.pth")
    model = build_conv4().model
    initial = model.state_dict()[first].clone()
    report = load_weights(model, tmp_path / "w.pth")
    assert report.mismatched == (f"{first} (16, 3, 3, 3) for (16, 1, 3, 3)",)
    assert report.missing == ("blocks.13.bias",)
    assert report.unexpected == ("extra.weight",)
    assert report.ignored == ("fc.weight",)
    assert not report.is_complete
    assert torch.equal(model.state_dict()[first], initial)
    text = str(report)
    for word in ("1 missing", "1 mismatched", "1 unexpected", "fc.weight", "w.pth"):
        assert word in text


class ExecutedWhenUnpickled:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("executed"),))


def test_weights_files_execute_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": ExecutedWhenUnpickled()}, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match="cannot be read as weights"):
        load_weights(build_conv4().model, tmp_path / "evil.pth")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.pth", b"nonsense", "cannot be read as weights"),
        ("a.safetensors", b"nonsense", "cannot be read as weights"),
        ("a.onnx", b"", "must be one of .pth"),
    ],
)
def test_unreadable_weights(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_weights(build_conv4().model, tmp_path / file)


def test_weights_of_another_model_are_rejected(tmp_path: Path) -> None:
    torch.save({"layer1.0.conv1.weight": torch.zeros(3)}, tmp_path / "r.pth")
    with pytest.raises(ValueError, match="only 0 of the model's 24 weights are in"):
        load_weights(build_conv4().model, tmp_path / "r.pth")


def rename_layers(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the state with the names of another library for the same layers."""
    return {f"_layer{i}.{n.rpartition('.')[2]}": v for i, (n, v) in enumerate(state.items())}


def test_other_names_of_the_same_model_are_matched_in_order(tmp_path: Path) -> None:
    torch.manual_seed(3)
    state = dict(build_conv4().model.state_dict())
    torch.save({**rename_layers(state), "_fc.weight": torch.zeros(10, 128)}, tmp_path / "w.pth")
    model = build_conv4().model
    report = load_weights(model, tmp_path / "w.pth")
    assert report.is_complete
    assert report.in_order
    assert "in order" in str(report)
    assert report.ignored == ("_fc.weight",)
    for name, value in model.state_dict().items():
        assert "num_batches" in name or torch.equal(value, state[name]), name


@pytest.mark.parametrize("change", ["shape", "kind", "one more", "one less"])
def test_other_names_are_rejected_unless_every_weight_matches(tmp_path: Path, change: str) -> None:
    state = rename_layers(dict(build_conv4().model.state_dict()))
    names = list(state)
    if change == "shape":
        state[names[0]] = torch.zeros(16, 3, 3, 3)
    elif change == "kind":  # weight and bias of a batch norm swapped
        at = next(i for i, name in enumerate(names) if name.endswith(".bias"))
        names[at - 1], names[at] = names[at], names[at - 1]
        state = {name: state[name] for name in names}
    elif change == "one more":
        state["_last.weight"] = torch.zeros(1)
    else:
        del state[names[0]]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="only 0 of the model's"):
        load_weights(build_conv4().model, tmp_path / "w.pth")
