"""Update sparsities of published fine-tunes, and the rank of another fine-tune among them.

reference/rlvr_update_sparsity.csv is Table 1 of Zhu et al., "The Path Not Taken: RLVR Provably Learns Off the Principals" (arXiv
2511.08567): the share of the weights that a fine-tune left unchanged in bf16, in percent to one decimal. ``OURS`` marks the authors' own
runs. Their definition is the probe with eta = 1e-3, which for checkpoints stored in bf16 equals our definition of *changed*.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from analyzers.formatting import listed, share

SOURCE = "https://arxiv.org/abs/2511.08567"
_TABLE = Path(__file__).parent / "reference" / "rlvr_update_sparsity.csv"


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One published fine-tune. algorithm: SFT or one of reinforcement learning; data: the training data; sparsity: in [0, 1]."""

    base: str
    finetuned: str
    algorithm: str
    data: str
    sparsity: float

    def __str__(self) -> str:
        name = "the authors' own" if self.finetuned == "OURS" else self.finetuned
        return f"{name} ({self.algorithm}, {share(self.sparsity)})"


@cache
def published() -> tuple[PublishedRow, ...]:
    """Read the published fine-tunes, the least sparse first."""
    with _TABLE.open(newline="", encoding="utf-8") as file:
        rows = [
            PublishedRow(row["base"], row["finetuned"], row["algorithm"], row["data"], float(row["sparsity_bf16_pct"]) / 100)
            for row in csv.DictReader(file)
        ]
    return tuple(sorted(rows, key=lambda row: row.sparsity))


def rank(sparsity: float) -> str:
    """Rank ``sparsity``, in [0, 1], among `published`, to the table's tenth of a percent; returns a sentence that names its neighbours."""
    rows = published()
    tenths = round(1000 * sparsity)
    lower = [row for row in rows if round(1000 * row.sparsity) < tenths]
    equal = [row for row in rows if round(1000 * row.sparsity) == tenths]
    higher = rows[len(lower) + len(equal) :]
    if equal:
        where = f"as sparse as {listed([*map(str, equal)])}"
    elif lower and higher:
        where = f"between {lower[-1]} and {higher[0]}"
    else:
        where = f"next to {lower[-1] if lower else higher[0]}"
    among = f"Sparser than {len(lower)} of" if lower else "Among the least sparse of" if equal else "Less sparse than all"
    return f"{among} {len(rows)} published fine-tunes, {where}."
