"""The report as tables."""

import pandas

from tests.toy import ToyReport


def tables(report: ToyReport) -> dict[str, pandas.DataFrame]:
    """One table with one row."""
    return {"summary": pandas.DataFrame([{"model": report.checkpoint.ref, "tensors": report.tensors}])}
