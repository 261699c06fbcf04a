"""Tables and terminal lines of a report's coverage: what was covered and what was left out."""

from collections.abc import Callable, Iterator
from typing import Any

from analyzers.base import Report
from analyzers.columns import Column, Table, formatted
from analyzers.coverage import CLASSES, Class, Counted, Coverage, LeftOut, NotRead
from analyzers.formatting import NOTHING, count, plural, share, size
from analyzers.terminal import columns, not_read

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


def _count(name: str, field: str) -> Column:
    """Return a column of the tensors, parameters or bytes of a class; 0 if the checkpoint has none of it."""
    return Column(f"{name}_{field}", value=lambda row: getattr(row.classes.get(name), field, 0))


def _parts(field: str) -> Callable[[Any], Iterator[dict[str, Any]]]:
    """Return the function that makes a table's rows from the list ``field`` of every checkpoint, each row with the checkpoint's name."""
    return lambda report: ({"checkpoint": each.ref, **vars(part)} for each in report.coverage for part in getattr(each, field))


LEFT_OUT = Table(
    "left_out",
    _parts("left_out"),
    (Column("what", "What"), *formatted(count, tensors="Tensors", parameters="Parameters"), Column("why", "Why")),
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
            *map(Column, ("share", "whole", "parameters", "covered")),
            *(_count(name, field) for name in CLASSES for field in Counted.model_fields),
        ),
    ),
    LEFT_OUT,
    NOT_READ,
)


def class_rows(coverage: Coverage) -> list[tuple[str, str, str, str, str]]:
    """Return each class with its tensors, parameters, share of all parameters, and bytes; then a row of totals if there are several."""
    counts = [(NAMES[name], coverage.classes[name]) for name in NAMES if name in coverage.classes]
    rows = [(name, counted.tensors, counted.parameters, counted.bytes) for name, counted in counts]
    if len(rows) > 1:
        rows.append(("all", *(sum(getattr(counted, field) for _, counted in counts) for field in Counted.model_fields)))
    return [
        (name, count(tensors), count(parameters), share(parameters / coverage.parameters) if coverage.parameters else NOTHING, size(nbytes))
        for name, tensors, parameters, nbytes in rows
    ]


def covered_text(coverage: Coverage, verb: str) -> str:
    """Write a sentence on how many weights are covered, or that all tensors are accounted for."""
    if coverage.whole:
        tensors = sum(each.tensors for each in coverage.classes.values())
        return f"All {plural(tensors, 'tensor')} accounted for."
    return f"{verb.capitalize()}: {count(coverage.covered)} of {plural(coverage.weights, 'weight')} ({share(coverage.share)})."


def left_out_text(coverage: Coverage, files: bool = True) -> Iterator[str]:
    """Yield a line for each of the first parts that were left out and, with ``files``, a line for each reason why files were not read."""
    for part in coverage.left_out[:_SHOWN]:
        parameters = f", {plural(part.parameters, 'parameter')}" if part.parameters else ""
        yield f"Left out: {part.what} ({plural(part.tensors, 'tensor')}{parameters}): {part.why}"
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
    rows: list[tuple[str, ...]] = [(f"Coverage of {coverage.ref}", "Tensors", "Parameters", "Share", "Bytes")]
    yield from columns([*rows, *class_rows(coverage)], right=(1, 2, 3, 4))
    yield from left_out_text(coverage, files)
