"""The result of gradient conflict: tables with every row, of both FFNs; and the methods page."""

import pytest

from analyzers.gradient_conflict.report import excerpts
from analyzers.gradient_conflict.rows import TAU
from components.conflict import methods
from components.conflict.result import RESULT
from components.results.layout import Rows
from tests.components.conflict_reports import conflict_report, top_k

TABLES = {part.table.label: part.table for tab in RESULT.tabs for part in tab.parts if isinstance(part, Rows)}


def test_layers_and_blocks_sort_by_exact_values_and_read_in_few_digits() -> None:
    found = top_k()
    layers = TABLES["Layers"].value(found)
    assert [tuple(row[:2]) for row in layers["data"]] == [(layer, ffn) for layer in (None, 0, 1, 2, 3) for ffn in ("original", "topk")]
    exact = dict(zip(layers["headers"], layers["data"][2], strict=True))
    read = dict(zip(layers["headers"], layers["metadata"]["display_value"][2], strict=True))
    first = found.layers[0]
    assert (exact["Layer"], exact["Conflict"], exact["Units"]) == (0, first.conflict_rate, first.neurons)
    assert read["Conflict"] == f"{100 * (first.conflict_rate or 0):.3g}%"
    blocks = TABLES["Blocks of the gradients"]
    assert [row[2] for row in blocks.value(found)["data"]] == ["gate", "up", "down"] * 2 * 5
    assert [row[2] for row in blocks.value(conflict_report(unit="attention"))["data"]] == ["q", "k", "v", "o"] * 5


def test_samples_are_shown_as_they_were_run() -> None:
    found = conflict_report()
    table = TABLES["Samples"].value(found)
    for line, sample, part in zip(table["data"], found.samples, found.dominance.samples, strict=True):
        row = dict(zip(table["headers"], line, strict=True))
        assert row["Text"] == " ".join(sample.text.split()) or row["Text"].endswith("…")
        assert (row["Tokens"], row["Loss"], row["Share"]) == (len(sample.token_ids or ()), sample.loss, part.share)


def test_differences_are_those_of_the_two_ffns() -> None:
    found = top_k()
    assert [row.layer for row in found.differences] == [None, 0, 1, 2, 3]
    for original, topk, change in zip(found.layers[::2], found.layers[1::2], found.differences[1:], strict=True):
        assert (original.ffn, topk.ffn, original.layer, topk.layer) == ("original", "topk", change.layer, change.layer)
        assert change.neuron_top_share == pytest.approx((topk.neuron_top_share or 0) - (original.neuron_top_share or 0))
        assert change.neuron_effective_samples == pytest.approx(
            (topk.neuron_effective_samples or 0) - (original.neuron_effective_samples or 0)
        )


def test_excerpts_leave_out_what_all_samples_begin_with() -> None:
    found = conflict_report(samples=3)
    texts = [f"Below is a task.\n\n### Task:\n{word} it." for word in ("Show", "Sort", "Tell")]
    samples = tuple(each.model_copy(update={"text": text}) for each, text in zip(found.samples, texts, strict=True))
    assert excerpts(found.model_copy(update={"samples": samples}), 64) == ["Show it.", "Sort it.", "Tell it."]
    same = tuple(each.model_copy(update={"text": "Same text."}) for each in found.samples)
    assert excerpts(found.model_copy(update={"samples": same}), 64) == ["Same text."] * 3


def test_no_two_columns_of_a_table_have_the_same_title() -> None:
    for found in (conflict_report(), top_k()):
        for table in found.declared_tables():
            titles = [column.title for column in table.shown(found, "page")]
            assert len(titles) == len(set(titles)), table.key


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_the_methods_page_says_what_the_arithmetic_leaves_open(name: str) -> None:
    assert f"{TAU[name]:g} in {name}" in methods.methods()
