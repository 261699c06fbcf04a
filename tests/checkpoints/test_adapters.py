"""Which checkpoints are adapters, by the names of their tensors."""

import pytest

from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.adapters import adapter_note, is_adapter

_KOHYA = "in kohya's layout"


def _tensors(*names: str) -> list[Tensor]:
    return [Tensor(name, "F32", (2,), 0, 8 * at, 8, "other", None, False) for at, name in enumerate(names)]


@pytest.mark.parametrize(
    ("names", "image"),
    [
        (
            [
                "lora_unet_down_blocks_0_to_q.lora_down.weight",
                "lora_unet_down_blocks_0_to_q.lora_up.weight",
                "lora_unet_down_blocks_0_to_q.alpha",
            ],
            True,
        ),
        (["unet.down_blocks.0.processor.to_q_lora.down.weight", "unet.down_blocks.0.processor.to_q_lora.up.weight"], True),
        (["double_blocks.0.processor.qkv_lora1.down.weight", "double_blocks.0.processor.qkv_lora1.up.weight"], True),
        (["lora_unet_x.hada_w1_a", "lora_unet_x.hada_w1_b", "lora_unet_x.hada_w2_a", "lora_unet_x.hada_w2_b", "lora_unet_x.alpha"], True),
        (["lora_unet_x.lokr_w1", "lora_unet_x.lokr_w2_a", "lora_unet_x.lokr_w2_b", "lora_unet_x.alpha"], True),
        (["lora_te_x.oft_blocks", "lora_te_x.oft_diag"], True),
        (["base_model.model.q_proj.lora_A.weight", "base_model.model.q_proj.lora_B.weight"], False),
        (["blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"], False),
        (["base_model.model.q_proj.oft_R.weight"], False),
        (["prompt_embeddings"], False),
    ],
)
def test_adapters(names: list[str], image: bool) -> None:
    tensors = _tensors(*names)
    assert is_adapter(["x.safetensors"], tensors)
    note = adapter_note(None, tensors)
    assert note.startswith("This is an adapter (LoRA or the like")
    assert (_KOHYA in note) is image


def test_models_with_a_few_or_similar_names_are_no_adapters() -> None:
    assert not is_adapter(["x.safetensors"], _tensors("model.q_proj.weight", "model.up.weight", "model.q_proj.lora_A.weight"))
    assert not is_adapter(["x.safetensors"], _tensors("explora.down.weight", "mlp.up.weight", "blocks.0.down.weight"))
    assert is_adapter(["adapter_model.safetensors"], _tensors("anything"))
