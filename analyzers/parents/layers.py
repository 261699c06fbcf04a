"""Layers matched by content: in a model of stacked layers, layer 20 may be another model's layer 12."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from analyzers.checkpoints import Checkpoint, Chunk, Span, Tensor, stream
from analyzers.numerics.conversions import values_of
from analyzers.parents.count import is_matrix
from analyzers.parents.rounding import Floats

# Consecutive values by which a layer is recognised, of one matrix.
_VALUES = 4096
# A layer moved if another one has a cosine of at least this, and so much more than the layer of its own number.
_LEAST = 0.2


def moved_layers(sides: Sequence[Checkpoint], names: Sequence[str]) -> list[dict[int, int]]:
    """For each candidate, ``sides[1:]``: layer of the model ``sides[0]`` -> the candidate's layer with that content, where the numbers
    differ.

    A layer is recognised by the first values of the most frequent matrix that the model and the candidate name alike. Empty where none
    moved.
    """
    model = _fingerprints(sides[0], names[0], _pattern(sides[0]))
    moved = []
    for side, name in zip(sides[1:], names[1:], strict=True):
        own = _fingerprints(side, name, _pattern(side)) if len(model) > 1 else {}
        moved.append(_matches(model, own))
    return moved


def with_layers_moved(checkpoint: Checkpoint, moved: dict[int, int], layers: int) -> Checkpoint:
    """``checkpoint`` with its layers numbered as in a model of ``layers`` layers: layer n is its layer ``moved[n]``, by default n."""
    tensors = [tensor for tensor in checkpoint.tensors if tensor.layer is None]
    by_layer: dict[int, list[Tensor]] = {}
    for tensor in checkpoint.tensors:
        if tensor.layer is not None:
            by_layer.setdefault(tensor.layer, []).append(tensor)
    for layer in range(max(layers, len(by_layer))):
        for tensor in by_layer.get(moved.get(layer, layer), ()):
            tensors.append(replace(tensor, name=_numbered(tensor, str(layer)), layer=layer))
    return replace(checkpoint, tensors=tuple(tensors))


def _numbered(tensor: Tensor, number: str) -> str:
    """The name of ``tensor`` with ``number`` for its layer."""
    return re.sub(rf"(?<=\.){tensor.layer}(?=\.)", number, tensor.name, count=1)


def _pattern(checkpoint: Checkpoint) -> str:
    """The matrix that most layers have, first by its name without prefixes, with ``*`` for the layer; "" without layers."""
    patterns = Counter(
        _numbered(tensor, "*")
        for tensor in checkpoint.tensors
        if tensor.layer is not None and tensor.has_values and not tensor.buffer and is_matrix(tensor.shape, tensor.role)
    )
    most = max(patterns.values(), default=0)
    return min((each for each, count in patterns.items() if count == most), key=lambda each: each.partition("*")[2], default="")


def _fingerprints(checkpoint: Checkpoint, name: str, pattern: str) -> dict[int, Floats]:
    """The first values of the matrix ``pattern`` of each layer."""
    found = [tensor for tensor in checkpoint.tensors if tensor.layer is not None and pattern and _numbered(tensor, "*") == pattern]
    spans = [Span((tensor,), 0, min(_VALUES, tensor.elements)) for tensor in found]

    def work(span: Span, chunks: Iterator[Chunk]) -> Floats:
        return np.concatenate([values_of(chunk.codes, span.tensor.counted_as) for chunk in chunks])

    steps = stream([checkpoint], spans, work, [name])
    return {int(str(step.span.tensor.layer)): step.result for step in steps if step.span is not None and step.result is not None}


def _matches(model: dict[int, Floats], candidate: dict[int, Floats]) -> dict[int, int]:
    moved = {}
    for layer, values in model.items():
        cosines = {number: _cosine(values, other) for number, other in candidate.items()}
        best = max(cosines, key=lambda number: (cosines[number], number == layer), default=layer)
        clear = _LEAST + 6 / np.sqrt(values.size)
        if best != layer and cosines[best] > clear and cosines[best] > cosines.get(layer, 0.0) + clear / 2:
            moved[layer] = best
    return moved


def _cosine(x: Floats, y: Floats) -> float:
    if x.size != y.size or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return 0.0
    norms = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / norms if norms else 0.0
