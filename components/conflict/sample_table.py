"""The table of samples, as they were run."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from components.conflict.names import excerpts
from components.results.data_table import Column, DataTable, Line
from components.text import numbers
from components.text.plain_text import shown

if TYPE_CHECKING:
    from analyzers.gradient_conflict.report import ConflictReport

_LONGEST = 600
_COLUMNS = (
    Column("Sample", 82, True),
    Column("Text", 420, False),
    Column("Part of the sum", 124, True),
    Column("Cosine to the rest", 138, True),
    Column("Without it", 104, True),
    Column("Leads units", 106, True),
    Column("Loss", 80, True),
    Column("Norm", 92, True),
    Column("Tokens", 82, True),
    Column("Of the answer", 118, True),
    Column("Cut off", 84, False),
)


def _lines(report: "ConflictReport") -> Iterator[Line]:
    texts = excerpts(report, _LONGEST)
    for row, sample, text in zip(report.dominance.samples, report.samples, texts, strict=True):
        tokens, answer = len(sample.token_ids), len(sample.token_ids) - sample.answer_start
        cut, words = "yes" if sample.truncated else "no", shown(text, _LONGEST)
        cosines = (row.cosine_to_rest, row.leave_one_out_cosine)
        yield (
            [row.sample, words, row.share, *cosines, row.neurons_led, sample.loss, row.norm, tokens, answer, cut],
            [
                *(str(row.sample), words, numbers.share(row.share), *map(numbers.magnitude, cosines), numbers.share(row.neurons_led)),
                *(numbers.magnitude(sample.loss), numbers.magnitude(row.norm), numbers.count(tokens), numbers.count(answer), cut),
            ],
        )


SAMPLES = DataTable("Samples", "m-samples-table", _COLUMNS, _lines)
