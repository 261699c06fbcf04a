"""How often lineage proves an ancestor: false proofs of native checkpoints, and proofs of copies; measured, and kept in a file."""

from functools import cache
from pathlib import Path

from analyzers.data import Data
from analyzers.dtype_detection.labels import rows_of

PROOFS = Path(__file__).parent / "reference" / "proofs.csv"
# Bytes that quick mode may read in the measurement.
QUICK_BUDGET = 100_000


class Proofs(Data):
    """Of how many of ``draws`` checkpoints an ancestor is proven, of the whole or of any tensor.

    what: the kind of native values, or the formats that normal values went through; values: in a copy, None for native ones.
    """

    what: str
    stored: str
    values: int | None
    draws: int
    exact: int
    quick: int


@cache
def proofs() -> tuple[Proofs, ...]:
    """The rows of proofs.csv."""
    return tuple(Proofs.model_validate(row | {"values": row["values"] or None}, strict=False) for row in rows_of(PROOFS.name))
