"""With --adapter beside, a base with an adapter computes what peft's unmerged model computes, and precision tells it from merging."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from analyzers.core.errors import InvalidRequest, MissingExtra, UnsupportedWeights
from analyzers.language_models.batch import Batch
from analyzers.language_models.load import OpenModel
from analyzers.language_models.samples import sample_folder
from tests.checkpoints.adapters import LOCAL, llama, write
from tests.checkpoints.adapters.test_peft import gpt2
from tests.language_models.analyses import report, request

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated",
    "ignore:Setting `save_embedding_layers` to `True`",
    "ignore:Could not find a config file in",
    "ignore:Adapter 'default'. 4 LoRA tensor",
)
_TOKENS = torch.tensor([[1, 2, 3, 4, 50, 6]])
_SAMPLE = "sample:tiny-bf16+sample:tiny-adapter"
_CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "linear": (llama, {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}),
    "patterns": (
        llama,
        {
            "r": 8,
            "use_rslora": True,
            "target_modules": ["q_proj", "down_proj"],
            "rank_pattern": {"layers.1.self_attn.q_proj": 4},
            "alpha_pattern": {r".*\.0\.mlp\.down_proj": 5},
        },
    ),
    "embedding": (llama, {"r": 8, "target_modules": ["embed_tokens", "q_proj"]}),
    "saved": (llama, {"r": 8, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "DoRA": (llama, {"r": 4, "use_dora": True, "target_modules": ["q_proj", "up_proj"]}),
    "Conv1D": (gpt2, {"r": 8, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
}


def _beside(model: str, dtype: Any = "float32") -> torch.Tensor:
    """Return the logits of the model that is loaded."""
    with OpenModel(model, LOCAL, dtype=dtype, device="cpu", adapter="beside") as opened:
        opened.check(Batch(_TOKENS, _TOKENS, (_TOKENS.shape[1],)))
        list(opened.fetch())
        loaded: Any = opened.load()
        assert not any(parameter.requires_grad for parameter in loaded.parameters())
        logits: torch.Tensor = loaded(_TOKENS).logits
        return logits


def _of_peft(folder: Path, adapters: dict[str, float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the logits of peft's model. adapters: with the weight of each."""
    base = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=dtype)
    first, *others = adapters
    model: Any = PeftModel.from_pretrained(base, str(folder / first), adapter_name=first)
    for name in others:
        model.load_adapter(str(folder / name), adapter_name=name)
    model.base_model.set_adapter(list(adapters))
    for module in model.modules():
        for name, weight in adapters.items():
            if weight != 1 and hasattr(module, "set_scale"):
                module.set_scale(name, weight)
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(_TOKENS).logits
    return logits


@pytest.mark.parametrize("name", _CASES)
def test_computes_what_peft_does(name: str, tmp_path: Path) -> None:
    make, settings = _CASES[name]
    write(make(), LoraConfig(**settings), tmp_path)
    for dtype in ("float32", "bfloat16"):
        theirs = _of_peft(tmp_path, {"adapter": 1.0}, getattr(torch, dtype))
        assert torch.equal(_beside(f"{tmp_path}/base+{tmp_path}/adapter", dtype), theirs), dtype


def test_several_adapters(tmp_path: Path) -> None:
    write(llama(), LoraConfig(r=8, target_modules=["q_proj", "down_proj"]), tmp_path)
    write(None, LoraConfig(r=4, lora_alpha=6, target_modules=["v_proj", "q_proj"]), tmp_path, base=False, seed=2)
    ours = _beside(f"{tmp_path}/base+0.75*{tmp_path}/adapter+-0.5*{tmp_path}/adapter-2")
    assert torch.equal(ours, _of_peft(tmp_path, {"adapter": 0.75, "adapter-2": -0.5}))


