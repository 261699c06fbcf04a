"""The lines of the table that the benchmarks print."""

from collections.abc import Iterable
from dataclasses import dataclass

HEADINGS = ("", "ours", "naive", "ratio", "target", "met")


@dataclass(frozen=True, slots=True)
class Result:
    """A line of the table. ``ratio``: naive over ours, if compared; ``target`` is "" and ``met`` None if there is no target."""

    name: str
    ours: str
    naive: str = ""
    ratio: float | None = None
    target: str = ""
    met: bool | None = None

    def cells(self) -> tuple[str, ...]:
        """Return the cells as text, in the order of HEADINGS."""
        met = "" if self.met is None else "yes" if self.met else "NO"
        return self.name, self.ours, self.naive, "" if self.ratio is None else f"{self.ratio:.2f}", self.target, met


def table(results: Iterable[Result]) -> str:
    """Format all results in columns."""
    rows = [HEADINGS, *(result.cells() for result in results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
