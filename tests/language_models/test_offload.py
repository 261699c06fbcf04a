"""Models of which only a layer fits into memory: the same bits as in memory, one layer at a time."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from analyzers.checkpoints import Access
from analyzers.conflict.measure import chunk_bytes
from analyzers.language_models.batch import Batch
from analyzers.language_models.load import OpenModel
from analyzers.language_models.memory_needs import activation_bytes, offloaded_bytes, too_large
from analyzers.language_models.offload import StoredTensors
from analyzers.precision.job import extra_bytes
from analyzers.precision.variants import PRESETS
from tests.language_models.analyses import ANALYSES, lasting, report, request
from tests.language_models.architectures import ARCHITECTURES, build, every_architecture

MODEL = "sample:tiny-fp32"


def refuse(self: OpenModel) -> Any:
    """No model fits as a whole."""
    raise too_large(2, 1)


@pytest.fixture
def layers_at_once(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """At each tensor read, the layers whose weights are in memory. numpy owns that memory: its arrays live as long as any tensor of it."""
    read, seen = StoredTensors.__getitem__, list[set[str]]()
    alive: list[tuple[str, weakref.ref[Any]]] = []

    def recorded(self: StoredTensors, name: str) -> Tensor:
        array = read(self, name).numpy().copy()
        alive.append((name, weakref.ref(array)))
        seen.append({".".join(name.split(".")[:3]) for name, owner in alive if ".layers." in name and owner() is not None})
        return torch.from_numpy(array)

    monkeypatch.setattr(StoredTensors, "__getitem__", recorded)
    return seen


@pytest.mark.parametrize("kind", ANALYSES)
def test_the_same_bits_with_one_layer_in_memory(kind: str, layers_at_once: list[set[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = report(kind, request(kind, MODEL))
    assert not layers_at_once
    monkeypatch.setattr(OpenModel, "_places", refuse)
    found = report(kind, request(kind, MODEL))
    assert lasting(found) == lasting(expected)
    assert any(note.code == "offloaded" for note in found.notes)
    assert {len(layers) for layers in layers_at_once} <= {0, 1} and len(set.union(*layers_at_once)) == 4


@pytest.mark.parametrize("family", every_architecture())
def test_every_family_gives_its_own_logits(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those whose weights transformers renames or converts as it loads them."""
    torch.manual_seed(3)
    model: Any = build(ARCHITECTURES[family])
    embeddings = model.get_input_embeddings()
    if embeddings.padding_idx is not None:  # transformers zeroes this row as it loads some families, whatever is stored
        embeddings.weight.data[embeddings.padding_idx] = 0
    model.save_pretrained(tmp_path / "model")
    token_ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    batch = Batch(token_ids, token_ids, (6,))
    with OpenModel(str(tmp_path / "model"), Access(local=True)) as opened:
        opened.check(batch)
        list(opened.fetch())
        expected = opened.load()(token_ids).logits
        monkeypatch.setattr(OpenModel, "_places", refuse)
        opened.check(batch)
        assert opened.offloaded
        found = opened.load()(token_ids).logits
    assert torch.equal(found, expected)


@pytest.mark.parametrize("family", ["gpt_neox", "mixtral", "qwen2_moe"])
def test_gradients_through_converted_weights_are_the_same(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renamed head, and experts that are stored one by one and run merged."""
    torch.manual_seed(3)
    model: Any = build(ARCHITECTURES[family])
    model.save_pretrained(tmp_path)
    asked = request("conflict", str(tmp_path))
    expected = report("conflict", asked)
    monkeypatch.setattr(OpenModel, "_places", refuse)
    found = report("conflict", asked)
    assert lasting(found) == lasting(expected)
    assert any(note.code == "offloaded" for note in found.notes)


def test_llama_2_7b_fits_on_a_24_gb_card() -> None:
    """The figures of docs/memory.md."""
    config = LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, vocab_size=32000)
    with torch.device("meta"):
        outline: Any = LlamaForCausalLM(config)
    conflict = offloaded_bytes(outline, torch.bfloat16) + activation_bytes(outline, torch.bfloat16, [199] * 50) + 3 * chunk_bytes("cuda")
    precision = offloaded_bytes(outline, torch.float32) + activation_bytes(outline, torch.float32, [511] * 2, 6)
    precision += extra_bytes(outline, [PRESETS["bf16"]] * 5, 2 * 512)
    assert conflict < 20e9 and precision < 20e9
    documented = (Path(__file__).parents[2] / "docs" / "memory.md").read_text()
    assert f"| {conflict / 1e9:.1f} GB |" in documented and f"| {precision / 1e9:.1f} GB |" in documented
