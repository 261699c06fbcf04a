"""The rules `loads` and `empty`: agreement with transformers' own loader, sentences, hostile configurations, and without transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from analyzers import limits
from analyzers.check import CheckReport, CheckRequest, Finding, analyze
from analyzers.checkpoints import Access
from analyzers.language_models import bounded_process, load_report
from tests.cases import few
from tests.check.mutations import ARCHITECTURES, MUTATIONS, build, saved
from tests.check.unloadable import WRONG_INDEXES
from tests.dtype_detection.checkpoints import normal, write
from tests.library.test_operator_messages import wait_until

LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5,
    "num_attention_heads": 4, "vocab_size": 96, "tie_word_embeddings": True,
}  # fmt: skip
TOY = {**LLAMA, "model_type": "toy", "architectures": ["ToyForCausalLM"]}
Q, Q0, NORM, EMBEDDING = (
    "model.layers.2.self_attn.q_proj.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.norm.weight",
    "model.embed_tokens.weight",
)
UP, UP0 = "model.layers.2.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"
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


def checked(path: Path) -> tuple[list[Finding], list[str]]:
    """Findings about loading, and notes."""
    report = report_on(path)
    return [each for each in report.findings if each.rule in ("loads", "empty")], list(report.notes)


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
    assert not any("judged" in note for note in notes), notes
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
    assert len(faults) >= 25 and True in faults and False in faults


def test_there_are_enough_of_them() -> None:
    assert len(ARCHITECTURES) >= 12 and len(MUTATIONS) >= 15
    assert len({kind for kind, _, _ in ARCHITECTURES.values()}) >= 12
    assert 25 * len(ARCHITECTURES) >= 300


NO_HEAD = (
    "1 parameter of LlamaForCausalLM without a stored tensor, nor tied to one: transformers initialises them at random. config.json says "
    "that the head is not tied to the embedding"
)
Expected = tuple[str, str, str, list[str]]
CASES: list[tuple[Values, dict[str, Any], list[Expected]]] = [
    (llama(), LLAMA, []),
    (
        llama(),
        LLAMA | {"tie_word_embeddings": False},
        [("loads", "error", NO_HEAD, ["lm_head.weight"])],
    ),
    (without(Q), LLAMA, [("loads", "error", "initialises them at random. Save the whole model again", [Q])]),
    (llama() | {Q: normal(16, 32)}, LLAMA, [("loads", "error", "is [16, 32] and should be [32, 32]", [Q])]),
    (llama() | {Q: torch.empty(0)}, LLAMA, [("empty", "error", "1 of 47 tensors hold no values, where LlamaForCausalLM has weights", [Q])]),
    (llama() | {"mtp.fc.weight": normal(32, 32)}, LLAMA, [("loads", "warning", "1 stored tensor with 1,024 para", ["mtp.fc.weight"])]),
    (llama() | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, LLAMA, []),
]  # fmt: skip


@pytest.mark.parametrize(("values", "config", "expected"), CASES)
def test_what_is_said(values: Values, config: dict[str, Any], expected: list[Expected], tmp_path: Path) -> None:
    found, notes = checked(write(tmp_path, values, config))
    assert [(each.rule, each.level, list(each.tensors)) for each in found] == [(rule, level, names) for rule, level, _, names in expected]
    assert all(said in each.detail for each, (_, _, said, _) in zip(found, expected, strict=True)), found
    assert not any("judged" in note for note in notes)


def test_what_transformers_cannot_convert(tmp_path: Path) -> None:
    """Experts stored one by one, one of them cut: they cannot be stacked."""
    values, config = saved("mixtral", tmp_path)
    name = next(name for name in sorted(values) if "experts.1." in name)
    values[name] = values[name][:4].clone()
    (found,), _ = checked(write(tmp_path / "in", values, config))
    assert (found.rule, found.level, found.title) == ("loads", "error", "It cannot be loaded")
    assert found.detail.startswith("As MixtralForCausalLM, transformers refuses it: ") and found.detail.endswith("with save_pretrained.")
    assert transformers_faults(tmp_path / "in")


def test_buffers_are_not_initialised_at_random(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("resnet", depths=[1, 1], hidden_sizes=[8, 8], embedding_size=8, layer_type="basic")
    models: Any = transformers.AutoModel
    models.from_config(config).save_pretrained(tmp_path / "in")
    values = load_file(tmp_path / "in/model.safetensors")
    save_file({name: value for name, value in values.items() if "running_mean" not in name}, tmp_path / "in/model.safetensors")
    (found,), _ = checked(tmp_path / "in")
    assert found.level == "error" and "keep their initial values" in found.detail and "at random" not in found.detail


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
UNJUDGED: list[Hostile] = [
    ("layers", LLAMA | {"num_hidden_layers": 10**9}, "1,000,000,000 layers, more than 2,048"),
    ("text layers", LLAMA | {"text_config": {"num_hidden_layers": 10**9}}, "Compared instead: the number of layers with config.json"),
    ("other layers", LLAMA | {"num_feat_extract_layers": 10**9}, "and layers with each other; nothing else."),
    ("experts", LLAMA | {"model_type": "mixtral", "num_local_experts": 10**9, "architectures": []}, "experts in each of"),
    ("labels", LLAMA | {"architectures": ["LlamaForTokenClassification"], "num_labels": 10**9}, "memory"),
    ("remote code", TOY | {"auto_map": {"AutoConfig": "evil.C", "AutoModel": "evil.Model"}}, "code of the repository (auto_map"),
    ("another library", LLAMA | {"model_type": "deformable_detr", "use_timm_backbone": True, "architectures": ["DabDetrModel"]}, "library"),
    ("no such class", LLAMA | {"model_type": "llama4_vision_model", "architectures": ["ZorgModel"]}, 'transformers has no "ZorgModel"'),
]  # fmt: skip


@pytest.mark.parametrize(("config", "said"), [case[1:] for case in UNJUDGED], ids=[case[0] for case in UNJUDGED])
def test_what_cannot_be_judged_is_said(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    """One note, and no clearance where the tensors contradict what is stated."""
    found, notes = checked(write(tmp_path, llama(), config))
    (note,) = notes
    assert note.startswith("What transformers would load was not judged: ") and said in note and "\n" not in note
    stated = config.get("text_config", config).get("num_hidden_layers")
    assert [each.title for each in found] == (["Layers are missing"] if stated == 10**9 else [])


def test_layers_of_several_stacks_that_are_too_few(tmp_path: Path) -> None:
    """An encoder and a decoder, and a number of layers that neither the limit nor the two together reach."""
    values, config = saved("t5", tmp_path)
    (found,), (note,) = checked(write(tmp_path / "in", values, config | {"num_layers": 10**9}))
    assert found.title == "Layers are missing" and "1,000,000,000 layers, and the files hold 6" in found.detail
    assert "not judged" in note


def test_fused_experts_that_it_ignores(tmp_path: Path) -> None:
    """As vLLM names them. Their names are not those of the files, so that their parameters are not counted rather than too few."""
    values, config = saved("mixtral", tmp_path)
    for layer in range(3):
        experts = f"model.layers.{layer}.block_sparse_moe.experts."
        parts = {name: values.pop(name) for name in sorted(values) if name.startswith(experts)}
        values[f"{experts}w2_weight"] = torch.stack([value for name, value in parts.items() if "w2" in name])
    found, _ = checked(write(tmp_path / "in", values, config))
    assert [(each.title, len(each.tensors)) for each in found] == [("Weights are missing", 6), ("Weights that are ignored", 3)]
    assert found[1].detail == "3 stored tensors without a place in MixtralForCausalLM: transformers ignores them."


def test_an_attention_that_was_not_tried(tmp_path: Path) -> None:
    found, (note,) = checked(write(tmp_path, llama(), LLAMA | {"_attn_implementation": "flash_attention_2"}))
    assert found == [] and note.startswith('config.json asks for the attention "flash_attention_2", which was not tried')


def test_a_nested_configuration(tmp_path: Path) -> None:
    write(tmp_path, llama(), None)
    depth = 900
    (tmp_path / "config.json").write_text('{"model_type": "llama", "a": ' + "[" * depth + "]" * depth + "}")
    assert checked(tmp_path)[1] != []


def test_without_an_architecture_only_empty_tensors_are_found(tmp_path: Path) -> None:
    (found,), notes = checked(write(tmp_path, without(Q) | {UP: torch.empty(0)}, {"hidden_size": 32}))
    assert (found.rule, found.level, found.tensors) == ("empty", "error", (UP,))
    assert "names neither a model_type nor architectures" in notes[-1]


def test_unknown_keys_change_nothing(tmp_path: Path) -> None:
    config = LLAMA | {"auto_map": {"AutoModelForCausalLM": "other/repository--evil.Model"}, "surprise": {"a": [1] * 9}}
    assert checked(write(tmp_path, llama(), config)) == ([], [])


def test_the_limit_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is limited in the test above, of a billion labels."""
    monkeypatch.setattr(limits, "LOADING_SECONDS", 0.01)
    _, (note,) = checked(write(tmp_path, llama(), LLAMA))
    assert "" in note
    monkeypatch.undo()
    assert checked(tmp_path) == ([], []), "the next checkpoint has another process"


