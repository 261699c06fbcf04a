"""Adapters that cannot be merged are refused in one sentence, and what an adapter names is never followed unless it is on the Hub."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from analyzers.checkpoints import MergedCheckpoint, open_checkpoint, open_whole
from analyzers.core.errors import MantissaError
from tests.checkpoints.adapters import LOCAL, values

_Q, _K = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"


def _folder(path: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any] | None, name: str = "model.safetensors") -> Path:
    path.mkdir(parents=True)
    save_file(tensors, path / name)
    if config is not None:
        (path / ("config.json" if name == "model.safetensors" else "adapter_config.json")).write_text(json.dumps(config))
    return path


def _base(folder: Path, **others: torch.Tensor) -> Path:
    torch.manual_seed(0)
    weights = {f"{_Q}.weight": torch.randn(16, 8), f"{_K}.weight": torch.randn(16, 8), "model.norm.weight": torch.ones(8)}
    return _folder(folder / "base", weights | others, {"model_type": "llama"})


def _adapter(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    tensors = _pair(_Q) if tensors is None else tensors
    return _folder(folder / "adapter", tensors, {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}, "adapter_model.safetensors")


def _pair(module: str, rank: int = 2, rows: int = 16, columns: int = 8) -> dict[str, torch.Tensor]:
    start = f"base_model.model.{module}.lora_"
    return {f"{start}A.weight": torch.randn(rank, columns), f"{start}B.weight": torch.randn(rows, rank)}


def _open(folder: Path) -> MergedCheckpoint:
    checkpoint = open_checkpoint(f"{folder}/base+{folder}/adapter", LOCAL)
    assert isinstance(checkpoint, MergedCheckpoint)
    return checkpoint


def _refusal(folder: Path) -> str:
    with pytest.raises(MantissaError) as refused:
        _open(folder).close()
    message = str(refused.value)
    assert message.count("\n") == 0
    assert message.endswith(".")
    return message


@pytest.mark.parametrize(
    "config",
    [
        {"peft_type": "LOHA"}, {"peft_type": "<script>"}, {"peft_type": 1}, {"r": 0}, {"r": 1 << 40}, {"r": True}, {"r": 3},
        {"lora_alpha": "16"}, {"lora_alpha": 1e300}, {"rank_pattern": [1]}, {"alpha_pattern": {"(" * 50: 1}},
        {"alpha_pattern": {f"x{at}|(.|..)*y": 1 for at in range(20_000)}}, {"use_rslora": "true"}, {"target_parameters": {"x": 1}},
        {"trainable_token_indices": [1]}, {"layer_replication": [[0, 1]]}, {"use_dora": True},
    ],
)  # fmt: skip
def test_configurations(config: dict[str, Any], tmp_path: Path) -> None:
    _base(tmp_path)
    _adapter(tmp_path, **config)
    began = time.monotonic()
    _refusal(tmp_path)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"x": torch.ones(2)},
        {f"base_model.model.{_Q}.lora_A.weight": torch.ones(2, 8)},
        _pair("model.layers.9.self_attn.q_proj"),
        _pair(_Q, rows=17),
        {**_pair(_Q), f"base_model.model.{_Q}.lora_A.weight": torch.ones(3, 8)},
        {**_pair(_Q), f"base_model.model.{_Q}.lora_A.weight": torch.ones(0, 8)},
        {name: tensor.to(torch.int8) for name, tensor in _pair(_Q).items()},
        {"base_model.model.x.hada_w1_a": torch.ones(2, 2)},
        {name.replace(".weight", f".{at}.weight"): t for at in "ab" for name, t in _pair(_Q).items()},
        {**_pair(_Q), **{name.removeprefix("base_model.model."): t + 1 for name, t in _pair(_Q).items()}},
    ],
)
def test_matrices(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    _base(tmp_path)
    _adapter(tmp_path, tensors)
    _refusal(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{", '{"a": ' * 2000, "\0"])
def test_unreadable_configuration(text: str, tmp_path: Path) -> None:
    _base(tmp_path)
    (_adapter(tmp_path) / "adapter_config.json").write_text(text)
    assert "adapter_config.json" in _refusal(tmp_path)


@pytest.mark.parametrize("named", ["/etc", "../base", "./base", "https://example.org/base", "org/name/../x", "", None, 7, "sample:../x"])
def test_bases_that_are_not_on_the_hub_are_not_followed(named: Any, tmp_path: Path) -> None:
    _base(tmp_path)
    _adapter(tmp_path, base_model_name_or_path=named)
    with pytest.raises(MantissaError, match="give the base yourself, as BASE\\+ADAPTER"):
        open_whole(f"{tmp_path}/adapter", LOCAL)
    _open(tmp_path).close()  # what the configuration names does not matter where the base is given


def test_whole_models_are_no_adapters_and_adapters_no_bases(tmp_path: Path) -> None:
    base, adapter = _base(tmp_path), _adapter(tmp_path)
    with pytest.raises(MantissaError, match="holds whole weights and no adapter"):
        open_checkpoint(f"{base}+{base}", LOCAL)
    with pytest.raises(MantissaError, match="is an adapter itself"):
        open_checkpoint(f"{adapter}+{adapter}", LOCAL)


def test_nan_in_a_matrix_reaches_the_weights(tmp_path: Path) -> None:
    _base(tmp_path)
    pair = _pair(_Q)
    next(iter(pair.values()))[1, 3] = torch.nan
    _adapter(tmp_path, pair)
    with _open(tmp_path) as checkpoint:
        found = values(checkpoint)
    assert np.isnan(found[f"{_Q}.weight"]).sum() == 16  # one column
    assert not np.isnan(found[f"{_K}.weight"]).any()


def test_what_fits_is_merged_and_the_rest_said(tmp_path: Path) -> None:
    """Of a module that the adapter replaces by integers the base's weights are changed."""
    _base(tmp_path)
    whole = {f"base_model.model.{_Q}.base_layer.weight": torch.ones(16, 8, dtype=torch.int64)}
    _adapter(tmp_path, _pair(_Q) | whole | _pair(_K, rows=9) | _pair("model.other") | _pair("model.another"))
    with _open(tmp_path) as checkpoint:
        assert set(checkpoint.merge.updates) == {f"{_Q}.weight"} == set(checkpoint.sources) and values(checkpoint)
        names = {f"{_Q}.weight", f"{_K}.weight", "model.other.weight", "model.another.weight"}
        assert {each.name for each in checkpoint.merge.changes[0].unmatched} == names
        assert [note.values["modules"] for note in checkpoint.notes if note.code == "not-merged"] == [4]


def test_quantized_base(tmp_path: Path) -> None:
    """fp8 weights are decoded and said to be; packed integers are refused by name."""
    codes, scale = torch.randn(16, 8).to(torch.float8_e4m3fn), torch.tensor([0.5])
    base = _base(tmp_path, **{f"{_Q}.weight": codes, f"{_Q}.weight_scale": scale})
    pair = _pair(_Q)
    _adapter(tmp_path, pair)
    with _open(tmp_path) as checkpoint:
        assert [note.values["tensors"] for note in checkpoint.notes if note.code == "decoded-base"] == [1]
        found = values(checkpoint)[f"{_Q}.weight"]
    a, b = pair.values()
    assert np.allclose(found, (codes.float() * 0.5 + b @ a * 2).numpy(), atol=1e-5)
    for path in base.iterdir():
        path.unlink()
    base.rmdir()
    packed = {f"{_Q}.qweight": torch.ones(1, 16, dtype=torch.int32), f"{_Q}.scales": torch.ones(1, 16)}
    _folder(base, packed, {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    assert "gptq" in _refusal(tmp_path)
