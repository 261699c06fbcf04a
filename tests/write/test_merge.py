"""A merged folder loads as what peft merges and torch rounds, is whole or absent, and its losses are those of brute force."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from analyzers.__main__ import main
from analyzers.core.errors import InvalidCheckpoint, MantissaError
from analyzers.write.merge import merge
from analyzers.write.report import MergeReport, MergeTo
from tests.checkpoints.adapters import LOCAL, assert_same, llama, merged_by_peft, merged_here, write

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`"),
    pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied"),
]


def _merge(folder: Path, to: MergeTo, model: str = "{0}/base+{0}/adapter") -> MergeReport:
    *_, report = merge(model.format(folder), str(folder / "out"), to, LOCAL)
    assert isinstance(report, MergeReport)
    return report


@pytest.mark.parametrize("to", ["fp32", "bf16", "fp16"])
def test_equals_peft_and_torch(to: MergeTo, tmp_path: Path) -> None:
    def empty(model: Any) -> None:  # one module changes nothing
        model.base_model.model.model.layers[0].self_attn.q_proj.lora_B.default.weight.data.zero_()

    write(llama(), LoraConfig(r=8, lora_alpha=1, target_modules=["q_proj", "down_proj"]), tmp_path, change=empty)
    theirs, kind = merged_by_peft(tmp_path), {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[to]
    merged = {name: torch.from_numpy(values) for name, values in merged_here(tmp_path).items()}
    report = _merge(tmp_path, to)
    ours = load_file(tmp_path / "out" / "model.safetensors")
    assert_same({name: tensor.numpy() for name, tensor in merged.items()}, theirs)
    assert ours.keys() == theirs.keys()
    assert all(tensor.dtype == kind and torch.equal(tensor, merged[name].to(kind)) for name, tensor in ours.items())
    base = {name: tensor.float() for name, tensor in load_file(tmp_path / "base" / "model.safetensors").items()}
    names = [name for name in base if "q_proj" in name or "down_proj" in name]
    old, new = (torch.cat([each[name].flatten() for name in names]) for each in (base, merged))
    update, kept = new.double() - old.double(), new.to(kind).double() - old.to(kind).double()
    assert report.touched == int((update != 0).sum()) < update.numel()
    assert report.changed_share == pytest.approx(float((kept[update != 0] != 0).float().mean()))
    assert report.lost_norm == pytest.approx(float((kept - update).norm() / update.norm()), abs=1e-12)
    assert (report.lost_norm == 0) == (to == "fp32")
    assert (report.computed, report.replaced, report.overflowed) == (len(names), 0, 0)
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    model, info = loaded
    assert model.dtype == kind
    assert not any(info.values())


def test_sharded_base(tmp_path: Path) -> None:
    write(llama(), LoraConfig(r=8, target_modules=["q_proj"]), tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.bfloat16)
    for path in (tmp_path / "base").glob("*.safetensors"):
        path.unlink()
    model.save_pretrained(tmp_path / "base", max_shard_size="20KB")
    theirs = merged_by_peft(tmp_path)
    _merge(tmp_path, "fp32")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert_same({name: tensor.numpy() for name, tensor in loaded.items()}, theirs)


def test_adapter_in_the_folder_of_its_base(tmp_path: Path) -> None:
    """The merged folder holds no adapter, which transformers would load on top of the merged weights."""
    write(llama(), LoraConfig(r=8, target_modules=["q_proj"]), tmp_path)
    theirs = merged_by_peft(tmp_path)
    for path in (tmp_path / "adapter").iterdir():
        path.rename(tmp_path / "base" / path.name)
    report = _merge(tmp_path, "fp32", "{0}/base+{0}/base")
    assert {note.code for note in report.notes} == {"merged"}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert_same({name: tensor.numpy() for name, tensor in loaded.items()}, theirs)


def test_refusals(tmp_path: Path) -> None:
    write(llama(), LoraConfig(r=8, target_modules=["q_proj"]), tmp_path)
    (tmp_path / "taken").mkdir()
    for model, out, said in (
        (f"{tmp_path}/base", "out", "is not an adapter: name a base and an adapter to merge"),
        (f"{tmp_path}/base+{tmp_path}/adapter", "taken", "exists already"),
        (f"{tmp_path}/base+{tmp_path}/adapter", "base/out", "is inside the checkpoint"),
        (f"{tmp_path}/base+{tmp_path}/none", "out", "is not a folder or file"),
    ):
        with pytest.raises(MantissaError, match=said):
            list(merge(model, str(tmp_path / out), "fp32", LOCAL))
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "taken").iterdir())


def test_matrices_that_are_not_finite(tmp_path: Path) -> None:
    """Nothing is written, and the tensors are named; a replaced tensor with NaN too."""

    def broken(model: Any) -> None:
        layer = model.base_model.model.model.layers[1].self_attn
        layer.q_proj.lora_B.default.weight.data[3] = torch.inf
        model.base_model.model.lm_head.modules_to_save.default.weight.data[0, :5] = torch.nan

    write(llama(), LoraConfig(r=8, target_modules=["q_proj"], modules_to_save=["lm_head"]), tmp_path, change=broken)
    with pytest.raises(
        InvalidCheckpoint, match=r'makes weights of "(model\.layers\.1\.self_attn\.q_proj|lm_head)\.weight" NaN or infinite'
    ):
        _merge(tmp_path, "fp32")
    assert not (tmp_path / "out").exists()


def test_overflow(tmp_path: Path) -> None:
    """Weights beyond fp16 are counted and named, computed or not; in bf16 they fit."""

    def large(model: Any) -> None:
        model.base_model.model.model.layers[0].self_attn.q_proj.lora_B.default.weight.data[2] *= 1e8

    model = llama()
    model.model.layers[1].mlp.up_proj.weight.data[0, 0] = 1e6
    write(model, LoraConfig(r=8, target_modules=["q_proj"]), tmp_path, change=large)
    report = _merge(tmp_path, "fp16")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    infinite = {name: int(tensor.isinf().sum()) for name, tensor in stored.items() if tensor.isinf().any()}
    assert report.overflowed == sum(infinite.values()) > 2
    (found,) = [note.values for note in report.notes if note.code == "overflowed"]
    assert len(infinite) == 2 and set(infinite) == set(found["names"])  # type: ignore[arg-type]
    assert report.lost_norm is not None and np.isfinite(report.lost_norm)
    *_, last = merge(f"{tmp_path}/base+{tmp_path}/adapter", str(tmp_path / "again"), "bf16", LOCAL)
    assert isinstance(last, MergeReport) and not last.overflowed


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(llama(), LoraConfig(r=8, lora_alpha=1, target_modules=["q_proj"]), tmp_path)
    arguments = ["merge", f"{tmp_path}/base+{tmp_path}/adapter", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--to", "bf16"]) == 0
    said = capsys.readouterr().out
    assert "in bf16, 21 tensors. Read back and compared" in said and "of the update's norm is lost" in said
    assert main([*arguments, "--json"]) == 2
