"""Variants that send tokens to other experts than the reference: values within experts are not compared."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from analyzers.checkpoints import Access
from analyzers.language_models.samples import sample_folder
from analyzers.precision import PrecisionReport, PrecisionRequest, analyze

LAYERS, EXPERTS = 2, 8


def save(folder: Path, width: int) -> None:
    """Save a tiny model whose router's logits differ by less than a bf16 ULP, so that rounding chooses other experts."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": width, "head_dim": 8}
    sizes |= {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, num_experts=EXPERTS, num_experts_per_tok=2, decoder_sparse_step=1))
    with torch.no_grad():
        for layer in model.model.layers:
            gate = layer.mlp.gate.weight
            gate.copy_(torch.randn(1, 32) + 1e-4 * torch.randn_like(gate))
    model.save_pretrained(folder)
    for file in sample_folder("tiny-bf16").glob("token*"):
        shutil.copy(file, folder)


def chosen(folder: Path, token_ids: torch.Tensor, dtype: torch.dtype, experts: str) -> list[torch.Tensor]:
    """The experts of each token, by layer, in the model that transformers loads in ``dtype``."""
    from transformers import AutoModelForCausalLM

    indices: list[torch.Tensor] = []
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa", experts_implementation=experts)
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda module, given, result: indices.append(result[2]))
    with torch.no_grad():
        model(token_ids[:, :-1], use_cache=False)
    return indices


@pytest.mark.parametrize(("width", "experts"), [(32, "grouped_mm"), (36, "eager")])
def test_values_of_other_tokens_are_not_compared(width: int, experts: str, tmp_path: Path) -> None:
    """With all experts in one product, and one expert after the other, as for widths that the product does not support."""
    save(tmp_path, width)
    request = PrecisionRequest(model=str(tmp_path), data="random", sequence_length=24, inside=True, variants=("fp32", "bf16"))
    *_, report = analyze(request, Access(local=True))
    assert isinstance(report, PrecisionReport)
    token_ids = torch.tensor(report.inputs.token_ids)
    runs = [chosen(tmp_path, token_ids, dtype, experts) for dtype in (torch.float32, torch.bfloat16)]
    assert any((one.sort().values != other.sort().values).any() for one, other in zip(*runs, strict=True))
    same, narrow = report.variants["fp32"], report.variants["bf16"]
    assert all(row.rms_rel == 0 for row in same.tensors) and all(row.rms_rel is not None for row in narrow.tensors)
    assert "mlp.gate" in {row.name for row in narrow.tensors} and "mlp.experts.act_fn" not in {row.name for row in narrow.tensors}
