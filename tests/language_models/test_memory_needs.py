"""What a run takes: estimates against what it keeps, and where a model goes."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from analyzers.core.errors import ModelTooLarge
from analyzers.language_models.capture import run
from analyzers.language_models.ffn import ffn_layers
from analyzers.language_models.lm_head import logits_bytes
from analyzers.language_models.memory_needs import _left, activation_bytes, available_bytes, place, weight_bytes
from analyzers.language_models.prompts import Batch
from tests.cases import few
from tests.language_models.architectures import ARCHITECTURES, HEADS, build

LENGTH = 48


def kept_bytes(model: nn.Module, batch: Batch) -> int:
    """Bytes of everything that lives between the forward and the backward pass, but for weights; shared memory once."""
    storages: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run(model, batch, ffn_layers(model))
    for tensor in tensors_of(result):
        keep(tensor)
    for capture in result:
        for block in capture.blocks:
            keep(block.right)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return sum(storage.nbytes() for place, storage in storages.items() if place not in weights)


def tensors_of(thing: object) -> Iterator[Tensor]:
    """Those that an object of ours holds, directly or through others of ours."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, list | tuple | dict) or type(thing).__module__.startswith("analyzers."):
        for each in gc.get_referents(thing):
            yield from tensors_of(each)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "name",
    few(
        [
            "llama", "gemma3_text", "olmo2", "cohere", "granite", "gpt2", "opt", "bloom", "mpt", "qwen2_moe", "granitemoeshared", "gpt_oss",
            "deepseek_v3", "lfm2", "qwen3_5_text", "qwen3_next", "olmo_hybrid", "granitemoehybrid", "falcon_h1", "bamba",
        ],
        {0, 1, 5, 9, 11, 12, 15, 18},
    ),
)  # fmt: skip
def test_an_estimate_is_above_what_is_kept_and_not_far(name: str, dtype: torch.dtype, attention: str) -> None:
    if attention == "sdpa" and name in ("bloom", "mpt", "gpt_oss"):
        attention = "eager"
    model: Any = build(ARCHITECTURES[name], attention, dtype)
    tokens = torch.randint(3, 67, (4, LENGTH), generator=torch.Generator().manual_seed(0))
    kept = kept_bytes(model, Batch(tokens, tokens.clone(), (LENGTH,) * 4))
    estimate = activation_bytes(model, dtype, [(4, LENGTH)], checkpointing=False) - logits_bytes(model, dtype)
    assert kept < estimate < 5.5 * kept  # two layers of it are for gradients: as much again, with 2 layers in all
    assert activation_bytes(model, dtype, [(4, LENGTH)], checkpointing=True) - logits_bytes(model, dtype) < 0.7 * estimate


def test_weights_and_buffers_are_counted() -> None:
    model = build(ARCHITECTURES["llama"], dtype=torch.float32, tie_word_embeddings=True)
    weights = sum(tensor.nbytes for name, tensor in model.state_dict().items() if name != "lm_head.weight")
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    assert weight_bytes(model, torch.float32) == weights + buffers
    assert weight_bytes(model, torch.bfloat16) == weights // 2 + buffers


def test_what_the_host_has_and_a_container_leaves(tmp_path: Path) -> None:
    (free,) = available_bytes("cpu")
    assert 1 << 26 < free < 1 << 50
    for most, taken, left in (("1000", "400", 600), ("1000", "1400", 0), ("max", "400", 1 << 62)):
        (tmp_path / "most").write_text(f"{most}\n")
        (tmp_path / "taken").write_text(f"{taken}\n")
        assert _left(tmp_path / "most", tmp_path / "taken") == left
    assert _left(tmp_path / "none", tmp_path / "taken") == 1 << 62


def test_a_model_goes_onto_one_device_or_is_spread_by_whole_layers() -> None:
    model = build(ARCHITECTURES["llama"], dtype=torch.float32, num_hidden_layers=8)
    weights = weight_bytes(model, torch.float32)
    assert place(model, torch.float32, weights, [weights // 2, weights * 2]) == {"": 1}
    spread = place(model, torch.float32, weights, [weights * 3 // 4, weights * 3 // 4])
    assert set(spread.values()) == {0, 1}
    layers = [name for name in spread if name.startswith("model.layers.")]
    assert sorted(layers) == [f"model.layers.{number}" for number in range(8)]  # none in pieces
    with pytest.raises(ModelTooLarge, match=r"needs .* and this machine has"):
        place(model, torch.float32, weights * 3, [weights, weights // 2])


def test_heads_are_counted_in_eager_attention() -> None:
    eager, sdpa = (build(ARCHITECTURES["llama"], attention, torch.float32) for attention in ("eager", "sdpa"))
    difference = activation_bytes(eager, torch.float32, [(1, LENGTH)], False) - activation_bytes(sdpa, torch.float32, [(1, LENGTH)], False)
    assert difference == 4 * LENGTH * HEADS * LENGTH * 2 * torch.float32.itemsize  # 2 layers and 2 beside