def test_quantized_weights_are_not_judged(tmp_path: Path) -> None:
    values = without(Q) | {Q: torch.zeros(32, 32, dtype=torch.float8_e4m3fn), Q + "_scale_inv": torch.ones(1, 1)}
    config = LLAMA | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    found, notes = checked(write(tmp_path, values, config))
    assert found == [] and any('the weights are quantized ("fp8")' in note for note in notes)
    (fault,), _ = checked(write(tmp_path, values, config | {"num_attention_heads": 0}))
    assert fault.title == "It cannot be loaded", "whatever the quantization"


@pytest.mark.parametrize("method", few(["gptq", "awq", "bitsandbytes", "fp8"], {0, 2}))
def test_plain_weights_that_config_json_says_are_quantized(method: str, tmp_path: Path) -> None:
    config = LLAMA | {"quantization_config": {"quant_method": method, "bits": 4, "load_in_8bit": method == "bitsandbytes"}}
    found, (note,) = checked(write(tmp_path, without(Q), config))
    assert found == [] and note.startswith("Whether transformers would load it was not judged: ")


def test_files_of_a_quantized_model_are_judged(tmp_path: Path) -> None:
    """bitsandbytes int8, whose norms are floats."""
    values: Values = {name: value for name, value in llama().items() if value.dim() == 1}
    for name in [name for name in llama() if name.endswith("proj.weight")]:
        values |= {name: torch.ones(llama()[name].shape, dtype=torch.int8), name.replace("weight", "SCB"): torch.ones(len(llama()[name]))}
    config = LLAMA | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    write(tmp_path, values, config)
    assert WRONG_INDEXES["swapped"](tmp_path)
    report = report_on(tmp_path)
    assert [(each.rule, each.level) for each in report.findings] == [("index", "error")]
    (account,) = report.coverage
    packed = sum(value.dtype == torch.int8 for value in values.values())
    assert {kind: each.tensors for kind, each in account.classes.items()} == {
        "read": len(values) - 2 * packed,
        "buffer": packed,
        "undecoded": packed,
    }
    assert {each.code for each in account.left_out} == {"undecoded"} and not report.whole
    assert " of the weights; left out: " in report.headline() and any("was not judged: config.json says" in note for note in report.notes)


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


