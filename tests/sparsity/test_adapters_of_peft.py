"""Survival equals merging with peft and casting with torch, exactly."""

from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig
from safetensors.torch import load_file

from tests.checkpoints.adapters import llama, merged_by_peft, write
from tests.sparsity.adapters import lost
from tests.sparsity.test_adapters import described

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # used by peft
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`"),
    pytest.mark.filterwarnings("ignore:Could not find a config file in"),
]


@pytest.mark.parametrize(
    "settings",
    [
        {"r": 8, "lora_alpha": 2, "target_modules": "all-linear"},
        {"r": 4, "use_rslora": True, "target_modules": ["q_proj", "down_proj"]},
        {"r": 8, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        {"r": 8, "use_dora": True, "target_modules": ["q_proj", "up_proj"]},
    ],
)
def test_survival_is_that_of_peft(settings: dict[str, Any], tmp_path: Path) -> None:
    write(llama(hidden_size=160, num_attention_heads=4), LoraConfig(**settings), tmp_path)
    whole, tensors = merged_by_peft(tmp_path), load_file(tmp_path / "base" / "model.safetensors")
    changed = [name for name, tensor in tensors.items() if not tensor.float().equal(whole[name])]
    found = described(tmp_path / "base", tmp_path / "adapter")
    assert {row.name for row in found.modules} == {*changed}
    for name, survival in found.survival.items():
        assert survival is not None
        sums = lost(tensors, whole, name, changed)
        exact = not settings.get("use_dora")  # whose norms differ in their last bits
        assert survival.touched == pytest.approx(sums[0], rel=0 if exact else 1e-3)
        assert survival.changed_share == pytest.approx(sums[1] / sums[0], rel=0 if exact else 1e-3)
        assert survival.lost_norm == pytest.approx((sums[3] / sums[4]) ** 0.5, rel=1e-9 if exact else 1e-3)
