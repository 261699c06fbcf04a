"""Hidden states that an engine dumped, by layer: where they leave what bf16 rounding explains."""

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from analyzers import limits
from analyzers.checkpoints import LocalRepository, quoted
from analyzers.errors import InvalidData, LimitExceeded
from analyzers.precision_variants.engine.comparison import BAND
from analyzers.precision_variants.engine.measurements import LayerDeviation

_LAYER = re.compile(r"(?:.*\.)?(?:layers|h|blocks)\.(\d+)(?:\.(?:output|[01]))?")
_EMBEDDINGS = re.compile(r"(?:.*\.)?(?:embed_tokens|wte|embed_in|word_embeddings)(?:\.(?:output|0))?")
_EXACT = 1e-6  # Relative errors below are those of fp32 itself.

Stage = tuple[int, int]
"""Layer (-1: the embeddings), and index of the sequence."""


def read_hidden(path: str, lengths: Sequence[int]) -> tuple[dict[int, Tensor], int]:
    """Read tensors (tokens, d), or with batch axes before them, named like modules: ``model.layers.3``. A layer that returns a pair, as in
    SGLang and vLLM, has ``.0`` and ``.1``, whose sum is the residual stream.

    lengths: of the sequences. Returns the tensors by layer (-1: the embeddings), and the number of sequences that they cover. Raises
    CheckpointNotFound, InvalidData, LimitExceeded.
    """
    (_, size), *_ = LocalRepository(path).files.items()
    if size > limits.ENGINE_HIDDEN_BYTES:
        raise LimitExceeded(f"{quoted(path)} has {size:,} bytes, more than {limits.ENGINE_HIDDEN_BYTES:,}: give fewer sequences.")
    layers: dict[int, Tensor] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                found = _LAYER.fullmatch(name)
                if found is None and _EMBEDDINGS.fullmatch(name) is None:
                    continue
                layer, tensor = int(found[1]) if found else -1, file.get_tensor(name)
                if not tensor.is_floating_point() or tensor.dim() < 2:
                    raise InvalidData(f"{quoted(name)} in {quoted(path)} is no hidden state: it needs the axes tokens and width.")
                tensor = tensor.reshape(-1, tensor.shape[-1]).float()
                if layer in layers and layers[layer].shape != tensor.shape:
                    raise InvalidData(f"{quoted(name)} in {quoted(path)} has another shape than the other output of its layer.")
                layers[layer] = layers[layer] + tensor if layer in layers else tensor
    except SafetensorError:
        raise InvalidData(f"{quoted(path)} is not a safetensors file: save the dump with safetensors.torch.save_file.") from None
    if not layers:
        raise InvalidData(f"{quoted(path)} names no decoder layer: tensors are named like modules, model.layers.0.")
    totals, tokens = list(accumulate(lengths)), {len(tensor) for tensor in layers.values()}
    if len(tokens) > 1 or next(iter(tokens)) not in totals:
        raise InvalidData(
            f"The hidden states in {quoted(path)} have {', '.join(f'{each:,}' for each in sorted(tokens)[:3])} tokens: they must be "
            f"those of the first sequences of the log-probabilities, in their order ({', '.join(f'{each:,}' for each in totals[:3])}, ...)."
        )
    return layers, totals.index(next(iter(tokens))) + 1


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
