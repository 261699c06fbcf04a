"""A column is declared once: what is added to a table of an analyzer is everywhere where the table is."""

from dataclasses import replace
from importlib import import_module

from analyzers import ANALYZERS
from analyzers.core.columns import Column, Table
from analyzers.core.formatting import NOTHING
from analyzers.core.records import Interval
from analyzers.core.report import Report
from analyzers.core.rows import columns, tables
from analyzers.exit.report import CostRow
from tests.components.reports import NAMES, example


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
            Column("long", "Long", only="people"),
            Column("secret"),
            Column("more"),
        ),
        title="Rates",
    )
    rows: list[dict[str, object]] = [{"name": "\x1b[31m", "interval": None, "long": "x" * 500, "secret": 1, "more": 2}]
    assert table.lines(rows) == ["Rates:", "Name          95% interval  Long", f"<U+001B>[31m             –  {'x' * 500}"]
    assert table.frame(rows).to_dict("records") == [{"name": "\x1b[31m", "low": None, "secret": 1, "more": 2}]
    interval = Interval(estimate=0.5, low=0.25, high=0.75)
    assert table.frame([{"interval": interval, "more": interval}]).iloc[0]["low"] == 0.25
    assert table.frame([{"interval": interval, "more": interval}]).iloc[0]["more"] == interval.model_dump()
    assert table.frame([]).empty and list(table.frame([])) == ["name", "low", "secret", "more"] and table.lines([]) == []
    assert [column.title for column in table.shown(rows, "page")] == ["Name", "Long"]  # nothing in any row
    rows.append({"name": "", "interval": interval, "long": ""})
    assert [column.title for column in table.shown(rows, "page")] == ["Name", "95% interval", "Long"]


def test_no_two_columns_of_a_table_have_the_same_title() -> None:
    for report in map(example, NAMES):
        for table in report.declared_tables():
            titles = [column.title for column in table.shown(report, "page")]
            assert len(titles) == len(set(titles)), table.key


def test_a_number_that_a_function_writes_is_sorted_and_aligned_as_a_number() -> None:
    row = CostRow(method="span", form="whole", seconds=0.008353, peak_bytes=1, time_ratio=6.178, memory_ratio=None)
    shown = {column.title: column for column in columns(CostRow)}
    assert [shown[title].text_of(row) for title in ("Time", "Time vs exact", "Memory vs exact")] == ["8.35 ms", "6.18", NOTHING]
    assert shown["Time"].text is not None and shown["Time"].value_of(row) == 0.008353
