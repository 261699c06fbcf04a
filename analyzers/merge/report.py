"""Defines the report of `merge`. Field names are the JSON contract."""

from typing import Literal

from analyzers.records import Record

Dtype = Literal["float32", "bfloat16", "float16"]


class MergeReport(Record):
    """The result of a merge.

    model: the base and its adapters, canonical; commit: theirs, joined by "+"; tensors: number written; changed: number of tensors that the
    adapters change; touched: weights with a nonzero update; changed_share: share of these whose stored value differs from that of
    the base in the same dtype; lost_norm: |round(W + D) - round(W) - D| / |D| over the updates D of all computed tensors; both null if
    there is no update. written: files that differ from the base's; bytes: of all files. notes: what was not merged, and what was copied
    without being compared.
    """

    model: str
    commit: str
    out: str
    dtype: Dtype
    bytes: int
    tensors: int
    changed: int
    touched: int
    changed_share: float | None
    lost_norm: float | None
    written: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> str:
        """Return the report as JSON."""
        return self.model_dump_json(indent=2)
