"""Quantization headroom: the loss if the matrices were rounded to each format of `FORMATS`. Weight-only; activations are not considered.

Matrices are read in slabs of whole rows, which contain every tile of every format. Exact mode reads them all, quick mode a sample.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import fsum, log10, prod, sqrt
from typing import Any

import numpy as np

from analyzers.checkpoints import ROLES, Checkpoint, Chunk, Span, Tensor, stream
from analyzers.checkpoints.reading.stream import Step
from analyzers.core import limits
from analyzers.dtype.rows import QuantizationFormat, QuantizationRole, QuantizationRow
from analyzers.numerics.conversions import fp32_of
from analyzers.numerics.quantize_kernels import FORMATS, LONGEST_ROW, rounding_error

# Multiple of the median error of its format from which a tensor should be left unquantized
IGNORED_FROM = 1.5
SLAB_ROWS = 128
# Slabs that a sample reads: about so many, at least so many of each role, and of fewer rows if no tile spans them
_SLABS, _FEWEST, _SAMPLED_ROWS = 256, 4, 16
_SLAB_ELEMENTS = 1 << 20

Error = tuple[float, float, int, int, int]  # what `rounding_error` returns
Errors = dict[QuantizationFormat, Error]


@dataclass(frozen=True, slots=True)
class Slabs:
    """Slabs to read. sampled: whether they are some of all."""

    spans: list[Span]
    sampled: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        return sum(span.nbytes for span in self.spans)


def is_matrix(tensor: Tensor) -> bool:
    """Return whether a tensor is one that quantization applies to: a matrix or a stack of matrices, with float values."""
    return tensor.has_values and len(tensor.shape) >= 2 and tensor.elements > 0 and 1 < tensor.shape[-1] <= LONGEST_ROW


def plan(tensors: Sequence[Tensor], formats: Sequence[QuantizationFormat], budget: int | None, seed: int) -> Slabs:
    """Plan the slabs of the matrices among ``tensors``: all, or in quick mode a sample of about ``budget`` bytes, role by role."""
    matrices = [tensor for tensor in tensors if is_matrix(tensor)]
    if budget is None:
        slabs = {t.name: max(1, _SLAB_ELEMENTS // (SLAB_ROWS * t.shape[-1])) * SLAB_ROWS for t in matrices}
        spans = [span for t in matrices for span in _cut(t, slabs[t.name], range(_number(t, slabs[t.name])))]
        return Slabs(spans)
    rows = SLAB_ROWS if "fp8-block" in formats else _SAMPLED_ROWS
    rng = np.random.Generator(np.random.PCG64(seed))
    elements = sum(tensor.elements for tensor in matrices)
    spans = []
    for role in ROLES:
        members = [tensor for tensor in matrices if tensor.role == role]
        ends = np.cumsum([_number(tensor, rows) for tensor in members])
        if not members:
            continue
        every = int(ends[-1])
        share = sum(tensor.elements for tensor in members) / elements
        slab_bytes = sum(tensor.elements * tensor.stored_bits // 8 for tensor in members) / every
        number = min(max(_FEWEST, int(min(share * budget / max(slab_bytes, 1), share * _SLABS))), every)
        spacing = every / number  # one slab from each of ``number`` equal parts, so that the sample covers all tensors
        for at in ((np.arange(number) + rng.random(number)) * spacing).astype(np.int64).tolist():
            tensor = int(np.searchsorted(ends, at, side="right"))
            first = at - int(ends[tensor - 1] if tensor else 0)
            spans += _cut(members[tensor], rows, range(first, first + 1))
    return Slabs(sorted(spans, key=lambda span: (span.tensor.file, span.tensor.offset, span.start)), sampled=True)


def _number(tensor: Tensor, rows: int) -> int:
    """Return the number of slabs of ``rows`` rows in a tensor; no slab reaches from one matrix of a stack into the next."""
    return prod(tensor.shape[:-2]) * -(-tensor.shape[-2] // rows)


def _cut(tensor: Tensor, rows: int, numbers: range) -> list[Span]:
    matrix, row = tensor.shape[-2], tensor.shape[-1]
    spans = []
    for number in numbers:
        stack, slab = divmod(number, -(-matrix // rows))
        spans.append(Span.of(tensor, (stack * matrix + slab * rows) * row, min(rows, matrix - slab * rows) * row))
    return spans


def measure(
    checkpoint: Checkpoint, slabs: Slabs, formats: Sequence[QuantizationFormat], largest: Mapping[str, float | None]
) -> Iterator[Step[Errors]]:
    """Read ``slabs`` and round them to each format; yields the steps of the stream.

    largest: magnitude in each tensor, as far as it was read.
    """

    def work(span: Span, chunks: Iterator[Chunk]) -> Errors:
        values = np.empty(span.count, np.float32)
        for chunk in chunks:
            start = chunk.start - span.start
            values[start : start + chunk.codes.size] = fp32_of(chunk.codes, span.tensor.counted_as).view(np.float32)
        amax = largest.get(span.tensor.name) or 0.0
        if slabs.sampled:
            amax = max(amax, float(np.abs(values[np.isfinite(values)]).max(initial=0)))
        slab = values.reshape(-1, span.tensor.shape[-1])
        return {name: rounding_error(slab, *FORMATS[name], amax, name == "fp8") for name in formats}

    return stream([checkpoint], slabs.spans, work)


def _lost(errors: Sequence[Error]) -> dict[str, float | None]:
    """Compute the fields of `report.QuantizationError` for several slabs together."""
    error, square, exact, saturated, values = (fsum(column) for column in zip(*errors, strict=True))
    rms = sqrt(error / square) if square else None
    return {
        "rms_rel": rms,
        "sqnr_db": -20 * log10(rms) if rms else None,
        "exact": exact / values if values else None,
        "saturated": saturated / values if values else None,
    }


def headroom(found: Sequence[tuple[Span, Errors]], slabs: Slabs, formats: Sequence[QuantizationFormat]) -> dict[str, Any]:
    """Compute the report's fields from the errors of all slabs, which may come in any order."""
    ordered = sorted(found, key=lambda each: (each[0].tensor.file, each[0].tensor.offset, each[0].start))
    rows: list[QuantizationRow] = []
    roles: list[QuantizationRole] = []
    ignore: dict[str, tuple[str, ...]] = {}
    for name in formats:
        by_tensor: dict[str, tuple[Tensor, list[Error]]] = {}
        for span, errors in ordered:
            by_tensor.setdefault(span.tensor.name, (span.tensor, []))[1].append(errors[name])
        own = [
            QuantizationRow(name=tensor.name, role=tensor.role, format=name, values=sum(e[4] for e in errors), **_lost(errors))
            for tensor, errors in by_tensor.values()
        ]
        own.sort(key=lambda row: -(row.rms_rel or 0))
        rows += own[: limits.REPORT_TENSORS // len(formats)]
        median = float(np.median([row.rms_rel for row in own if row.rms_rel] or [0]))
        worst = (row.name.removesuffix(".weight") for row in own if row.rms_rel and row.rms_rel > IGNORED_FROM * median)
        ignore[name] = tuple(islice(worst, limits.REPORT_TENSORS))
        for role in ROLES:
            tensors = [errors for tensor, errors in by_tensor.values() if tensor.role == role]
            each = [error for errors in tensors for error in errors]
            if each:
                blocks = len(each) if slabs.sampled else None
                roles.append(QuantizationRole(role=role, format=name, tensors=len(tensors), blocks=blocks, **_lost(each)))
    roles.sort(key=lambda row: (list(formats).index(row.format), -(row.rms_rel or 0)))
    return {"quantization": tuple(rows), "quantization_roles": tuple(roles), "quantization_ignore": ignore}
