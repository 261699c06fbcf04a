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
    Column("Share", 84, True),
    Column("Cosine to the rest", 138, True),
    Column("Mean without it", 128, True),
    Column("Largest in units", 130, True),
    Column("Loss", 80, True),
    Column("Norm", 92, True),
    Column("Tokens", 82, True),
    Column("Answer tokens", 118, True),
    Column("Truncated", 96, False),
    Column("Row", 82, True),
)


def _lines(report: "ConflictReport") -> Iterator[Line]:
    texts = excerpts(report, _LONGEST)
    for row, sample, text in zip(report.dominance.samples, report.samples, texts, strict=True):
        tokens, answer = len(sample.token_ids), len(sample.token_ids) - sample.answer_start
        cut, words = "yes" if sample.truncated else "no", shown(text, _LONGEST)
        cosines = (row.cosine_to_rest, row.leave_one_out_cosine)
        yield (
            [row.sample, words, row.share, *cosines, row.neurons_led, sample.loss, row.norm, tokens, answer, cut, sample.row],
            [
                *(str(row.sample), words, numbers.share(row.share), *map(numbers.magnitude, cosines), numbers.share(row.neurons_led)),
                *(numbers.magnitude(sample.loss), numbers.magnitude(row.norm), numbers.count(tokens), numbers.count(answer), cut),
                numbers.NOTHING if sample.row is None else str(sample.row),
            ],
        )


SAMPLES = DataTable("Samples", "m-samples-table", _COLUMNS, _lines)
