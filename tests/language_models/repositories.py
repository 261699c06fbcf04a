"""Makes checkpoints in the Hub's layout for the tests of loading, and opens them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from analyzers.language_models.batch import Batch, collate
from analyzers.language_models.builtin_text import builtin_pairs
from analyzers.language_models.load import OpenModel
from analyzers.language_models.samples import sample_folder
from tests.hub import LocalHub

TOKEN = "hf_" + "visitor" * 4
WEIGHTS = "model.safetensors"
Files = dict[str, bytes]


def files(sample: str = "tiny-fp32", without: tuple[str, ...] = (), **config: Any) -> Files:
    """Return a sample's files, with other values in its config.json."""
    found = {file.name: file.read_bytes() for file in sample_folder(sample).iterdir() if file.name not in without}
    found["config.json"] = json.dumps({**json.loads(found["config.json"]), **config}).encode()
    return found


def written(folder: Path, contents: Mapping[str, bytes]) -> str:
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return str(folder)


def batch_of(opened: OpenModel) -> Batch:
    return collate(opened.tokenizer.samples(builtin_pairs()[:4], 64).samples, opened.device)


def loaded(opened: OpenModel) -> nn.Module:
    opened.check(batch_of(opened))
    for _ in opened.fetch():
        pass
    return opened.load()


def parts_of(hub: LocalHub, path: str) -> list[int]:
    """Return the bytes of each answer with a part or all of a file."""
    return [request.sent for request in list(hub.requests) if request.method == "GET" and request.path.endswith(path)]
