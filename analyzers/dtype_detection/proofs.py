"""Measured rates at which lineage proves an ancestor: false proofs for native checkpoints, and proofs for copies. Kept in a file."""

from functools import cache
from pathlib import Path

from analyzers.core.records import Record
from analyzers.dtype_detection.labelled_models import rows_of

PROOFS = Path(__file__).parent / "reference" / "proofs.csv"
# Bytes that quick mode may read in the measurement
QUICK_BUDGET = 100_000


class Proofs(Record):
    """Number of ``draws`` checkpoints for which an ancestor is proven, of the whole or of any tensor, in exact and in quick mode.

    what: the kind of native values, or the formats that normal values passed through; values: number of values in a copy, None for native
    ones.
    """

    what: str
    stored: str
    values: int | None
    draws: int
    exact: int
    quick: int


@cache
def proofs() -> tuple[Proofs, ...]:
    """Read the rows of proofs.csv."""
    return tuple(Proofs.model_validate(row | {"values": row["values"] or None}, strict=False) for row in rows_of(PROOFS.name))
