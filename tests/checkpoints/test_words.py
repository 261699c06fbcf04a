"""The sentences of the readers, a value for each of their places; ``words.txt`` has them, for reading.

``python -m tests.checkpoints.test_words`` writes them again: read the difference as prose before committing it.
"""

from pathlib import Path
from typing import Any

from analyzers.checkpoints.words import WORDS

SENTENCES = Path(__file__).parent / "words.txt"
_SOME: dict[str, Any] = {"tensors": 2, "name": "layers.0.q.weight"}
_LAYERS: dict[str, Any] = {"base": "the model", "tuned": "org/other", "numbers": ("1 with 3", "2")}
_RELAID = _SOME | {"form": "fused", "other": "layers.0.qkv.weight"}
_TIED = {"changed": ("lm_head.weight",), "kept": ("model.embed_tokens.weight",)}
_MERGED = {"base": "org/base", "weight": 0.7, "kind": "LoRA", "adapter": "org/adapter"}
VALUES: dict[str, dict[str, Any]] = {
    "adapter": {}, "cached": {"model": "org/model"},
    "converted": {"tensors": 1, "dtypes": ("F64",)}, "decoded": {"tensors": 2, "dtypes": ("F8_E4M3", "MXFP4")},
    "decoded-base": _SOME, "folders": {"folders": ("unet", "vae")}, "hidden": {"storages": 1, "bytes": 16}, "index-missing-names": _SOME,
    "index-wrong-files": _SOME, "local-path": {"path": "models/x"}, "lost-layers": _LAYERS, "merged": _SOME | _MERGED,
    "misfit-scales": _SOME, "moved-layers": _LAYERS, "nested": {"key": "model"},
    "not-merged": {"modules": 2, "name": "nowhere", "why": "the base has no such module"}, "opaque": {"classes": ("argparse.Namespace",)},
    "relaid": _RELAID, "relaid-unsure": _RELAID, "repeated-layers": _LAYERS, "replaced": _SOME,
    "replaced-whole": {"tensors": 1, "names": ("lm_head.weight",)}, "same-names": {"files": ("x.safetensors", "y.safetensors")},
    "tied": _TIED, "unmerged-adapter": _SOME, "unreadable-json": {"file": "config.json"},
    "unscaled": {"tensors": 1, "dtypes": ("F8_E4M3",)}, "untied": _TIED, "widest-gguf": {"files": 2, "path": "m-F16.gguf"},
}  # fmt: skip


def sentences() -> str:
    """Write the sentence of every code."""
    return "".join(f"{code}: {WORDS.note(code, **values).text}\n" for code, values in sorted(VALUES.items()))


def test_each_template_is_as_reviewed() -> None:
    assert VALUES.keys() == WORDS.templates.keys()
    assert sentences() == SENTENCES.read_text(), "read the difference, then: python -m tests.checkpoints.test_words"


if __name__ == "__main__":
    SENTENCES.write_text(sentences())
