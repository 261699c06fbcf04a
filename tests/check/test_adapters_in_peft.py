"""Modules that peft leaves out of an adapter, as peft itself loads it."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.check.test_adapters import check
from tests.checkpoints.adapters import llama, write

pytestmark = [pytest.mark.exhaustive, pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")]

_FILE = "adapter_model.safetensors"
_WRAPPERS: dict[str, Callable[[str], str]] = {
    "none": lambda name: name,
    "default": lambda name: name.replace(".weight", ".default.weight"),
    "label": lambda name: name.replace(".weight", ".policy.weight"),
    "parallel": lambda name: f"module.{name}",
    "compiled": lambda name: name.replace("base_model.model.", "base_model.model._orig_mod."),
    "compiled attention": lambda name: name.replace("self_attn.", "self_attn._orig_mod."),
    "twice": lambda name: f"base_model.model.{name}",
    "bare": lambda name: name.removeprefix("base_model.model."),
    "multimodal": lambda name: name.replace("model.model.layers", "model.model.language_model.layers"),
    "sharded": lambda name: name.replace("layers.1.", "layers.1._fsdp_wrapped_module."),
}


@pytest.mark.parametrize("wrapper", _WRAPPERS)
def test_modules_that_peft_does_not_load(wrapper: str, tmp_path: Path) -> None:
    write(llama(), LoraConfig(r=4, target_modules=["q_proj", "up_proj"]), tmp_path)
    stored = load_file(tmp_path / "adapter" / _FILE)
    save_file({_WRAPPERS[wrapper](name): tensor for name, tensor in stored.items()}, tmp_path / "adapter" / _FILE)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = PeftModel.from_pretrained(base, tmp_path / "adapter")
    lost = sum(not parameter.any() for name, parameter in model.named_parameters() if "lora_B" in name)
    findings = check(tmp_path / "adapter", tmp_path / "base").findings
    assert sum(len(each.tensors) for each in findings if each.rule == "adapter-unmatched") == lost
    assert (lost > 0) == (wrapper not in ("none", "default"))


def test_a_base_that_transformers_does_not_know(tmp_path: Path) -> None:
    """Whether it has the modules is then not judged, which is said."""
    write(llama(), LoraConfig(r=4, target_modules=["q_proj"]), tmp_path)
    stored = load_file(tmp_path / "adapter" / _FILE)
    save_file({_WRAPPERS["compiled"](name): tensor for name, tensor in stored.items()}, tmp_path / "adapter" / _FILE)
    config = tmp_path / "base" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "unknown", "architectures": ["UnknownModel"]}))
    report = check(tmp_path / "adapter", tmp_path / "base")
    assert not report.findings and not report.loading_judged
    assert "names-not-judged" in {note.code for note in report.notes}
