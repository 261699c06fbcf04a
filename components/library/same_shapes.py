"""Finds checkpoints with tensors of the same shapes: candidates for a model's ancestors."""

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from analyzers.core.untrusted_json import parse_json

# Vocabularies are resized, and heads tied or replaced, between a model and its derivatives.
_RESIZED = ("embedding", "head")


def fingerprint(report: str | bytes) -> str:
    """Compute 32 hex digits from a dtype report's JSON that checkpoints of one architecture share; "" without usable rows.

    SHA-256 over the number of tensors and of parameters in each layer and role. Prefixes of names, dtypes, shards, embeddings and heads
    make no difference.
    """
    try:
        return _fingerprint(parse_json(report)["layers"])
    except (LookupError, TypeError, ValueError):  # reports of the dataset are untrusted
        return ""


def _fingerprint(layers: Iterable[Mapping[str, Any]]) -> str:
    counts = Counter[tuple[int, str]]()
    parameters = Counter[tuple[int, str]]()
    for row in layers:
        if row["role"] not in _RESIZED:
            place = (-1 if row["layer"] is None else row["layer"], row["role"])
            counts[place] += row["tensors"]
            parameters[place] += row["parameters"]
    shapes = [(*place, counts[place], parameters[place]) for place in sorted(counts)]
    return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:32] if shapes else ""


def models_of_same_shapes(connection: sqlite3.Connection, shapes: str, model: str, most: int) -> list[str]:
    """Return the models with this fingerprint, except ``model``, those with the newest passport first."""
    asked = "SELECT model FROM results WHERE shapes = ? AND model_key <> ? GROUP BY model_key ORDER BY MAX(created) DESC LIMIT ?"
    return [name for (name,) in connection.execute(asked, (shapes, model.lower(), most))] if shapes else []


def shapes_of_model(connection: sqlite3.Connection, model: str) -> str:
    """Return the fingerprint of the newest passport of ``model``, "" if there is none."""
    asked = "SELECT shapes FROM results WHERE model_key = ? AND analyzer = 'dtype' AND shapes <> '' ORDER BY created DESC LIMIT 1"
    return str((connection.execute(asked, (model.lower(),)).fetchone() or ("",))[0])
