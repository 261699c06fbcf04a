"""Writes checkpoints for benchmarks: ``python -m tests.benchmarks.model_files FOLDER LAYERS LINEAGE UPDATE`` writes one.

The shapes are those of a Llama of hidden width 2048 (22 layers: 1.1 billion parameters, 2.2 GB in bf16), the values normal. It runs in a
separate process, so that its memory is not counted as that of programs started later.
"""

import json
import os
import sys
from pathlib import Path

from tests.hub.architectures import Shapes, llama, llama_tensors
from tests.hub.generated import LINEAGES

from .child import run

LAYERS = 22
_WIDTH, _MLP_WIDTH, _VOCABULARY = 2048, 5632, 32000
_PIECE = 8 << 20  # bytes
_CONFIG_DTYPE = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def make(folder: Path, layers: int = LAYERS, lineage: str = "bf16", update: str = "none") -> Path:
    """Write a checkpoint into ``folder`` and return it. lineage: a key of `generated.LINEAGES`; update: one of `updates.UPDATES`."""
    run(["-m", "tests.benchmarks.model_files", str(folder), str(layers), lineage, update])
    return folder


def tensors(layers: int) -> Shapes:
    """Return names and shapes of the tensors that `make` writes."""
    return llama_tensors(layers, _WIDTH, _MLP_WIDTH, _VOCABULARY)


def write(folder: Path, layers: int, lineage: str, update: str) -> None:
    """Write config.json and the weights through to the disk, since later writing back would disturb measurements."""
    folder.mkdir()
    for name, contents in llama(layers, _WIDTH, _MLP_WIDTH, _VOCABULARY, 1, lineage, update).items():
        with (folder / name).open("wb") as file:
            if isinstance(contents, bytes):
                config = json.loads(contents)
                config["dtype"] = _CONFIG_DTYPE[LINEAGES[lineage].dtype]
                file.write(json.dumps(config).encode())
                continue
            for start in range(0, contents.size, _PIECE):
                file.write(contents.read(start, min(_PIECE, contents.size - start)))
            file.flush()
            os.fsync(file.fileno())


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
