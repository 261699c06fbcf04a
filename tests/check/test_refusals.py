"""The rule `loads` on configurations and files that transformers refuses, or loads as another class: agreement."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import save_file

from tests.cases import few
from tests.check.mutations import ARCHITECTURES, build
from tests.check.test_loads import LLAMA, Hostile, Q, assert_agrees, checked, llama, report_on, transformers_faults, without
from tests.check.unloadable import CHANGES, PICKLES, WRONG_INDEXES, Change
from tests.checkpoints.test_gguf_header import written
from tests.dtype.checkpoints import normal, write


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_is_an_error_where_transformers_refuses_the_files_in_all_changes(architecture: str, tmp_path: Path) -> None:
    faults = []
    for name, change in CHANGES.items():
        path = build(tmp_path / name, architecture, "unchanged")
        if path is not None and change(path):
            faults.append(assert_agrees(path))
    assert len(faults) >= 50 and True in faults and False in faults


def _file(name: str, text: str) -> Change:
    def change(folder: Path) -> bool:
        (folder / name).write_text(text)
        return True

    return change


BESIDE: dict[str, Change] = {
    "generation-list": _file("generation_config.json", "[]"),
    "generation-text": _file("generation_config.json", '{"max_new_tokens": "x"}'),
    "generation-cut": _file("generation_config.json", "{"),
    "adapter-cut": _file("adapter_config.json", "{"),
    "adapter-alone": _file("adapter_config.json", '{"peft_type": "LORA", "base_model_name_or_path": "x"}'),
}


# A few changes of each kind; all of config.json and the index are below.
_FEW = ("width-infinite", "rope-type", "quantized-unknown", "class-as-text", "byte-order-mark", "no-metadata")
AGREED = {name: CHANGES[name] for name in _FEW} | PICKLES | BESIDE


@pytest.mark.filterwarnings("ignore:Detected pickle protocol 3")  # which torch.load reads
@pytest.mark.parametrize("change", few(AGREED, {0, 2, 4, *range(6, len(AGREED), 6)}))
def test_it_is_an_error_where_transformers_refuses_a_file(change: str, tmp_path: Path) -> None:
    path = build(tmp_path, "llama", "unchanged")
    assert path is not None and AGREED[change](path)
    assert_agrees(path)


@pytest.mark.parametrize("key", few(["_attn_implementation", "experts_implementation"], {1}))
def test_an_implementation_that_transformers_does_not_know(key: str, tmp_path: Path) -> None:
    path = write(tmp_path, llama(), LLAMA | {key: "zorg"})
    assert assert_agrees(path) and "zorg" in str(checked(path)[0][0].values["why"])


@pytest.mark.parametrize("key", ["encoder_layers", "decoder_layers"])
def test_hostile_counts_of_layers_of_several_stacks(key: str, tmp_path: Path) -> None:
    """Not tried."""
    path = build(tmp_path, "bart", "unchanged")
    assert path is not None
    (path / "config.json").write_text(json.dumps(json.loads((path / "config.json").read_text()) | {key: 10**9}))
    found, notes = checked(path)
    assert found == [] and f'by "{key}" in config.json' in notes["loading-not-judged"]["why"]


INSTEAD: list[Hostile] = [
    ("no class", LLAMA | {"architectures": ["AutoModel"]}, "LlamaModel"),
    ("a function", LLAMA | {"architectures": ["pipeline"]}, "LlamaModel"),
    ("another type", LLAMA | {"architectures": ["BertModel"]}, "LlamaModel"),
    ("code of its own", LLAMA | {"architectures": ["ZorgForCausalLM"], "auto_map": {"AutoModelForCausalLM": "m.M"}}, "LlamaForCausalLM"),
]


@pytest.mark.parametrize(("config", "taken"), few((case[1:] for case in INSTEAD), {0, 2}, [case[0] for case in INSTEAD]))
def test_a_class_that_transformers_does_not_have(config: dict[str, Any], taken: str, tmp_path: Path) -> None:
    """AutoModel takes another one, which is judged, and a note says so."""
    path = write(tmp_path, without(Q), config)
    (found,), notes = checked(path)
    assert found.tensors == (Q.removeprefix("model.") if taken == "LlamaModel" else Q,)
    assert notes["class-instead"] == {"named": config["architectures"][0], "model": taken}
    models: Any = transformers.AutoModel if taken == "LlamaModel" else transformers.AutoModelForCausalLM
    model, info = models.from_pretrained(path, output_loading_info=True)
    assert type(model).__name__ == taken and set(info["missing_keys"]) == set(found.tensors)


REFUSED: list[Hostile] = [
    ("vocabulary", LLAMA | {"vocab_size": 10**30}, "Overflow"),
    ("no heads", LLAMA | {"num_attention_heads": 0}, "modulo by zero"),
    ("wrong type", LLAMA | {"hidden_size": "wide"}, "expected int, got str"),
    ("activation", LLAMA | {"hidden_act": "zorg"}, "does not know 'zorg'"),
    ("dtype", LLAMA | {"dtype": "float99"}, "no attribute 'float99'"),
    ("unknown", {"model_type": "../../etc/passwd"}, "does not know the model_type '../../etc/passwd'; a newer release"),
    ("odd", {"model_type": ["llama"], "architectures": {"a": 1}}, "does not know the model_type ['llama']"),
    ("no type", {"auto_map": {"AutoModel": "evil.Model"}, "architectures": ["MyModel"]}, "names no model_type"),
]


@pytest.mark.parametrize(("config", "said"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_why_no_model_can_be_built(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    """One line, without a place in the library's code."""
    (found,), notes = checked(write(tmp_path, llama(), config))
    assert (found.code, found.level, notes) == ("config-refused", "error", {})
    why = str(found.values["why"])
    assert said in why and "\n" not in why and ".py" not in why and "frame #" not in why
    assert transformers_faults(tmp_path)


