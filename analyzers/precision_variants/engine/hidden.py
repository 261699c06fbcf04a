"""Hidden states that an engine dumped, by layer: where they leave what bf16 rounding explains."""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from analyzers import limits
from analyzers.checkpoints import quoted
from analyzers.errors import InvalidData
from analyzers.precision_variants.engine.comparison import BAND
from analyzers.precision_variants.engine.measurements import LayerDeviation
from analyzers.precision_variants.engine.reading import check_file

_LAYER = re.compile(r"(?:.*\.)?(?:layers|h|blocks)\.(\d+)(?:\.(?:output|[01]))?")
_EMBEDDINGS = re.compile(r"(?:.*\.)?(?:embed_tokens|wte|embed_in|word_embeddings)(?:\.(?:output|0))?")
_EXACT = 1e-6  # Relative errors below are those of fp32 itself.

DATA_URL = "data:"
"""Beginning of a data URL (RFC 2397), as which a browser reads a file."""

Stage = tuple[int, int]
"""Layer (-1: the embeddings), and index of the sequence."""


def read_hidden(source: str, lengths: Sequence[int]) -> tuple[dict[int, Tensor], int]:
    """Read tensors (tokens, d), or with batch axes before them, named like modules: ``model.layers.3``. A layer that returns a pair, as in
    SGLang and vLLM, has ``.0`` and ``.1``, whose sum is the residual stream.

    source: the path of a safetensors file, or its bytes as a data URL. lengths: of the sequences. Returns the tensors by layer (-1: the
    embeddings), and the number of sequences that they cover. Raises CheckpointNotFound, InvalidData, LimitExceeded.
    """
    file = "The file of hidden states" if source.startswith(DATA_URL) else quoted(source)
    layers: dict[int, Tensor] = {}
    try:
        for layer, name, tensor in _outputs(source):
            if not tensor.is_floating_point() or tensor.dim() < 2:
                raise InvalidData(f"{file} holds {quoted(name)}, which is not a hidden state: its shape must be (tokens, width).")
            tensor = tensor.reshape(-1, tensor.shape[-1]).float()
            if layer in layers and layers[layer].shape != tensor.shape:
                raise InvalidData(f"{file} holds {quoted(name)} in another shape than the other output of its layer.")
            layers[layer] = layers[layer] + tensor if layer in layers else tensor
    except (SafetensorError, binascii.Error):
        raise InvalidData(f"{file} is not a safetensors file: save the dump with safetensors.torch.save_file.") from None
    if not layers:
        raise InvalidData(f"{file} names no decoder layer: tensors are named like modules, model.layers.0.")
    totals, tokens = list(accumulate(lengths)), {len(tensor) for tensor in layers.values()}
    if len(tokens) > 1 or next(iter(tokens)) not in totals:
        raise InvalidData(
            f"{file} holds hidden states of {', '.join(f'{each:,}' for each in sorted(tokens)[:3])} tokens: they must be "
            f"those of the first sequences of the log-probabilities, in their order ({', '.join(f'{each:,}' for each in totals[:3])}, ...)."
        )
    return layers, totals.index(next(iter(tokens))) + 1


def _outputs(source: str) -> Iterator[tuple[int, str, Tensor]]:
    """Yield layer, name and value of each tensor that is named like a layer's output."""
    if source.startswith(DATA_URL):
        tensors = load(base64.b64decode(source.partition(",")[2], validate=True))
        yield from ((layer, name, tensor) for name, tensor in tensors.items() if (layer := _layer(name)) is not None)
        return
    check_file(source, limits.ENGINE_HIDDEN_BYTES)
    with safe_open(source, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            if (layer := _layer(name)) is not None:
                yield layer, name, file.get_tensor(name)


def _layer(name: str) -> int | None:
    """Return the layer of which a tensor of this name is the output, -1 for the embeddings; None if there is none."""
    if (match := _LAYER.fullmatch(name)) is not None:
        return int(match[1])
    return -1 if _EMBEDDINGS.fullmatch(name) is not None else None


def digest(source: str) -> str:
    """Return the SHA-256 of a file of hidden states, or of its data URL."""
    if source.startswith(DATA_URL):
        return hashlib.sha256(source.encode()).hexdigest()
    with Path(source).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def deviations(
    layers: Mapping[int, Tensor], reference: Mapping[Stage, Tensor], bf16: Mapping[Stage, Tensor], lengths: Sequence[int]
) -> tuple[tuple[LayerDeviation, ...], int | None]:
    """Compare each layer, and return the first whose error is larger than the band. reference, bf16: (tokens - 1, d) by layer and sequence.

    Raises InvalidData for layers or a width that the model does not have.
    """
    rows = []
    for layer, tensor in sorted(layers.items()):
        ours = [reference.get((layer, index)) for index in range(len(lengths))]
        if ours[0] is None or ours[0].shape[1] != tensor.shape[1]:
            raise InvalidData(f"The hidden states are not this model's: layer {layer} of width {tensor.shape[1]:,} does not exist.")
        theirs = torch.cat([part[:-1] for part in torch.split(tensor, list(lengths))])
        base = torch.cat([each for each in ours if each is not None])
        narrow = torch.cat([bf16[layer, index] for index in range(len(lengths))])
        rows.append(LayerDeviation(layer=layer, engine=_error(theirs, base), bf16=_error(narrow, base)))
    first = next((row.layer for row in rows if row.engine is None or row.engine > max(_EXACT, BAND * (row.bf16 or 0))), None)
    return tuple(rows), first


def _error(x: Tensor, base: Tensor) -> float | None:
    """Return rms(x - base) / rms(base); None if it is not finite."""
    error = (x.double() - base.double()).norm() / base.double().norm()
    return float(error) if bool(torch.isfinite(error)) else None
