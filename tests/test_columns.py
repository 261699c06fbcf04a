"""A column is declared once: what is added to a table of an analyzer is everywhere where the table is."""

import csv
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from analyzers import ANALYZERS
from analyzers.core.columns import Column, Table
from analyzers.core.records import Interval
from analyzers.core.report import Report
from analyzers.core.rows import tables
from analyzers.core.tables import write_csv
from components.result.render import fragment
from tests.components.reports import NAMES, example
from tests.toy import ENTRY, ToyReport, ToyRequest, analyze


def test_a_column_declared_in_one_place_is_on_the_page_in_a_terminal_in_files_and_in_documents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(ANALYZERS, "toy", ENTRY)
    (report,) = (item for item in analyze(ToyRequest(model="sample:tiny-bf16")) if isinstance(item, ToyReport))
    row = report.tensors[0]
    assert row.name in fragment(report).replace("<wbr>", "") and ">Elements</button>" in fragment(report)
    assert any(line.endswith("Elements") for line in report.lines(full=True))
    assert "Elements" in report.to_html() and f"{row.elements:,}" in report.to_html()
    write_csv([report], tmp_path)
    with (tmp_path / "tensors.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert (first["name"], first["elements"]) == (row.name, str(row.elements))
    assert len(report.tables()["tensors"]) == len(report.tensors) == report.counted


def test_files_of_every_analyzer_have_every_column_that_is_not_only_for_people() -> None:
    for analyzer in ANALYZERS.values():
        kind = analyzer.report_model()
        declared = [*tables(kind), *kind.DERIVED] if issubclass(kind, Report) else import_module(f"{analyzer.package}.columns").TABLES
        for table in declared:
            if not callable(table.columns):
                held = set(replace(table, rows=lambda report: []).frame(None))
                assert {column.key for column in table.columns if not column.only} == held, table.key


def test_a_column_says_what_is_unknown_and_where_it_is_shown() -> None:
    table = Table(
        "rates",
        lambda report: report,
        (
            Column("name", "Name"),
            Column("low", "95% interval", str, "interval.low"),
            Column("long", "Long", only="page"),
            Column("secret"),
            Column("more"),
        ),
        title="Rates",
    )
    rows: list[dict[str, object]] = [{"name": "\x1b[31m", "interval": None, "long": "x" * 500, "secret": 1, "more": 2}]
    assert table.lines(rows) == ["Rates:", "Name          95% interval", "<U+001B>[31m             –"]
    assert table.frame(rows).to_dict("records") == [{"name": "\x1b[31m", "low": None, "secret": 1, "more": 2}]
    interval = Interval(estimate=0.5, low=0.25, high=0.75)
    assert table.frame([{"interval": interval, "more": interval}]).iloc[0]["low"] == 0.25
    assert table.frame([{"interval": interval, "more": interval}]).iloc[0]["more"] == interval.model_dump()
    assert table.frame([]).empty and list(table.frame([])) == ["name", "low", "secret", "more"] and table.lines([]) == []
    assert [column.title for column in table.shown(rows, "page")] == ["Name", "Long"]  # nothing in any row
    rows.append({"name": "", "interval": interval, "long": ""})
    assert [column.title for column in table.shown(rows, "page")] == ["Name", "95% interval", "Long"]


def test_a_key_may_have_a_point() -> None:
    row = {"0.15": 1, "interval": {"low": 2}}
    assert (Column("0.15", "Loss").value_of(row), Column("low", value="interval.low").value_of(row)) == (1, 2)


def test_no_two_columns_of_a_table_have_the_same_title() -> None:
    for report in map(example, NAMES):
        for table in report.declared_tables():
            titles = [column.title for column in table.shown(report, "page")]
            assert len(titles) == len(set(titles)), table.key
