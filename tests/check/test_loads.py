"""The rules `loads` and `empty`: agreement with transformers' own loader, hostile configurations, and without transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from analyzers.check import CheckReport, CheckRequest, Finding, analyze
from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.language_models import load_report
from tests.cases import few
from tests.check.mutations import ARCHITECTURES, MUTATIONS, build, saved
from tests.check.quantized_uploads import quantized
from tests.check.unloadable import WRONG_INDEXES
from tests.dtype.checkpoints import normal, write

LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5,
    "num_attention_heads": 4, "vocab_size": 96, "tie_word_embeddings": True,
}  # fmt: skip
TOY = {**LLAMA, "model_type": "toy", "architectures": ["ToyForCausalLM"]}
Q, UP = "model.layers.2.self_attn.q_proj.weight", "model.layers.2.mlp.up_proj.weight"
NORM, EMBEDDING = "model.norm.weight", "model.embed_tokens.weight"
Values = dict[str, torch.Tensor]


def llama() -> Values:
    """The tensors of `LLAMA`, whose head is tied."""
    values = {EMBEDDING: normal(96, 32), NORM: 1 + normal(32, scale=0.1)}
    for layer in range(5):
        at = f"model.layers.{layer}."
        values |= {f"{at}self_attn.{name}_proj.weight": normal(32, 32, seed=layer) for name in "qkvo"}
        values |= {f"{at}mlp.{name}_proj.weight": normal(48, 32, seed=layer) for name in ("gate", "up")}
        values[f"{at}mlp.down_proj.weight"] = normal(32, 48, seed=layer)
        values |= {f"{at}{name}_layernorm.weight": 1 + normal(32, scale=0.1) for name in ("input", "post_attention")}
    return values


def report_on(path: Path, base: Path | None = None) -> CheckReport:
    request = CheckRequest(model=str(path), base=str(base) if base else None)
    (report,) = (item for item in analyze(request, Access(local=True)) if isinstance(item, CheckReport))
    return report


def checked(path: Path) -> tuple[list[Finding], dict[str, Any]]:
    """Findings about loading, and the values of each note, by its code."""
    report = report_on(path)
    return [each for each in report.findings if each.rule in ("loads", "empty")], {note.code: note.values for note in report.notes}


def without(*names: str) -> Values:
    return {name: value for name, value in llama().items() if name not in names}


def transformers_faults(path: Path) -> bool:
    """Whether transformers raises, or reports missing or mismatched keys, loading the class that config.json names."""
    try:
        config = transformers.AutoConfig.from_pretrained(path)
        named = config.architectures or ["AutoModel"]
        model_class: Any = getattr(transformers, named if isinstance(named, str) else named[0])
        _, info = model_class.from_pretrained(path, config=config, output_loading_info=True)
    except Exception:
        return True
    return bool(info["missing_keys"] or info["mismatched_keys"])


def assert_agrees(path: Path) -> bool:
    """Assert that errors about loading are found exactly where transformers has them; returns whether it has."""
    found, notes = checked(path)
    faults = transformers_faults(path)
    assert any(each.level == "error" for each in found) == faults, (found, notes)
    assert "loading-not-judged" not in notes, notes
    return faults


@pytest.mark.parametrize("number", few(range(len(MUTATIONS)), range(0, len(MUTATIONS), 5)))
def test_it_is_an_error_where_transformers_has_one(number: int, tmp_path: Path) -> None:
    """Each mutation of one architecture, in turn."""
    change = list(MUTATIONS)[number]
    names = list(ARCHITECTURES)
    for offset in range(len(names)):
        path = build(tmp_path, names[(3 * number + offset) % len(names)], change)
        if path is not None:
            break
    assert path is not None
    assert_agrees(path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_is_an_error_where_transformers_has_one_in_all_mutations(architecture: str, tmp_path: Path) -> None:
    paths = [build(tmp_path, architecture, change) for change in MUTATIONS]
    faults = [assert_agrees(path) for path in paths if path is not None]
    assert len(faults) >= 16 and True in faults and False in faults


Expected = tuple[str, str, str, list[str]]
CASES: list[tuple[Values, dict[str, Any], list[Expected]]] = [
    (llama(), LLAMA, []),
    (llama(), LLAMA | {"tie_word_embeddings": False}, [("loads", "weights-missing", "error", ["lm_head.weight"])]),
    (without(Q), LLAMA, [("loads", "weights-missing", "error", [Q])]),
    (llama() | {Q: normal(16, 32)}, LLAMA, [("loads", "shapes-differ-from-the-model", "error", [Q])]),
    (llama() | {Q: torch.empty(0)}, LLAMA, [("empty", "tensors-without-values", "error", [Q])]),
    (llama() | {"mtp.fc.weight": normal(32, 32)}, LLAMA, [("loads", "weights-ignored", "warning", ["mtp.fc.weight"])]),
    (llama() | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, LLAMA, []),
    (llama(), LLAMA | {"auto_map": {"AutoModelForCausalLM": "other/repository--evil.Model"}, "surprise": {"a": [1] * 9}}, []),
]  # fmt: skip


@pytest.mark.parametrize(("values", "config", "expected"), CASES)
def test_what_is_found(values: Values, config: dict[str, Any], expected: list[Expected], tmp_path: Path) -> None:
    found, notes = checked(write(tmp_path, values, config))
    assert [(each.rule, each.code, each.level, list(each.tensors)) for each in found] == expected
    assert notes == {}


def test_what_transformers_cannot_convert(tmp_path: Path) -> None:
    """Experts stored one by one, one of them cut: they cannot be stacked."""
    values, config = saved("mixtral", tmp_path)
    name = next(name for name in sorted(values) if "experts.1." in name)
    values[name] = values[name][:4].clone()
    (found,), _ = checked(write(tmp_path / "in", values, config))
    assert (found.code, found.level, found.values["model"]) == ("refused-by-transformers", "error", "MixtralForCausalLM")
    assert transformers_faults(tmp_path / "in")


def test_buffers_are_not_initialised_at_random(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("resnet", depths=[1, 1], hidden_sizes=[8, 8], embedding_size=8, layer_type="basic")
    models: Any = transformers.AutoModel
    models.from_config(config).save_pretrained(tmp_path / "in")
    values = load_file(tmp_path / "in/model.safetensors")
    save_file({name: value for name, value in values.items() if "running_mean" not in name}, tmp_path / "in/model.safetensors")
    (found,), _ = checked(tmp_path / "in")
    assert found.level == "error" and found.values["parameters"] == 0 < found.values["buffers"]  # type: ignore[operator]


def test_a_head_that_is_the_embedding_in_a_pickle(tmp_path: Path) -> None:
    """Two names of one storage: both are stored, whether the configuration ties them or not."""
    values = llama()
    values["lm_head.weight"] = values[EMBEDDING]
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"tie_word_embeddings": False}))
    torch.save(values, tmp_path / "pytorch_model.bin")
    assert checked(tmp_path)[0] == []


def test_shards_that_no_index_names_are_not_loaded(tmp_path: Path) -> None:
    values = llama()
    save_file({name: value for name, value in values.items() if name != Q}, tmp_path / "model-00001-of-00001.safetensors")
    save_file({Q: values[Q]}, tmp_path / "more.safetensors")
    index = {"metadata": {}, "weight_map": {name: "model-00001-of-00001.safetensors" for name in values if name != Q}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (found,), _ = checked(tmp_path)
    assert found.level == "error" and found.tensors == (Q,)


Hostile = tuple[str, dict[str, Any], str]
HOSTILE: list[Hostile] = [
    ("layers", LLAMA | {"num_hidden_layers": 10**9}, "1,000,000,000 layers, more than 2,048"),
    ("text layers", LLAMA | {"text_config": {"num_hidden_layers": 10**9}}, ""),
    ("other layers", LLAMA | {"num_feat_extract_layers": 10**9}, ""),
    ("experts", LLAMA | {"model_type": "mixtral", "num_local_experts": 10**9, "architectures": []}, "experts in each of"),
    ("labels", LLAMA | {"architectures": ["LlamaForTokenClassification"], "num_labels": 10**9}, "memory"),
    ("remote code", TOY | {"auto_map": {"AutoConfig": "evil.C", "AutoModel": "evil.Model"}}, "code of the repository (auto_map"),
    ("another library", LLAMA | {"model_type": "deformable_detr", "use_timm_backbone": True, "architectures": ["DabDetrModel"]}, "library"),
    ("no such class", LLAMA | {"model_type": "llama4_vision_model", "architectures": ["ZorgModel"]}, 'transformers has no "ZorgModel"'),
]  # fmt: skip


@pytest.mark.parametrize(("config", "why"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_what_cannot_be_judged_is_said(config: dict[str, Any], why: str, tmp_path: Path) -> None:
    found, notes = checked(write(tmp_path, llama(), config))
    assert found == [] and why in notes["loading-not-judged"]["why"]


def test_fused_experts_that_it_ignores(tmp_path: Path) -> None:
    """As vLLM names them. Their names are not those of the files, so that their parameters are not counted rather than too few."""
    values, config = saved("mixtral", tmp_path)
    for layer in range(3):
        experts = f"model.layers.{layer}.block_sparse_moe.experts."
        parts = {name: values.pop(name) for name in sorted(values) if name.startswith(experts)}
        values[f"{experts}w2_weight"] = torch.stack([value for name, value in parts.items() if "w2" in name])
    found, _ = checked(write(tmp_path / "in", values, config))
    assert [(each.code, len(each.tensors)) for each in found] == [("weights-missing", 6), ("weights-ignored", 3)]


def test_an_attention_that_was_not_tried(tmp_path: Path) -> None:
    found, notes = checked(write(tmp_path, llama(), LLAMA | {"_attn_implementation": "flash_attention_2"}))
    assert found == [] and "flash_attention_2" in notes["loading-not-judged"]["why"]


@pytest.mark.parametrize(("depth", "why"), [(150, "nested more than 100 levels deep"), (900, "")])
def test_a_nested_configuration_is_not_faulted(depth: int, why: str, tmp_path: Path) -> None:
    write(tmp_path, llama(), None)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA)[:-1] + ', "x": ' + "[" * depth + "]" * depth + "}")
    found, notes = checked(tmp_path)
    assert found == [] and why in notes["loading-not-judged"]["why"]


def test_without_an_architecture_only_empty_tensors_are_found(tmp_path: Path) -> None:
    (found,), notes = checked(write(tmp_path, without(Q) | {UP: torch.empty(0)}, {"hidden_size": 32}))
    assert (found.rule, found.level, found.tensors) == ("empty", "error", (UP,))
    assert "loading-not-judged" in notes


def test_the_limit_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is limited in the test above, of a billion labels."""
    monkeypatch.setattr(limits, "LOADING_SECONDS", 0.02)
    assert "loading-not-judged" in checked(write(tmp_path / "deep", llama(), LLAMA | {"num_hidden_layers": 300}))[1]
    monkeypatch.undo()
    assert checked(write(tmp_path / "next", llama(), LLAMA)) == ([], {}), "the next checkpoint has another process"


