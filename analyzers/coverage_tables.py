"""Tables and terminal lines of a report's coverage: what was covered and what was left out."""

from collections.abc import Callable, Iterator
from typing import Any

from analyzers.base import Report
from analyzers.columns import Column, Table, formatted
from analyzers.coverage import CLASSES, Class, Counted, Coverage, LeftOut, NotRead
from analyzers.formatting import count, plural, share, size
from analyzers.terminal import not_read

NAMES: dict[Class, str] = {
    "compared": "compared",
    "read": "read",
    "tied": "tied copies",
    "buffer": "buffers and scales",
    "adapter": "adapter matrices",
    "unmatched": "no counterpart",
    "undecoded": "not decoded",
    "excluded": "excluded by the filter",
    "empty": "empty",
}
# A terminal shows at most this many left-out parts per checkpoint.
_SHOWN = 10
# Buffers, scales and packed integers hold values that are not parameters.
_COUNTS = formatted(count, tensors="Tensors", parameters="Values")


def _count(name: str, field: str) -> Column:
    """Return a column of the tensors, parameters or bytes of a class; 0 if the checkpoint has none of it."""
    return Column(f"{name}_{field}", value=lambda row: getattr(row.classes.get(name), field, 0))


def _parts(field: str) -> Callable[[Any], Iterator[dict[str, Any]]]:
    """Return the function that makes a table's rows from the list ``field`` of every checkpoint, each row with the checkpoint's name."""
    return lambda report: ({"checkpoint": each.ref, **vars(part)} for each in report.coverage for part in getattr(each, field))


LEFT_OUT = Table(
    "left_out",
    _parts("left_out"),
    (Column("what", "What"), *_COUNTS, Column("why", "Why")),
    files=("checkpoint", *LeftOut.model_fields),
    title="Left out",
)
NOT_READ = Table(
    "files_not_read",
    _parts("files_not_read"),
    (
        Column("path", "File"),
        Column("alternative", "What it is", cell=lambda row: "a copy, by its name" if row["alternative"] else "may hold weights"),
        Column("why", "Why"),
    ),
    files=("checkpoint", *NotRead.model_fields),
    title="Files not read",
)
# The tables of a report's files: one row per checkpoint with its share and counts by class; the parts left out; the files not read.
COVERAGE = (
    Table(
        "coverage",
        lambda report: report.coverage,
        (
            Column("checkpoint", value="ref"),
            *map(Column, ("share", "whole", "parameters", "covered", "values_read")),
            *(_count(name, field) for name in CLASSES for field in Counted.model_fields),
        ),
    ),
    LEFT_OUT,
    NOT_READ,
)


def _classes(coverage: Coverage) -> Iterator[dict[str, Any]]:
    """Yield each class with its share of all parameters; then the totals, if there are several."""
    rows = {title: vars(coverage.classes[name]) for name, title in NAMES.items() if name in coverage.classes}
    if len(rows) > 1:
        rows["all"] = {field: sum(row[field] for row in rows.values()) for field in Counted.model_fields}
    for title, row in rows.items():
        yield {**row, "class": title, "share": row["parameters"] / coverage.parameters if coverage.parameters else None}


# Its rows come from the coverage of one checkpoint in place of a report.
CLASS_COUNTS = Table(
    "",
    _classes,
    lambda coverage: (
        Column("class", "Class", only="page"),
        Column("class", f"Coverage of {coverage.ref}", only="terminal"),
        *_COUNTS,
        Column("share", "Share", share),
        Column("bytes", "Bytes", size),
    ),
)


def covered_text(coverage: Coverage, verb: str) -> str:
    """Write a sentence on how many weights are covered, or that all tensors are accounted for."""
    if coverage.whole:
        tensors = sum(each.tensors for each in coverage.classes.values())
        return f"All {plural(tensors, 'tensor')} accounted for."
    stored = "stored value" if "undecoded" in coverage.classes else "weight"  # an integer may hold several weights
    done = (coverage.verb or verb).capitalize()
    said = f"{done}: {count(coverage.covered)} of {plural(coverage.weights, stored)} ({share(coverage.share)})."
    if coverage.values_read is None:
        return said
    return f"Read: {count(coverage.values_read)} of {plural(coverage.weights, stored)}. {said}"


def left_out_text(coverage: Coverage, files: bool = True) -> Iterator[str]:
    """Yield a line for each of the first parts that were left out and, with ``files``, a line for each reason why files were not read."""
    for part in coverage.left_out[:_SHOWN]:
        yield f"Left out: {part.what} ({part.amount}): {part.why}"
    if more := coverage.left_out[_SHOWN:]:
        yield f"Left out: {plural(len(more), 'more part')}"
    if files:
        yield from not_read((file.path, file.why) for file in coverage.missed_files)


def coverage_lines(report: Report) -> list[str]:
    """Write the coverage of each checkpoint that is not covered as a whole, for a terminal; empty if all are."""
    partial = [each for each in report.accounts() if not each.whole]
    lines = [line for each in partial for line in _lines(each, report.names_files)]
    return ["", *lines] if lines else []


def _lines(coverage: Coverage, files: bool) -> Iterator[str]:
    yield from CLASS_COUNTS.lines(coverage)
    yield from left_out_text(coverage, files)
