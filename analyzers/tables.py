"""Reports as pandas tables and CSV files: what every analyzer's tables have in common."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzers import limits
from analyzers.base import Data, Report
from analyzers.terminal import printable

if TYPE_CHECKING:
    import pandas

# A spreadsheet takes what begins so for a formula, or leaves the apostrophe out.
_LEADS = ("=", "+", "-", "@", "'")


def frame(rows: Sequence[Any], kind: type[Data]) -> "pandas.DataFrame":
    """One line per row, a column for each field of ``kind``, also where there are no rows."""
    import pandas

    return pandas.DataFrame([row.model_dump() for row in rows], columns=list(kind.model_fields))


def write_csv(reports: Sequence[Report], folder: Path) -> None:
    """Write every table of ``reports`` into ``folder``, one CSV each, with what each is about in the first columns.

    Tables that are empty for all are left out. ``tensors`` and ``neurons`` have every row, also where the report has not;
    beyond `limits.REPORT_TENSORS` rows they are written as Parquet too, which reads faster at that size.
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
        whole = pandas.concat(parts, ignore_index=True)
        safe_text(whole).to_csv(folder / f"{name}.csv", index=False)
        if name in ("tensors", "neurons") and len(whole) > limits.REPORT_TENSORS:
            whole.to_parquet(folder / f"{name}.parquet", index=False)


def safe_text(table: "pandas.DataFrame") -> "pandas.DataFrame":
    """A copy with each text `safe`."""
    return table.map(lambda cell: safe(cell) if isinstance(cell, str) else cell)


def safe(text: str) -> str:
    """``text`` as it does no harm in a terminal or a spreadsheet, for names are somebody else's text; different ones stay different.

    It is `terminal.printable`, where ``<U+`` was there before as ``<U+003C>U+``, so that each code can be told from the same
    in a name; and what begins as a formula does, or with an apostrophe, has an apostrophe before it.
    """
    shown = printable(text.replace("<U+", "<U+003C>U+"))
    return f"'{shown}" if shown.startswith(_LEADS) else shown