def test_quantized_weights_are_not_judged(tmp_path: Path) -> None:
    values = without(Q) | {Q: torch.zeros(32, 32, dtype=torch.float8_e4m3fn), Q + "_scale_inv": torch.ones(1, 1)}
    config = LLAMA | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    found, notes = checked(write(tmp_path, values, config))
    assert found == [] and "loading-not-judged" in notes
    found, _ = checked(write(tmp_path, values, LLAMA))
    assert (found[0].code, found[0].level, list(found[0].tensors)) == ("quantization-not-stated", "error", [Q])
    (fault,), _ = checked(write(tmp_path, values, config | {"num_attention_heads": 0}))
    assert fault.code == "config-refused", "whatever the quantization"
    found, notes = checked(write(tmp_path / "plain", without(Q), LLAMA | {"quantization_config": {"quant_method": "awq", "bits": 4}}))
    assert found == [] and "loading-not-judged" in notes, "though the weights are plain"


def test_files_of_a_quantized_model_are_judged(tmp_path: Path) -> None:
    """bitsandbytes int8, which is decoded, beside norms that are floats."""
    values, config = quantized(llama(), LLAMA, "bnb-int8")
    write(tmp_path, values, config)
    assert WRONG_INDEXES["swapped"](tmp_path)
    report = report_on(tmp_path)
    assert [each.rule for each in report.findings if each.level == "error"] == ["index"]
    (account,) = report.coverage
    packed = sum(value.dtype == torch.int8 for value in values.values())
    assert {kind: each.tensors for kind, each in account.classes.items()} == {"read": len(values) - packed, "buffer": packed}
    assert report.whole and "loading-not-judged" in {note.code for note in report.notes}


def test_pruned_experts_are_no_wrong_shape(tmp_path: Path) -> None:
    """Half of the experts, with the router cut to them and config.json corrected, as transformers loads it; and not corrected."""
    values, config = saved("mixtral", tmp_path)
    base = write(tmp_path / "base", values, config)
    pruned = {name: value for name, value in values.items() if not any(f"experts.{number}." in name for number in (2, 3))}
    pruned |= {
        name: value[:2].clone() for name, value in pruned.items() if name.endswith("mlp.gate.weight") or name.endswith("moe.gate.weight")
    }
    for experts, level in ((2, "warning"), (4, "error")):
        path = write(tmp_path / f"pruned{experts}", pruned, config | {"num_local_experts": experts})
        (found,) = [each for each in report_on(path, base).findings if each.rule == "misshapen"]
        assert found.level == level and transformers_faults(path) == (level == "error")


def test_without_transformers_only_empty_tensors_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an installation without the extra "models", which is said."""
    monkeypatch.setattr(load_report, "find_spec", lambda name: None)
    (found,), notes = checked(write(tmp_path, without(Q) | {UP: torch.empty(0)}, LLAMA))
    assert found.rule == "empty" and "pip install 'mantissa[models]'" in notes["loading-not-judged"]["why"]
