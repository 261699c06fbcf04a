"""Defines the targets of fuzzing: calls of each parser of outside bytes, and of the library that users load the same bytes with.

A target reads bytes and returns plain data; a `MantissaError` is a refusal. If there is an oracle and both accept, both must agree; the
oracle returns None if it refuses the bytes or the results cannot be compared.
"""

import io
import json
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal

from analyzers.checkpoints.formats.gguf_header import read_gguf
from analyzers.checkpoints.formats.pickles.torch_file import read_pickled
from analyzers.checkpoints.formats.safetensors_header import read_header
from analyzers.checkpoints.weight_files.lists import read_index
from analyzers.core.errors import InvalidRequest, MantissaError
from analyzers.core.untrusted_json import InvalidJson, parse_json
from tests.attacks.pickles import Entry, archive
from tests.checkpoints.counting_file import MemoryFile
from tests.fuzz.mutations import BINARY_TOKENS, JSON_TOKENS, PICKLE_TOKENS, mutated, mutated_json
from tests.fuzz.one_file import OneFile

CORPUS = Path(__file__).with_name("corpus")
_ELEMENTS = 100_000  # larger tensors are not compared element by element


@dataclass(frozen=True)
class Target:
    """A parser to fuzz.

    read: the parser; vary: makes an input from the corpus; oracle: reads with the library, or returns None; made: inputs of the corpus
    that each version of Mantissa writes otherwise.
    """

    name: str
    read: Callable[[bytes], Any]
    vary: Callable[[Random, Sequence[bytes]], bytes]
    oracle: Callable[[bytes], Any] = lambda data: None
    made: Callable[[], list[bytes]] = list

    def files(self) -> list[Path]:
        """List the target's files in the repository."""
        return sorted((CORPUS / self.name).iterdir())

    def corpus(self) -> list[bytes]:
        """Return the contents of the target's files, and what is made."""
        return [*(path.read_bytes() for path in self.files()), *self.made()]


def _bytes(tokens: Sequence[bytes]) -> Callable[[Random, Sequence[bytes]], bytes]:
    return lambda random, seeds: mutated(random, seeds, tokens)


def _json(random: Random, seeds: Sequence[bytes]) -> bytes:
    return mutated_json(random, seeds) if random.random() < 0.5 else mutated(random, seeds, JSON_TOKENS, 3)


# safetensors


def _read_safetensors(data: bytes) -> Any:
    header = read_header(MemoryFile(data))
    tensors = {found.name: (found.dtype, list(found.shape), data[found.start : found.stop]) for found in header.tensors}
    return tensors


def _safetensors(data: bytes) -> Any:
    import safetensors

    deserialize: Any = safetensors.deserialize
    try:
        return {name: (info["dtype"], list(info["shape"]), bytes(info["data"])) for name, info in deserialize(data)}
    except safetensors.SafetensorError:
        return None


def _vary_safetensors(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Make an input, mostly a mutated header with its true length in front, so that it is parsed."""
    whole = random.choice(seeds)
    stop = 8 + int.from_bytes(whole[:8], "little")
    if random.random() < 0.2 or stop > len(whole):
        return mutated(random, seeds, BINARY_TOKENS)
    header = mutated_json(random, [whole[8:stop]]) if random.random() < 0.5 else mutated(random, [whole[8:stop]], JSON_TOKENS, 3)
    return struct.pack("<Q", len(header)) + header + whole[stop:]


# PyTorch


def _read_pickle(data: bytes) -> Any:
    from tests.checkpoints.pickles.pickled_files import contents

    file = MemoryFile(data, "pytorch_model.bin")
    header = read_pickled(file)
    small = sum(_count(found.shape) for found in header.tensors) <= _ELEMENTS
    return {"refused": header.refused, "tensors": dict(contents(file, header)) if small else [tuple(found) for found in header.tensors]}


def _count(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def _torch(data: bytes) -> Any:
    """Read a flat state dict by torch.load with weights_only."""
    import torch

    from tests.checkpoints.pickles.pickled_files import DTYPES, expected

    try:
        state = torch.load(io.BytesIO(data), weights_only=True)
    except Exception:
        return None
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        return None
    tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
    if not tensors or len(tensors) != len(state) or not all(each.layout == torch.strided and each.dtype in DTYPES for each in tensors):
        return None
    if any(each.device.type != "cpu" or each.is_quantized for each in tensors) or sum(each.numel() for each in tensors) > _ELEMENTS:
        return None
    return {"refused": "", "tensors": expected(state)}


def _vary_pickle(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Make an input, mostly a mutated pickle in a valid archive, so that it is parsed."""
    whole = random.choice(seeds)
    if whole[:2] != b"PK" or random.random() < 0.2:
        return mutated(random, [whole], PICKLE_TOKENS, 3)
    try:
        with zipfile.ZipFile(io.BytesIO(whole)) as packed:
            entries = {name: packed.read(name) for name in packed.namelist()}
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):
        return mutated(random, seeds, BINARY_TOKENS)
    changed = random.choice(["data.pkl", "data.pkl", "data.pkl", "", "byteorder", "data/0", "version"])
    return archive(
        [
            Entry(name, mutated(random, [raw], PICKLE_TOKENS, 3) if changed and name.endswith(changed) else raw)
            for name, raw in entries.items()
        ]
    )


