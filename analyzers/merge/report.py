"""Defines the report of `merge`. Field names are the JSON contract."""

from collections.abc import Iterator
from typing import Any, Literal

from analyzers.core.columns import Column, Table
from analyzers.core.formatting import count
from analyzers.shrink.report import WrittenReport

Target = Literal["fp32", "bf16", "fp16"]


def _kinds(report: Any) -> Iterator[dict[str, Any]]:
    kinds = {
        "computed": report.computed,
        "taken from the adapter": report.replaced,
        f"converted to {report.to}": report.converted,
        "copied bit for bit": report.copied,
    }
    return ({"tensors": number, "what": what} for what, number in kinds.items() if number)


class MergeReport(WrittenReport):
    """The result of a merge.

    model: the base and its adapters, canonical; commit: theirs, joined by "+". tensors: number written, of which ``computed`` are
    W + s B A, ``replaced`` are whole tensors of the adapters, ``converted`` are the base's in another dtype, and ``copied`` the base's bit
    for bit; changed: number of computed and replaced tensors with a value that differs from the base's in fp32. touched: computed weights
    with a nonzero update; changed_share: share of these whose stored value differs from that of the base in the same dtype; lost_norm:
    |round(W + D) - round(W) - D| / |D| over the updates D of all computed tensors, where both are finite in the dtype; both null if there
    is no update. overflowed: finite weights stored as infinite. bytes: of all files.
    """

    TABLE = Table("tensors", _kinds, (Column("tensors", "Tensors", count), Column("what", "How")))

    to: Target
    bytes: int
    tensors: int
    computed: int
    replaced: int
    converted: int
    copied: int
    changed: int
    touched: int
    changed_share: float | None
    lost_norm: float | None
    overflowed: int