@pytest.mark.exhaustive
def test_a_process_that_nobody_asks_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_process, "IDLE_SECONDS", 1)
    process = bounded_process.Bounded("loading")
    try:
        assert process.ask("load", config=LLAMA, tensors=[], generation=None)
        wait_until(process.has_ended)
    finally:
        process.close()


# Without transformers.


@pytest.fixture
def base_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an installation without the extra "models"."""
    monkeypatch.setattr(load_report, "find_spec", lambda name: None)


def lacking_layer(layer: int) -> Values:
    return {name: value for name, value in llama().items() if f".layers.{layer}." not in name}


def in_all_layers(rest: str, *shape: int) -> Values:
    return {f"model.layers.{layer}.{rest}": normal(*shape) for layer in range(5)}


Structure = tuple[Callable[[], Values], dict[str, Any], list[tuple[str, str, list[str]]]]
STRUCTURES: list[Structure] = [
    (llama, TOY, []),
    (lambda: without(Q), TOY, [("error", "Weights are missing", [Q])]),
    (lambda: without(Q0), TOY, [("error", "Weights are missing", [Q0])]),
    (lambda: without(Q, UP), TOY, [("error", "Weights are missing", [UP, Q])]),
    (lambda: without("model.layers.0.input_layernorm.weight"), TOY, []),  # as in ModernBERT
    (lambda: lacking_layer(4), TOY, [("error", "Layers are missing", [])]),
    (lambda: lacking_layer(1), TOY, [("error", "Layers are missing", [])]),
    (lambda: lacking_layer(4), TOY | {"num_hidden_layers": 4}, []),
    (lambda: without(Q.replace("2", "4", 1)), TOY | {"num_hidden_layers": 4, "num_nextn_predict_layers": 1}, []),
    (llama, TOY | {"num_hidden_layers": 4, "num_nextn_predict_layers": 1}, []),
    (llama, TOY | {"tie_word_embeddings": False}, [("error", "The head is missing", [])]),
    (lambda: without(EMBEDDING), TOY, [("error", "The embedding is missing", [])]),
    (llama, TOY | {"vocab_size": 97}, [("error", "Tokens without an embedding", [EMBEDDING])]),
    (lambda: llama() | {UP: normal(32, 48)}, TOY, [("error", "Shapes differ between layers", [UP])]),
    (lambda: llama() | {UP: torch.empty(0)}, TOY, [("error", "Tensors without values", [UP])]),
    (lambda: without(UP0) | {"model.layers.0.mlp.dense.weight": normal(9, 32)}, TOY, []),  # another kind of layer
    (lambda: llama() | in_all_layers("self_attn.q_proj.bias", 32), TOY, []),
]  # fmt: skip


@pytest.mark.usefixtures("base_package")
@pytest.mark.parametrize(("values", "config", "expected"), STRUCTURES)
def test_without_transformers(
    values: Callable[[], Values], config: dict[str, Any], expected: list[tuple[str, str, list[str]]], tmp_path: Path
) -> None:
    found, notes = checked(write(tmp_path, values(), config))
    assert [(each.level, each.title, list(each.tensors)) for each in found] == expected
    assert all("not by transformers" in each.detail for each in found if each.rule == "loads")
    assert any("transformers is not installed: pip install 'mantissa[models]'." in note for note in notes)


@pytest.mark.usefixtures("base_package")
def test_layers_beyond_those_stated_are_ignored(tmp_path: Path) -> None:
    (found,), _ = checked(write(tmp_path, llama(), TOY | {"num_hidden_layers": 4}))
    assert (found.level, found.title, len(found.tensors)) == ("warning", "Layers that are ignored", 9)


@pytest.mark.usefixtures("base_package")
@pytest.mark.parametrize("architecture", few(ARCHITECTURES, range(0, len(ARCHITECTURES), 3)))
def test_without_transformers_nothing_is_wrongly_condemned(architecture: str, tmp_path: Path) -> None:
    path = build(tmp_path, architecture, "unchanged")
    assert path is not None and checked(path)[0] == []


@pytest.mark.usefixtures("base_package")
@pytest.mark.parametrize("name", ["a.layer_groups.0.inner_layers.0.ffn.weight", "transformer.w.weight", "other.dense.weight"])
def test_without_transformers_only_what_is_certain_is_an_error(name: str, tmp_path: Path) -> None:
    """Layers may be shared, the embedding may have another name, and a matrix may be empty by design."""
    values = {f"h.{layer}.attn.weight": normal(8, 8) for layer in range(3)} if "group" not in name else {}
    values[name] = normal(0 if "other" in name else 8, 8)
    config = {"model_type": "toy", "num_hidden_layers": 3, "architectures": ["ToyLMHeadModel"]}
    assert checked(write(tmp_path, values, config))[0] == []
