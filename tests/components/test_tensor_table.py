"""The table of tensors: exact values to sort by, readable ones to read, and nothing where nothing was read."""

from collections.abc import Callable
from typing import Any, get_args

import pytest

from analyzers.dtype_detection.columns import TENSORS
from analyzers.dtype_detection.report import VERDICT_WORDS, Verdict
from analyzers.precision_variants import PrecisionReport
from analyzers.update_sparsity import SparsityReport
from components.dtype.tables import representable
from components.dtype.text import captions
from components.results.answer import table as declared_table
from components.results.tables import Sortable
from tests.components.dtype_reports import hostile_report, report
from tests.components.precision_reports import precision_report
from tests.components.sparsity_reports import sparsity_report


def _unread() -> dict[str, object]:
    nothing = dict.fromkeys(("abs_min", "abs_min_nonzero", "abs_max", "norm"))
    return report().tensors[0].model_dump() | nothing | {"values_read": 0, "zero": 0}


def test_values_are_exact_and_what_is_read_is_short() -> None:
    table = Sortable(TENSORS, "m-tensors").value(report())
    columns = {name: index for index, name in enumerate(table["headers"])}
    exact, read = table["data"][0], table["metadata"]["display_value"][0]
    assert (exact[columns["Smallest > 0"]], read[columns["Smallest > 0"]]) == (3e-7, "3.00e-7")
    assert (exact[columns["Norm"]], read[columns["Norm"]]) == (12.25, "12.3")
    styles = table["metadata"]["styling"][0]
    assert [name for name in columns if "right" in styles[columns[name]]] == [
        "Largest", "Norm", "Zeros", "Fossil rows", "Smallest > 0", "Smallest", "NaN", "Infinite",
    ]  # fmt: skip
    assert list(columns)[:2] == ["Name", "Lineage"]


def test_the_verdict_on_a_tensor_is_in_words() -> None:
    first = report().tensors[0]
    row = first.model_copy(update={"lineage": first.lineage.model_copy(update={"verdict": "fp8-ancestor"})})
    table = Sortable(TENSORS, "m-tensors").value(report(tensors=[row]))
    assert dict(zip(table["headers"], table["metadata"]["display_value"][0], strict=True))["Lineage"] == "from fp8"
    assert VERDICT_WORDS.keys() == set(get_args(Verdict)) and not any("-" in words for words in VERDICT_WORDS.values())


@pytest.mark.parametrize(
    ("build", "of"),
    [
        (lambda: Sortable(TENSORS, "m"), report),
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


def test_a_tensor_that_was_not_read_shows_no_counts() -> None:
    table = Sortable(TENSORS, "m-tensors").value(report(tensors=[_unread()]))
    row = dict(zip(table["headers"], table["metadata"]["display_value"][0], strict=True))
    assert (row["Zeros"], row["Fossil rows"], row["Largest"], row["Lineage"]) == ("–", "–", "–", "not read")


def test_the_sentence_above_counts_and_says_what_is_scaled() -> None:
    assert "6 tensors." in captions.tensors(report())
    assert "scaled up" in captions.tensors(report())
    whole = report().extremes.model_dump() | {"exact": True}
    assert "scaled up" not in captions.tensors(report(extremes=whole)), "a sample that is everything"
    assert "one row for each layer and role" in captions.tensors(report(tensors_aggregated=True))


def test_every_format_has_its_share_and_a_sample_its_interval() -> None:
    html = representable(report())
    for text in ("fp16", "bf16", "tf32", "fp8 e4m3", "fp8 e5m2", "99%", "98.5% to</span> <span>99.3%", "7%"):
        assert text in html
    assert html.count("<meter") == 5
    assert "95% intervals" in html
    assert "interval" not in representable(report(intervals={}))
    assert "Of all values" in representable(report(intervals={"zero": {"estimate": 0.1, "low": 0.05, "high": 0.2}}))


def test_shares_of_nothing_are_no_shares() -> None:
    nothing = dict.fromkeys(("fp16", "bf16", "tf32", "fp8_e4m3", "fp8_e5m2"))
    html = representable(report(representable=nothing, intervals={}))
    assert html.count("–") == 5
    assert "<meter" not in html
    assert "<img" not in representable(hostile_report())
