"""The table of samples, as they were run."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gradio as gr

from components import numbers
from components.conflict.names import excerpts
from components.data_table import Column, DataTable
from components.markup import table
from components.plain_text import shown

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
_TABLE = DataTable(_COLUMNS)


def build_sample_table() -> gr.Dataframe:
    """An empty table. Call inside a page."""
    return _TABLE.build("Samples", "m-samples-table")


def sample_rows(report: "ConflictReport") -> dict[str, Any]:
    """The value of the table, in the order of the samples."""
    return _TABLE.value(_lines(report))


def sample_html(report: "ConflictReport") -> str:
    """The same in HTML."""
    return table([column.name for column in _COLUMNS], (read for _, read in _lines(report)), frozenset({0, *range(2, 10)}))


def _lines(report: "ConflictReport") -> Iterator[tuple[list[Any], list[str]]]:
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