def _renamed(a: str, b: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter" / "adapter_model.safetensors"
        names = {name: name.replace(".lora_A", a).replace(".lora_B", b) for name in load_file(path)}
        save_file({names[name].removeprefix("base_model.model."): tensor for name, tensor in load_file(path).items()}, path)

    return change


def _pickled(folder: Path) -> None:
    path = folder / "adapter" / "adapter_model.safetensors"
    torch.save(load_file(path), path.with_suffix(".bin"))
    path.unlink()


@pytest.mark.parametrize(
    ("targets", "change", "said"),
    [
        (["q_proj"], _renamed(".lora_A", ".lora_B"), "peft loads no matrix of the name"),
        (["q_proj", "lm_head"], lambda folder: None, 'it changes the head, "lm_head"'),
        (["q_proj"], _pickled, "not in one safetensors file"),
    ],
)
def test_what_peft_does_not_load(targets: list[str], change: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    write(llama(), LoraConfig(r=4, target_modules=targets), tmp_path)
    change(tmp_path)
    with pytest.raises(UnsupportedWeights, match=said) as raised:
        _beside(f"{tmp_path}/base+{tmp_path}/adapter")
    assert str(raised.value).endswith("run it merged (--adapter merged).")


def test_no_adapter_and_no_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="has no adapter to run unmerged: name one, as BASE"):
        _beside("sample:tiny-bf16")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtra) as raised:
        _beside(_SAMPLE)
    assert str(raised.value) == "This needs peft, which is not installed: pip install 'mantissa[adapters]'."


def _log_probabilities(model: Any, rows: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(rows[:, :-1]).logits.float()
    return logits.log_softmax(-1).gather(-1, rows[:, 1:, None])


def test_precision_tells_what_merging_costs(tmp_path: Path) -> None:
    """Both ways are compared with the adapter merged in fp32, as by peft and torch."""
    asked = request("precision", _SAMPLE, variants=("bf16_merged", "bf16_beside"))
    found = report("precision", asked)
    rows = torch.tensor(asked.token_ids)

    def loaded(dtype: torch.dtype) -> Any:
        base = AutoModelForCausalLM.from_pretrained(sample_folder("tiny-bf16"), dtype=dtype)
        return PeftModel.from_pretrained(base, str(sample_folder("tiny-adapter")))

    whole = loaded(torch.float32).merge_and_unload()
    whole.save_pretrained(tmp_path)
    reference = _log_probabilities(whole, rows)
    ways = {"bf16_merged": AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16), "bf16_beside": loaded(torch.bfloat16)}
    errors = {name: float((_log_probabilities(model, rows) - reference).abs().mean()) for name, model in ways.items()}
    for name, error in errors.items():
        # The reference's fp32 attention may differ in its last bits, by 1e-6 nats; rounding to bf16 costs 1e-3 and more.
        assert found.variants[name].summary.logprob_mean == pytest.approx(error, rel=1e-2), name


def test_precision_of_every_variant_beside() -> None:
    """--adapter is for the variants that do not say otherwise; tensors inside layers have the names of the reference."""
    mine = "mine: dtype=bf16, fp32=softmax+residual+norms, attention=eager"
    found = report("precision", request("precision", _SAMPLE, variants=("fp32", "bf16", "bf16_merged", mine), adapter="beside"))
    assert [each.settings.adapter for each in found.variants.values()] == ["beside", "beside", "merged", "beside"]
    assert 0 < found.variants["fp32"].summary.logprob_mean < 1e-5
    assert {row.name for row in found.variants["bf16"].tensors} == {row.name for row in found.variants["bf16_merged"].tensors}
    for name, wrong in (("random_init", "random weights have no adapter"), ("pre_rounded", "only where the adapter is merged")):
        with pytest.raises(ValueError, match=wrong):
            request("precision", _SAMPLE, adapter="beside", **{name: True})


@pytest.mark.parametrize("kind", ["conflict", "exit"])
def test_conflict_and_exit(kind: str, tmp_path: Path) -> None:
    """In fp32 an adapter beside its base is the same function as the merged one, up to rounding."""
    write(llama(), LoraConfig(r=8, target_modules="all-linear"), tmp_path)
    model = f"{tmp_path}/base+{tmp_path}/adapter"
    merged, beside = (report(kind, request(kind, model, adapter=adapter, dtype="float32")) for adapter in ("merged", "beside"))
    assert merged.id != beside.id
    assert any(note.code == "beside" for note in beside.notes)
    losses = [(one.loss, other.loss) for one, other in zip(merged.samples, beside.samples, strict=True)] if kind == "conflict" else []
    cosines = [(each.total_cosine, beside.methods[name].total_cosine) for name, each in merged.methods.items()] if kind == "exit" else []
    for one, other in [*losses, *cosines]:
        assert one == pytest.approx(other, abs=1e-4)
    if kind == "conflict":
        assert merged.headline == beside.headline
