"""What a run takes: estimates against what it keeps, and where a model goes."""

from typing import Any

import pytest
import torch
from torch import Tensor

from analyzers.core.errors import ModelTooLarge
from analyzers.language_models.batch import Batch
from analyzers.language_models.lm_head import logits_bytes
from analyzers.language_models.memory_needs import activation_bytes, place, weight_bytes
from analyzers.language_models.unit_gradients import UnitPass
from tests.cases import few
from tests.language_models.architectures import ARCHITECTURES, HIDDEN, build

LENGTH = 48


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", few(["llama", "gpt2", "bloom", "gpt_oss", "deepseek_v3", "lfm2", "qwen3_next", "falcon_h1"], {0, 2, 6, 7}))
def test_an_estimate_is_above_what_is_kept_and_not_far(name: str, dtype: torch.dtype, attention: str) -> None:
    """Against what autograd saves while one layer is recomputed, and the states between layers."""
    if attention == "sdpa" and name in ("bloom", "gpt_oss"):
        attention = "eager"
    model: Any = build(ARCHITECTURES[name], attention, dtype)
    tokens = torch.randint(3, 67, (4, LENGTH), generator=torch.Generator().manual_seed(0))
    passed = UnitPass(model, Batch(tokens, tokens.clone(), (LENGTH,) * 4))
    list(passed.forward())
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        next(iter(passed.backward()))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = sum(size for place, size in storages.items() if place not in weights) + 4 * LENGTH * HIDDEN * dtype.itemsize * 3
    assert kept < activation_bytes(model, dtype, [LENGTH] * 4) - logits_bytes(model, dtype) < 32 * kept


def test_weights_and_buffers_are_counted() -> None:
    model = build(ARCHITECTURES["llama"], dtype=torch.float32, tie_word_embeddings=True)
    weights = sum(tensor.nbytes for name, tensor in model.state_dict().items() if name != "lm_head.weight")
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    assert weight_bytes(model, torch.float32) == weights + buffers
    assert weight_bytes(model, torch.bfloat16) == weights // 2 + buffers


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
