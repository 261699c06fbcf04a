"""The table of neurons: those that conflict most, then those that conflict least."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from components.conflict.names import sides, unit_name
from components.results.data_table import Column, DataTable, Line
from components.text import numbers

if TYPE_CHECKING:
    from analyzers.gradient_conflict.report import ConflictReport

_COLUMNS = (
    Column("Neuron", 190, False),
    Column("Most or least", 112, False),
    Column("Conflict", 92, True),
    Column("Similarity", 98, True),
    Column("Mean cosine", 112, True),
    Column("Mean |activation|", 142, True),
    Column("Top sample", 108, True),
    Column("Its share", 92, True),
    Column("Effective samples", 148, True),
    Column("Pairs", 84, True),
    Column("FFN", 112, False),
)


def _lines(report: "ConflictReport") -> Iterator[Line]:
    for name, found in sides(report):
        ffn = name if report.original is not None else "original"
        if found.neurons is None:
            continue
        for among, rows in (("most", found.neurons.most), ("least", found.neurons.least)):
            for row in rows:
                which, sample = unit_name(row), row.top_sample
                values = (row.mean_cosine, row.mean_activation)
                yield (
                    [
                        *(which, among, row.conflict_rate, row.magnitude_similarity, *values),
                        *(sample, row.top_share, row.effective_samples, row.pairs, ffn),
                    ],
                    [
                        *(which, among, numbers.share(row.conflict_rate), numbers.magnitude(row.magnitude_similarity)),
                        *(*map(numbers.magnitude, values), numbers.NOTHING if sample is None else str(sample)),
                        *(numbers.share(row.top_share), numbers.magnitude(row.effective_samples), numbers.count(row.pairs), ffn),
                    ],
                )


NEURONS = DataTable("Neurons", "m-neurons-table", _COLUMNS, _lines)
