"""Checkpoints on disk for benchmarks: ``python -m tests.benchmarks.model_files FOLDER LAYERS LINEAGE`` writes one.

The shapes are those of a Llama of hidden width 2048 (22 layers: 1.1 billion parameters, 2.2 GB in bf16), the values
normal. A program, and not a function, so that its memory is not counted as that of whatever is started next.
"""

import json
import os
import sys
from pathlib import Path

from tests.hub.architectures import llama
from tests.hub.generated import LINEAGES

from .child import run

LAYERS = 22
_PIECE = 8 << 20  # bytes
_CONFIG_DTYPE = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def make(folder: Path, layers: int = LAYERS, lineage: str = "bf16") -> Path:
    """Write a checkpoint into ``folder`` and return it. lineage: a key of `tests.hub.generated.LINEAGES`."""
    run(["-m", "tests.benchmarks.model_files", str(folder), str(layers), lineage])
    return folder


def write(folder: Path, layers: int, lineage: str) -> None:
    """Write config.json and the weights, through to the disk: writing back must not go on while others are measured."""
    folder.mkdir()
    for name, contents in llama(layers, 2048, 5632, 32000, 1, lineage).items():
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
    write(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
