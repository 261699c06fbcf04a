"""Defines the report of `shrink`. Field names are the JSON contract."""

from typing import Self

from pydantic import Field

from analyzers.checkpoints import Checkpoint
from analyzers.records import Record


class ShrunkTensor(Record):
    """One tensor. from, to: its dtype before and after, or the format of its codes; null for a copy of a tied weight, which is left out."""

    name: str
    from_: str = Field(serialization_alias="from")
    to: str | None


class ShrinkReport(Record):
    """The result of a shrink.

    bytes_before, bytes_after: bytes of all tensors. config_dtype: dtype in the new config.json. written: files that differ from the
    checkpoint's, none if there was nothing to shrink; replaced: files of the checkpoint that are not in the folder. pull_request: its
    address. notes: what was left out, and what was copied without being compared.
    """

    model: str
    commit: str
    out: str
    bytes_before: int
    bytes_after: int
    config_dtype: str | None
    tensors: tuple[ShrunkTensor, ...]
    written: tuple[str, ...]
    replaced: tuple[str, ...]
    pull_request: str | None = None
    notes: tuple[str, ...]

    @classmethod
    def of_nothing(cls, checkpoint: Checkpoint, out: str, why: str) -> Self:
        """Return the report of a run that wrote nothing."""
        return cls(
            model=checkpoint.ref,
            commit=checkpoint.commit,
            out=out,
            bytes_before=checkpoint.nbytes,
            bytes_after=checkpoint.nbytes,
            config_dtype=None,
            tensors=(),
            written=(),
            replaced=(),
            notes=(why, *checkpoint.notes),
        )

    def to_json(self) -> str:
        """Return the report as JSON."""
        return self.model_dump_json(indent=2, by_alias=True)
