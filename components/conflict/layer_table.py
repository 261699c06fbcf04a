"""The table of layers: all blocks of a gradient together, each alone, and two of them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from components.conflict.headline import undecided
from components.conflict.names import sides
from components.results.data_table import Column, DataTable, Line
from components.text import numbers

if TYPE_CHECKING:
    from analyzers.gradient_conflict.report import ConflictReport
    from analyzers.gradient_conflict.summaries import ModelRow, Rates

ALL = "all"
_COLUMNS = (
    Column("Layer", 84, False),
    Column("FFN", 112, False),
    Column("Block", 104, False),
    Column("Conflict", 92, True),
    Column("95 % interval", 150, True),
    Column("Numerically undecided", 172, True),
    Column("Similarity", 98, True),
    Column("Mean cosine", 112, True),
    Column("Whole layer", 104, True),
    Column("Rate as published", 138, True),
    Column("Pairs", 112, True),
    Column("Units", 84, True),
    Column("Without gradient", 138, True),
)


def _lines(report: "ConflictReport") -> Iterator[Line]:
    """The model first, then the layers from the last; of each all blocks together, then single blocks and pairs of them."""
    from analyzers.gradient_conflict.request import ATTENTION_BLOCKS, COMBINED_BLOCKS, FFN_BLOCKS

    for name, found in sides(report):
        ffn = name if report.original is not None else "original"
        rows: list[tuple[str, ModelRow]] = [("model", found.model), *((str(row.layer), row) for row in found.layers)]
        for layer, row in rows:
            yield _line(layer, ffn, ALL, row, row)
            for block in (*FFN_BLOCKS, *COMBINED_BLOCKS, *ATTENTION_BLOCKS):
                rates: Rates | None = getattr(row, block)
                if rates is not None:
                    yield _line(layer, ffn, "+".join(COMBINED_BLOCKS.get(block, (block,))), rates, None)


def _line(layer: str, ffn: str, block: str, rates: "Rates", row: "ModelRow | None") -> Line:
    whole = None if row is None else row.whole.conflict_rate
    measures = (rates.conflict_rate, rates.magnitude_similarity, rates.mean_cosine, whole, rates.conflict_rate_historic)
    rate, similarity, cosine, of_whole, historic = measures
    interval, counts = rates.interval, (row.neurons, row.dead) if row is not None else (None, None)
    values = [
        *(layer, ffn, block, rate, interval.low if interval else None, rates.undecided.low),
        *(similarity, cosine, of_whole, historic, rates.pairs, *counts),
    ]
    read = [
        *(layer, ffn, block, numbers.share(rate), numbers.between(rates.interval), undecided(rates)),
        *(numbers.magnitude(similarity), numbers.magnitude(cosine), numbers.share(of_whole) if row is not None else numbers.NOTHING),
        *(
            numbers.share(historic),
            numbers.count(rates.pairs),
            *(numbers.NOTHING if each is None else numbers.count(each) for each in counts),
        ),
    ]
    return values, read


LAYERS = DataTable("Layers and blocks", "m-layers-table", _COLUMNS, _lines)