# GGUF


def _read_gguf(data: bytes) -> Any:
    header = read_gguf(MemoryFile(data, "model.gguf"))
    return {t.name: (t.dtype, list(t.shape), t.start, t.stop - t.start) for t in header.tensors}


def _gguf(data: bytes) -> Any:
    import gguf

    try:  # the library loops over as many values as a damaged file claims, so it only gets files that Mantissa reads
        _read_gguf(data)
    except MantissaError:
        return None
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(data)
        file.flush()
        try:
            reader = gguf.GGUFReader(file.name)
        except Exception:
            return None
        tensors = {
            t.name: (t.tensor_type.name, [int(n) for n in t.shape][::-1], int(t.data_offset), int(t.n_bytes)) for t in reader.tensors
        }
    return tensors if len(tensors) == len(reader.tensors) else None


# JSON files of a repository

_SHARDS = {"model-00001-of-00002.safetensors": 100, "model-00002-of-00002.safetensors": 100}


def _read_index(data: bytes) -> Any:
    name = "model.safetensors.index.json"
    return read_index(name, (".safetensors",), {**_SHARDS, name: len(data)}, lambda path, most: parse_json(data, lenient=True))


def _index(data: bytes) -> Any:
    try:
        return json.loads(data)["weight_map"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _read_json(data: bytes) -> Any:
    try:
        return repr(parse_json(data))
    except InvalidJson as error:
        raise InvalidRequest(str(error)) from None


def _python_json(data: bytes) -> Any:
    try:
        return repr(json.loads(data))
    except (ValueError, RecursionError):
        return None


@contextmanager
def _folder(name: str, data: bytes) -> Iterator[Path]:
    """Write a small model whose file ``name`` is ``data``; yields its folder."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "model.safetensors").write_bytes((CORPUS / "safetensors" / "plain").read_bytes())
        (folder / "config.json").write_bytes(b'{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
        (folder / name).write_bytes(data)
        yield folder


def _read_config(data: bytes) -> Any:
    from analyzers.check.loads_files import find_missing_files, generation_settings
    from analyzers.checkpoints import Access, open_checkpoint
    from analyzers.write.files import state_dtype

    found: list[Any] = []
    for name in ("config.json", "generation_config.json", "adapter_config.json", "modules.json"):
        with _folder(name, data) as folder, open_checkpoint(str(folder), Access(local=True)) as checkpoint:
            findings, why = find_missing_files(checkpoint)
            found += [json.dumps(checkpoint.config), [t.name for t in checkpoint.tensors], why, repr(generation_settings(checkpoint))]
            found += [checkpoint.notes, *(each.detail for each in findings)]
            if checkpoint.config is not None:
                found.append(state_dtype(json.loads(json.dumps(checkpoint.config)), "bfloat16", wider_only=True))
    return repr(found).replace(str(folder.parent), "")


def _read_rows(data: bytes) -> Any:
    from analyzers.language_models.data_rows import read_rows
    from analyzers.language_models.instruction_data import pair_of

    repository: Any = OneFile(MemoryFile(data, "data.jsonl"))
    read_rows(repository, ["data.jsonl"], (), 3, "random")
    return [repr(pair_of(row, where)) for where, row in read_rows(repository, ["data.jsonl"], (), 1 << 20).values]


CHOICES: tuple[tuple[int, Literal["first", "random"]], ...] = ((1 << 20, "first"), (3, "random"))


def _read_parquet(data: bytes) -> Any:
    from analyzers.language_models.data_rows import read_rows

    repository: Any = OneFile(MemoryFile(data, "data.parquet"))
    columns = ("instruction", "output")
    return repr([read_rows(repository, ["data.parquet"], columns, count, choice) for count, choice in CHOICES])


def _read_report(data: bytes) -> Any:
    import mantissa

    report = mantissa.read_report(data)
    report.model_dump_json()
    return report.id


@cache
def _reports() -> list[bytes]:
    import mantissa

    return [mantissa.dtype("sample:tiny-bf16", include="norm").model_dump_json().encode()]


# Requests over HTTP


def _read_call(data: bytes) -> Any:
    """Check a body as the app does before it reaches Gradio."""
    from components.security import Refused, bounded

    try:
        return json.loads(bounded("/gradio_api/queue/join", data) or b"{}")
    except Refused as error:
        return error.status_code


TARGETS = {
    target.name: target
    for target in (
        Target("safetensors", _read_safetensors, _vary_safetensors, _safetensors),
        Target("pickle", _read_pickle, _vary_pickle, _torch),
        Target("gguf", _read_gguf, _bytes(BINARY_TOKENS), _gguf),
        Target("index", _read_index, _json, _index),
        Target("json", _read_json, _json, _python_json),
        Target("config", _read_config, _json),
        Target("rows", _read_rows, _json),
        Target("parquet", _read_parquet, _bytes(BINARY_TOKENS)),
        Target("report", _read_report, _json, made=_reports),
        Target("call", _read_call, _json),
    )
}
