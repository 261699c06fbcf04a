"""Asks `dtype` about the formats and native tensors, and lists what it says."""

import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from analyzers.dtype import DtypeReport
from tests.dtype.checkpoints import write
from tests.dtype.reports import inspect
from tests.grids.definitions import DISTRIBUTIONS
from tests.grids.formats import Format, dequantized
from tests.grids.natives import natives

MODES = ("exact", "quick")
# Bytes that quick mode may read: a part of each tensor.
BUDGET = 600_000


@dataclass(frozen=True)
class Outcome:
    """What was said of one checkpoint. tensors: their number; claims: format and group -> number of tensors proven to be on that grid.

    parts: the same of grids on which a part of the groups is.
    """

    tensors: int
    claims: Mapping[str, int]
    parts: Mapping[str, int]

    @property
    def claimed(self) -> int:
        """Number of tensors said to be on any grid."""
        return sum(self.claims.values())


def said(tensors: Mapping[str, torch.Tensor], mode: str) -> Outcome:
    """Write a checkpoint and return what `dtype` says of it."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"budget": BUDGET} if mode == "quick" else {}
        report = inspect(write(Path(folder), tensors), mode=mode, **options)
    return Outcome(len(tensors), named(report, True), named(report, False))


def named(report: DtypeReport, proven: bool) -> Counter[str]:
    """Return the number of tensors on each grid that a report names."""
    found: Counter[str] = Counter()
    for grid in report.grids:
        found[f"{grid.format} {grid.group}"] += grid.tensors * (grid.proven == proven)
    return +found


def of_format(form: Format, storage: str, distributions: Iterable[str] = DISTRIBUTIONS) -> dict[str, torch.Tensor]:
    """Return a checkpoint of one format: a matrix of each distribution."""
    return {
        f"model.layers.{layer}.mlp.up_proj.weight": dequantized(form, storage, distribution, seed=layer)
        for layer, distribution in enumerate(distributions)
    }


def of_natives(number: int = 2000) -> dict[str, dict[str, torch.Tensor]]:
    """Return the native tensors as checkpoints, one for each kind and dtype."""
    kinds: dict[str, dict[str, torch.Tensor]] = {}
    for kind, tensor in natives(number):
        own = kinds.setdefault(kind, {})
        own[f"model.layers.{len(own)}.mlp.up_proj.weight"] = tensor
    return kinds
