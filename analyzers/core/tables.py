"""Tables of reports as CSV and Parquet files."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analyzers.core import limits
from analyzers.core.atomic_files import replacing
from analyzers.core.report import Report
from analyzers.core.terminal import printable

if TYPE_CHECKING:
    import pandas

# A spreadsheet evaluates text that begins like this as a formula, or hides the apostrophe.
_LEADS = ("=", "+", "-", "@", "'")


def write_csv(reports: Sequence[Report], folder: Path) -> None:
    """Write every nonempty table of ``reports`` as a CSV file into ``folder``, with `Report.subject` in the first columns.

    ``tensors`` and ``neurons`` have every row, even if the report aggregates them; with more than `limits.REPORT_TENSORS` rows they are
    also written as Parquet, which is faster to read at that size.
    """
    import pandas

    folder.mkdir(parents=True, exist_ok=True)
    gathered: dict[str, list[pandas.DataFrame]] = {}
    for report in reports:
        for name, table in report.full_tables().items():
            if not table.empty:
                if name != "summary":
                    for column, value in reversed(report.subject().items()):
                        table.insert(0, column, value)
                gathered.setdefault(name, []).append(table)
    for name, parts in gathered.items():
        rows = pandas.concat(parts, ignore_index=True)
        with replacing(folder / f"{name}.csv") as file:
            safe_text(rows).to_csv(file, index=False)
        if name in ("tensors", "neurons") and len(rows) > limits.REPORT_TENSORS:
            with replacing(folder / f"{name}.parquet") as file:
                rows.to_parquet(file, index=False)


def safe_text(table: "pandas.DataFrame") -> "pandas.DataFrame":
    """Return a copy with `safe` applied to each text."""
    return table.map(lambda cell: safe(cell) if isinstance(cell, str) else cell)


def safe(text: str) -> str:
    """Make untrusted ``text`` harmless for terminals and spreadsheets; different texts stay different.

    As `terminal.printable`, with ``<U+`` in the text written as ``<U+003C>U+``, so that codes are unambiguous, and an apostrophe before a
    text that begins like a formula or with an apostrophe.
    """
    shown = printable(text.replace("<U+", "<U+003C>U+"))
    return f"'{shown}" if shown.startswith(_LEADS) else shown
