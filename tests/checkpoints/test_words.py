"""Every remark of the readers, made by a checkpoint that deserves it; ``words.txt`` has their sentences, for reading.

``python -m tests.checkpoints.test_words`` writes the sentences again: read the difference as prose before committing it.
"""

import json
from argparse import Namespace
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from safetensors.torch import save_file as save_torch

from analyzers.checkpoints import Access, layout_notes, open_checkpoint
from analyzers.checkpoints.checkpoint_coverage import account_notes
from analyzers.checkpoints.matching.align import Pair, Unmatched
from analyzers.checkpoints.matching.layers import LayerMap
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.words import WORDS
from analyzers.core.notes import Note
from tests.checkpoints.adapters import llama, write
from tests.checkpoints.test_gguf_header import written

SENTENCES = Path(__file__).parent / "words.txt"
_PAIR = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
_INDEX = "model.safetensors.index.json"


def _save(folder: Path, **files: dict[str, Any] | bytes | str) -> Path:
    """Write files: tensors in any format, or text. In names, "__" is a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for key, content in files.items():
        path = folder / key.replace("__", ".")
        if isinstance(content, str | bytes):
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        elif path.suffix == ".safetensors":
            save_torch({name: torch.as_tensor(values) for name, values in content.items()}, path)
        else:
            torch.save(content, path)
    return folder


def _folders(root: Path) -> Iterator[Path]:
    """Yield folders, and files, whose checkpoints are remarked on."""
    ones, other = torch.ones(2, 3), torch.zeros(4)
    for part in ("a", "b"):
        _save(root / "several" / part, model__safetensors={"w": ones})
    yield _save(root / "several", modules__json=json.dumps([{"path": part} for part in "ab"]))
    yield _save(root / "config", model__safetensors={"w": ones}, config__json="{", modules__json="{")
    yield _save(root / "same", x__safetensors={"w": ones}, y__safetensors={"w": ones})
    index = _save(root / "index")
    for name, tensor in zip(_PAIR, ({"a": ones, "c": torch.ones(3)}, {"b": other, "c": torch.ones(3)}), strict=True):
        save_torch(tensor, index / name)
    (index / _INDEX).write_text(json.dumps({"weight_map": {"a": _PAIR[1], "b": _PAIR[1], "x": _PAIR[0]}}))
    yield index
    yield from _gguf(root / "gguf")
    yield from _pickles(root / "pickles")
    scales = {"weight": ones.to(torch.float8_e4m3fn), "weight_scale_inv": torch.ones(1, 1)}
    yield _save(root / "fp8", model__safetensors={f"a.{name}": tensor for name, tensor in scales.items()})
    bare = {"a.weight": ones.to(torch.float8_e4m3fn), "a.weight_scale_inv": torch.ones(5), "q.lora_A.weight": ones.double()}
    yield _save(root / "misfit", model__safetensors=bare | {"b.weight": torch.ones(9, 9)})
    yield _save(root / "adapter", adapter_model__safetensors={"q.lora_A.weight": ones})


def _gguf(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    for name in ("m-F16", "m-Q8_0"):
        written(folder / f"{name}.gguf", {"w": (np.ones(4, np.float32), None)})
    yield folder


def _pickles(folder: Path) -> Iterator[Path]:
    yield _save(folder, pytorch_model__bin={"model": {"a": torch.ones(2)}, "args": Namespace(lr=torch.ones(4))})


def _merged(root: Path) -> Iterator[str]:
    """Yield references to bases with adapters that are remarked on."""
    settings: dict[str, Any] = {"r": 2, "target_modules": ["q_proj"]}
    write(llama(tie_word_embeddings=True), LoraConfig(**settings | {"modules_to_save": ["lm_head"]}), root / "tied")
    write(llama(), LoraConfig(**settings), root / "plain")
    extra = root / "plain" / "adapter" / "adapter_model.safetensors"
    matrices = load_file(extra)
    other = {name.replace("q_proj", "nowhere"): tensor.clone() for name, tensor in matrices.items()}
    save_torch(matrices | other, extra)
    yield from (f"{root}/{name}/base+{root}/{name}/adapter" for name in ("tied", "plain"))
    write(llama(tie_word_embeddings=True), LoraConfig(r=2, target_modules=["embed_tokens"]), root / "bert")
    config = root / "bert" / "base" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["BertForMaskedLM"], "model_type": "bert"}))
    yield f"{root}/bert/base+{root}/bert/adapter"
    base = {"m.q.weight": torch.ones(4, 4).to(torch.float8_e4m3fn), "m.q.weight_scale_inv": torch.ones(1, 1)}
    _save(root / "fp8base", model__safetensors=base)
    matrices = {"base_model.model.m.q.lora_A.weight": torch.ones(2, 4), "base_model.model.m.q.lora_B.weight": torch.ones(4, 2)}
    _save(root / "q", adapter_model__safetensors=matrices, adapter_config__json="{}")
    yield f"{root}/fp8base+{root}/q"


def _layouts() -> Iterator[Note]:
    one = Tensor("layers.0.q.weight", "F32", (4, 4), 0, 0, 64, "attention", 0, False)
    found = Unmatched(layers=[LayerMap("layers.", "layers.", {1: 3, 2: None}, {5: 1})])
    found.relaid += [Pair(one, one, "transposed", agree=True), Pair(one, one, "fused", agree=False)]
    return layout_notes(found, "the model", "org/other")


def notes(root: Path) -> list[Note]:
    """Return notes of every code."""
    found = list(_layouts())
    for reference in chain(map(str, _folders(root / "files")), _merged(root / "merged")):
        with open_checkpoint(reference, Access(local=True)) as checkpoint:
            found += account_notes(checkpoint, checkpoint.tensors)
    return found


def sentences() -> str:
    """Write the first sentence of every code."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        first: dict[str, str] = {}
        for note in notes(root):
            first.setdefault(note.code, note.text.replace(str(root), "FOLDER"))
    return "".join(f"{code}: {text}\n" for code, text in sorted(first.items()))


@pytest.mark.filterwarnings("ignore")
def test_each_template_is_used_and_as_reviewed() -> None:
    said = sentences()
    assert said == SENTENCES.read_text(), "read the difference, then: python -m tests.checkpoints.test_words"
    assert {line.partition(":")[0] for line in said.splitlines()} == WORDS.templates.keys() - {"local-path"}  # in test_opening


if __name__ == "__main__":
    SENTENCES.write_text(sentences())
