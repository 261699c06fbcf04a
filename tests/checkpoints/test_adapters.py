"""Which checkpoints are adapters, by the names of their tensors."""

import pytest

from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.adapters import is_adapter


def _tensors(*names: str) -> list[Tensor]:
    return [Tensor(name, "F32", (2,), 0, 8 * at, 8, "other", None, False) for at, name in enumerate(names)]


@pytest.mark.parametrize(
    "names",
    [
        ["lora_unet_x.lora_down.weight", "lora_unet_x.lora_up.weight", "lora_unet_x.alpha"],
        ["unet.down_blocks.0.processor.to_q_lora.down.weight", "unet.down_blocks.0.processor.to_q_lora.up.weight"],
        ["double_blocks.0.processor.qkv_lora1.down.weight", "double_blocks.0.processor.qkv_lora1.up.weight"],
        ["lora_unet_x.hada_w1_a", "lora_unet_x.hada_w1_b", "lora_unet_x.hada_w2_a", "lora_unet_x.hada_w2_b", "lora_unet_x.alpha"],
        ["lora_unet_x.lokr_w1", "lora_unet_x.lokr_w2_a", "lora_unet_x.lokr_w2_b", "lora_unet_x.alpha"],
        ["lora_te_x.oft_blocks", "lora_te_x.oft_diag"],
        ["base_model.model.q_proj.lora_A.weight", "base_model.model.q_proj.lora_B.weight"],
        ["blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"],
        ["base_model.model.q_proj.oft_R.weight"],
        ["prompt_embeddings"],
    ],
)
def test_adapters(names: list[str]) -> None:
    assert is_adapter(["x.safetensors"], _tensors(*names))


def test_models_with_a_few_or_similar_names_are_no_adapters() -> None:
    assert not is_adapter(["x.safetensors"], _tensors("model.q_proj.weight", "model.up.weight", "model.q_proj.lora_A.weight"))
    assert not is_adapter(["x.safetensors"], _tensors("explora.down.weight", "mlp.up.weight", "blocks.0.down.weight"))
    assert is_adapter(["adapter_model.safetensors"], _tensors("anything"))
