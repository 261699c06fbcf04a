"""Thousands of checkpoints: a list in, Parquet out, over as many threads, processes and hosts as there are.

Runs dtype detection on each checkpoint of a list. A scan may be killed at any point and continued; its tables are the same bytes however
many processes made them.
"""

from analyzers.scan.folder import JOURNAL
from analyzers.scan.journal import Journal
from analyzers.scan.request import ScanRequest
from analyzers.scan.run import Summary, scan

__all__ = ["JOURNAL", "Journal", "ScanRequest", "Summary", "scan"]
