"""Computes the fingerprint of a checkpoint's shapes, by which candidates for a model's ancestors are found."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

# Vocabularies are resized, and heads tied or replaced, between a model and its derivatives.
_RESIZED = ("embedding", "head")


def fingerprint(layers: Iterable[Mapping[str, Any]]) -> str:
    """Compute 32 hex digits from the layers of a passport that checkpoints of one architecture share; "" without usable rows.

    SHA-256 over the number of tensors and of parameters in each layer and role. Prefixes of names, dtypes, shards, embeddings and heads
    make no difference.
    """
    counts = Counter[tuple[int, str]]()
    parameters = Counter[tuple[int, str]]()
    for row in layers:
        if row["role"] not in _RESIZED:
            place = (-1 if row["layer"] is None else row["layer"], row["role"])
            counts[place] += row["tensors"]
            parameters[place] += row["parameters"]
    shapes = [(*place, counts[place], parameters[place]) for place in sorted(counts)]
    return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:32] if shapes else ""
