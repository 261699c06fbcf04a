"""Update sparsities of published fine-tunes, and the place of another fine-tune among them.

reference/rlvr_update_sparsity.csv is Table 1 of Zhu et al., "The Path Not Taken: RLVR Provably Learns Off the Principals" (arXiv
2511.08567): the share of the weights that a fine-tune left unchanged in bf16, in percent to one decimal. ``OURS`` marks the authors' own
runs. Their definition is the probe with eta = 1e-3, which for checkpoints stored in bf16 equals our definition of *changed*.
"""

import csv
from functools import cache
from pathlib import Path

from analyzers.comparison.sparsity.rows import PublishedRow

_TABLE = Path(__file__).parent / "reference" / "rlvr_update_sparsity.csv"


@cache
def published() -> tuple[PublishedRow, ...]:
    """Read the published fine-tunes, the least sparse first."""
    with _TABLE.open(newline="", encoding="utf-8") as file:
        rows = [
            PublishedRow(
                base_model=row["base"],
                finetuned="the authors' own" if row["finetuned"] == "OURS" else row["finetuned"],
                algorithm=row["algorithm"],
                data=row["data"],
                sparsity=float(row["sparsity_bf16_pct"]) / 100,
            )
            for row in csv.DictReader(file)
        ]
    return tuple(sorted(rows, key=lambda row: row.sparsity))


def less_sparse(sparsity: float) -> int:
    """Return how many of the `published` fine-tunes are less sparse than ``sparsity``, to the table's tenth of a percent."""
    return sum(round(1000 * row.sparsity) < round(1000 * sparsity) for row in published())
