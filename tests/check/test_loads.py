"""The rules `loads` and `empty`: agreement with transformers' own loader, sentences, hostile configurations, and without transformers."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from analyzers import limits
from analyzers.check import CheckReport, CheckRequest, Finding, analyze
from analyzers.checkpoints import Access
from analyzers.language_models import bounded_process, loading
from tests.check.mutations import ARCHITECTURES, MUTATIONS, build, saved
from tests.dtype_detection.checkpoints import normal, write

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


@pytest.fixture(autouse=True, scope="module")
def _processes() -> Iterator[None]:
    """End the process that waits for another request."""
    yield
    for process in bounded_process._ready[:]:
        bounded_process._ready.remove(process)
        process.close()


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


def checked(path: Path) -> tuple[list[Finding], list[str]]:
    """Findings about loading, and notes."""
    (report,) = (item for item in analyze(CheckRequest(model=str(path)), Access(local=True)) if isinstance(item, CheckReport))
    return [each for each in report.findings if each.rule in ("loads", "empty")], list(report.notes)


def without(*names: str) -> Values:
    return {name: value for name, value in llama().items() if name not in names}


def transformers_faults(path: Path) -> bool:
    """Whether transformers raises, or reports missing or mismatched keys."""
    config = json.loads((path / "config.json").read_text())
    model_class: Any = getattr(transformers, config.get("architectures", ["AutoModel"])[0])
    try:
        _, info = model_class.from_pretrained(path, output_loading_info=True)
    except RuntimeError:
        return True
    return bool(info["missing_keys"] or info["mismatched_keys"])


def assert_agrees(path: Path) -> bool:
    """Assert that errors about loading are found exactly where transformers has them; returns whether it has."""
    found, notes = checked(path)
    faults = transformers_faults(path)
    assert any(each.level == "error" for each in found) == faults, (found, notes)
    assert not any("judged" in note for note in notes), notes
    return faults


@pytest.mark.parametrize("number", range(len(MUTATIONS)))
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
HOSTILE: list[Hostile] = [
    ("layers", LLAMA | {"num_hidden_layers": 10**9}, "1,000,000,000 layers, more than 2,048"),
    ("experts", LLAMA | {"model_type": "mixtral", "num_local_experts": 10**9, "architectures": []}, "experts in each of"),
    ("labels", LLAMA | {"architectures": ["LlamaForTokenClassification"], "num_labels": 10**9}, "memory (MANTISSA_LOADING_MEMORY)"),
    ("vocabulary", LLAMA | {"vocab_size": 10**30}, "No model can be built from config.json"),
    ("no heads", LLAMA | {"num_attention_heads": 0}, "No model can be built from config.json"),
    ("wrong type", LLAMA | {"hidden_size": "wide"}, "No model can be built from config.json"),
    ("remote code", {"auto_map": {"AutoModel": "evil.Model"}, "architectures": ["MyModel"]}, 'transformers has no "MyModel"'),
    ("no class", LLAMA | {"architectures": ["AutoModel"]}, 'transformers has no "AutoModel"'),
    ("a function", LLAMA | {"architectures": ["pipeline"]}, 'transformers has no "pipeline"'),
    ("another type", LLAMA | {"architectures": ["BertModel"]}, 'transformers has no "BertModel of the type llama"'),
    ("unknown", {"model_type": "../../etc/passwd"}, 'transformers has no "../../etc/passwd"'),
    ("odd", {"model_type": ["llama"], "architectures": {"a": 1}}, "transformers has no"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "said"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_hostile_configurations(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    """One note, and no clearance where the tensors contradict what is stated."""
    found, notes = checked(write(tmp_path, llama(), config))
    (note,) = notes
    assert note.startswith("What transformers would load was not judged: ") and said in note and "\n" not in note
    if config.get("num_hidden_layers") == 10**9:
        assert [each.title for each in found] == ["Layers are missing"]


def test_a_nested_configuration(tmp_path: Path) -> None:
    write(tmp_path, llama(), None)
    depth = 900
    (tmp_path / "config.json").write_text('{"model_type": "llama", "a": ' + "[" * depth + "]" * depth + "}")
    assert checked(tmp_path)[1] != []


def test_without_an_architecture_only_empty_tensors_are_found(tmp_path: Path) -> None:
    (found,), notes = checked(write(tmp_path, without(Q) | {UP: torch.empty(0, 32)}, {"hidden_size": 32}))
    assert (found.rule, found.level, found.tensors, notes) == ("empty", "error", (UP,), [])


def test_unknown_keys_change_nothing(tmp_path: Path) -> None:
    config = LLAMA | {"auto_map": {"AutoModelForCausalLM": "other/repository--evil.Model"}, "surprise": {"a": [1] * 9}, "dtype": "banana"}
    assert checked(write(tmp_path, llama(), config)) == ([], [])


def test_the_limit_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is limited in the test above, of a billion labels."""
    monkeypatch.setattr(limits, "LOADING_SECONDS", 0.01)
    _, (note,) = checked(write(tmp_path, llama(), LLAMA))
    assert "(MANTISSA_LOADING_SECONDS)" in note


def test_quantized_weights_are_not_judged(tmp_path: Path) -> None:
    values = without(Q) | {Q: torch.zeros(32, 32, dtype=torch.float8_e4m3fn), Q + "_scale_inv": torch.ones(1, 1)}
    config = LLAMA | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    found, notes = checked(write(tmp_path, values, config))
    assert found == [] and any("The weights are quantized (fp8)" in note for note in notes)


# Without transformers.


@pytest.fixture
def base_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an installation without the extra "models"."""
    monkeypatch.setattr(loading, "find_spec", lambda name: None)


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


def test_layers_beyond_those_stated_are_ignored(tmp_path: Path) -> None:
    (found,), _ = checked(write(tmp_path, llama(), TOY | {"num_hidden_layers": 4}))
    assert (found.level, found.title, len(found.tensors)) == ("warning", "Layers that are ignored", 9)


@pytest.mark.usefixtures("base_package")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_without_transformers_nothing_is_wrongly_condemned(architecture: str, tmp_path: Path) -> None:
    path = build(tmp_path, architecture, "unchanged")
    assert path is not None and checked(path)[0] == []