FILES = {
    "variant": "weights-not-found",
    "sft": "weights-not-found",
    "no-index": "weights-not-found",
    "null-metadata": "file-refused",
    "wrapped": "file-refused",
    "without-config": "config-missing",
    "latin-1": "config-refused",
}


@pytest.mark.parametrize("change", FILES)
def test_what_is_found_of_files(change: str, tmp_path: Path) -> None:
    path = build(tmp_path, "llama", "unchanged")
    assert path is not None and CHANGES[change](path)
    (found,), _ = checked(path)
    assert (found.rule, found.code, found.level) == ("loads", FILES[change], "error")
    assert transformers_faults(path)


def test_weights_in_another_folder_than_config_json(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint-9", llama())
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (found,), _ = checked(tmp_path)
    assert found.values["files"] == ("checkpoint-9/model.safetensors",) and transformers_faults(tmp_path)


@pytest.mark.parametrize("change", few(WRONG_INDEXES, {0}))
def test_a_wrong_index_that_transformers_loads_by(change: str, tmp_path: Path) -> None:
    """It is an error of the index, and nothing says that transformers fails."""
    path = build(tmp_path, "llama", "unchanged")
    assert path is not None and WRONG_INDEXES[change](path)
    assert checked(path)[0] == [] and not transformers_faults(path)
    (found,) = [each for each in report_on(path).findings if each.rule == "index"]
    assert found.level == "error"


@pytest.mark.parametrize("name", ["adapter", "gguf", "file", "no config"])
def test_what_is_no_folder_of_transformers_is_not_faulted(name: str, tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.mkdir()
    lora = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": normal(4, 32)}
    save_file(lora if name == "adapter" else llama(), path / ("weights.safetensors" if name == "file" else "model.safetensors"))
    if name == "gguf":
        (path / "model.safetensors").unlink()
        written(path / "model.gguf", {"blk.0.attn_q.weight": (normal(32, 32).numpy(), None)})
    found, notes = checked(path / "weights.safetensors" if name == "file" else path)
    assert found == [] and "loading-not-judged" in notes
