"""Defines the report of `merge`. Field names are the JSON contract."""

from typing import Literal

from analyzers.records import Record

Dtype = Literal["float32", "bfloat16", "float16"]


class MergeReport(Record):
    """The result of a merge.

    model: the base and its adapters, canonical; commit: theirs, joined by "+". tensors: number written, of which ``computed`` are
    W + s B A, ``replaced`` are whole tensors of the adapters, ``converted`` are the base's in another dtype, and ``copied`` the base's bit
    for bit; changed: number of computed and replaced tensors with a value that differs from the base's in fp32. touched: computed weights
    with a nonzero update; changed_share: share of these whose stored value differs from that of the base in the same dtype; lost_norm:
    |round(W + D) - round(W) - D| / |D| over the updates D of all computed tensors, where both are finite in the dtype; both null if there
    is no update. overflowed: finite weights stored as infinite. written: files that differ from the base's; bytes: of all files. notes:
    what was not merged, what overflowed, and what was copied without being compared.
    """

    model: str
    commit: str
    out: str
    dtype: Dtype
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
    written: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> str:
        """Return the report as JSON."""
        return self.model_dump_json(indent=2)
