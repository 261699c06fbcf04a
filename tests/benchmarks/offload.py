"""Measures a Llama of 3 GB in memory, then one layer at a time under a limit of the address space that half of the model would exceed.

``python -m tests.benchmarks.offload FOLDER`` writes the model.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from .child import quantity, run
from .result import Result

LIMIT_BYTES = 1_500_000_000
TIMES_SLOWER = 2.5
_CHUNK_BYTES = 32 << 20  # bytes of a chunk of conflict's Gram matrices; by default a quarter of a GB
_OPTIONS: dict[str, dict[str, object]] = {"exit": {}, "precision": {"variants": ["bf16"], "inside": False}, "conflict": {"weights": False}}
_LAYERS, _WIDTH, _MLP_WIDTH, _VOCABULARY, _HEADS = 14, 2048, 5632, 8192, 16


def offload(folder: Path) -> Iterator[Result]:
    """Measure two to four short samples. The limit is in addition to the address space after the run of a small sample."""
    run(["-m", "tests.benchmarks.offload", str(folder / "model")])
    for kind, options in _OPTIONS.items():
        program = ["-m", "tests.language_models.limited_memory", kind, str(folder / "model"), json.dumps(options)]
        variables = {"MANTISSA_GRAM_CHUNK_BYTES": str(_CHUNK_BYTES)}
        ways = [run([*program, str(limit)], variables=variables) for limit in (0, LIMIT_BYTES)]
        (naive, ours), (whole, layers) = ways, (way.json[0] for way in ways)
        ratio = layers["seconds"] / whole["seconds"]
        yield Result(
            f"{kind}, 3 GB in 1.5 GB, one layer at a time",
            f"{quantity(layers['seconds'], 's')}, {quantity(ours.peak_bytes / 1e9, 'GB')}",
            f"{quantity(whole['seconds'], 's')}, {quantity(naive.peak_bytes / 1e9, 'GB')}",
            1 / ratio,
            f"<= {TIMES_SLOWER} times",
            ratio <= TIMES_SLOWER,
        )
        equal = layers["values"] == whole["values"] and any("one at a time" in note for note in layers["notes"])
        yield Result("  its report", "equal" if equal else "different", "", None, "equal", equal)


def write(folder: Path) -> None:
    """Write a Llama with random weights, in float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=_WIDTH, intermediate_size=_MLP_WIDTH, num_hidden_layers=_LAYERS, num_attention_heads=_HEADS, vocab_size=_VOCABULARY
    )
    LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
