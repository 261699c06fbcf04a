"""The table of tensors: exact values to sort by, readable ones to read."""

from collections.abc import Callable
from typing import Any

import pytest

from analyzers.dtype_detection import DtypeReport
from analyzers.precision_variants import PrecisionReport
from analyzers.update_sparsity import SparsityReport
from components.results.answer import table as declared_table
from components.results.tables import Sortable
from tests.components.dtype_reports import report
from tests.components.precision_reports import precision_report
from tests.components.sparsity_reports import sparsity_report


def test_values_are_exact_and_what_is_read_is_short() -> None:
    table = declared_table(DtypeReport, "tensors").table.value(report())
    columns = {name: index for index, name in enumerate(table["headers"])}
    exact, read = table["data"][0], table["metadata"]["display_value"][0]
    assert (exact[columns["Smallest > 0"]], read[columns["Smallest > 0"]]) == (3e-7, "3.00e-7")
    assert (exact[columns["Norm"]], read[columns["Norm"]]) == (12.25, "12.3")
    styles = table["metadata"]["styling"][0]
    assert [name for name in columns if "right" in styles[columns[name]]] == [
        "Read", "Fossil rows", "Largest", "Norm", "Smallest > 0", "Zeros", "NaN", "Infinite",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "of"),
    [
        (lambda: declared_table(DtypeReport, "tensors").table, report),
        (lambda: declared_table(PrecisionReport, "tensors").table, precision_report),
        (lambda: declared_table(SparsityReport, "tensors").table, sparsity_report),
    ],
)
def test_no_number_and_no_role_is_cut_off(build: Callable[[], Sortable], of: Callable[[], Any]) -> None:
    table = build()
    widths = [int(str(width).removesuffix("px")) for width in table.build().column_widths or ()]
    value = table.value(of())
    long = {"Name", "Tensor", "In the tuned checkpoint"}  # these are cut off, and whole in the tooltip and the files
    for row in value["metadata"]["display_value"]:
        for title, text, width in zip(value["headers"], row, widths, strict=True):
            assert title in long or 7.6 * len(text) + 16 <= width, (title, text, width)  # px of a character and of the padding
