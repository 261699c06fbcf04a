"""Shows the account of a report, what it covers and what it leaves out, as tables and as lines for a terminal."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analyzers.base import Report
from analyzers.coverage import CLASSES, Class, Counted, Coverage, LeftOut, NotRead
from analyzers.formatting import NOTHING, count, plural, share, size
from analyzers.tables import table
from analyzers.terminal import columns, not_read

if TYPE_CHECKING:
    import pandas

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
# Most parts that the terminal shows of each checkpoint.
_SHOWN = 10


def coverage_tables(coverage: Sequence[Coverage]) -> "dict[str, pandas.DataFrame]":
    """Return the tables ``coverage``, ``left_out`` and ``files_not_read``.

    ``coverage`` has a row per checkpoint: share, and tensors, parameters, bytes of each class.
    """
    parts = ({"checkpoint": each.ref, **part.model_dump()} for each in coverage for part in each.left_out)
    files = ({"checkpoint": each.ref, **file.model_dump()} for each in coverage for file in each.files_not_read)
    classes = [f"{name}_{field}" for name in CLASSES for field in Counted.model_fields]
    return {
        "coverage": table(map(_row, coverage), "checkpoint", "share", "whole", "parameters", "covered", *classes),
        "left_out": table(parts, "checkpoint", *LeftOut.model_fields),
        "files_not_read": table(files, "checkpoint", *NotRead.model_fields),
    }


def _row(coverage: Coverage) -> dict[str, object]:
    nothing = Counted(tensors=0, parameters=0, bytes=0)
    counts = {name: coverage.classes.get(name, nothing).model_dump() for name in NAMES}
    return {
        "checkpoint": coverage.ref,
        "whole": coverage.whole,
        **coverage.model_dump(include={"share", "parameters", "covered"}),
        **{f"{name}_{field}": value for name, counted in counts.items() for field, value in counted.items()},
    }


def class_rows(coverage: Coverage) -> list[tuple[str, str, str, str, str]]:
    """Return each class with its tensors, parameters, their share of all, and bytes; then the sums."""
    found = [(NAMES[name], coverage.classes[name]) for name in NAMES if name in coverage.classes]
    rows = [(name, each.tensors, each.parameters, each.bytes) for name, each in found]
    if len(rows) > 1:
        rows.append(("all", *(sum(getattr(each, field) for _, each in found) for field in Counted.model_fields)))
    return [
        (name, count(tensors), count(parameters), share(parameters / coverage.parameters) if coverage.parameters else NOTHING, size(nbytes))
        for name, tensors, parameters, nbytes in rows
    ]


def covered(coverage: Coverage, verb: str) -> str:
    """Write a sentence on how many weights are covered, or that all tensors are accounted for."""
    if coverage.whole:
        tensors = sum(each.tensors for each in coverage.classes.values())
        return f"All {plural(tensors, 'tensor')} accounted for."
    return f"{verb.capitalize()}: {count(coverage.covered)} of {plural(coverage.weights, 'weight')} ({share(coverage.share)})."


def missed(coverage: Coverage, files: bool = True) -> Iterator[str]:
    """Yield a line for each of the first parts that were left out and, with ``files``, a line for each reason why files were not read."""
    for part in coverage.left_out[:_SHOWN]:
        parameters = f", {plural(part.parameters, 'parameter')}" if part.parameters else ""
        yield f"Left out: {part.what} ({plural(part.tensors, 'tensor')}{parameters}): {part.why}"
    if more := coverage.left_out[_SHOWN:]:
        yield f"Left out: {plural(len(more), 'more part')}"
    if files:
        yield from not_read((file.path, file.why) for file in coverage.missed_files)


def coverage_lines(report: Report) -> list[str]:
    """Write the account of each checkpoint that is not covered as a whole, for a terminal; empty if there is none."""
    partial = [each for each in report.accounts() if not each.whole]
    lines = [line for each in partial for line in _lines(each, report.names_files)]
    return ["", *lines] if lines else []


def _lines(coverage: Coverage, files: bool) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [(f"Coverage of {coverage.ref}", "Tensors", "Parameters", "Share", "Bytes")]
    yield from columns([*rows, *class_rows(coverage)], right=(1, 2, 3, 4))
    yield from missed(coverage, files)
