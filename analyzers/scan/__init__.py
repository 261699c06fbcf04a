"""Scans thousands of checkpoints: a list in, Parquet out, on any number of threads, processes and hosts.

Runs dtype detection on each checkpoint of a list. A scan may be killed at any point and continued; its tables have the same bytes for any
number of processes.
"""

from analyzers.scan.folder import JOURNAL
from analyzers.scan.journal import Journal
from analyzers.scan.request import ScanRequest
from analyzers.scan.run import Summary, scan

__all__ = ["JOURNAL", "Journal", "ScanRequest", "Summary", "scan"]
