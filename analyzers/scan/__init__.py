"""Scans thousands of checkpoints: a list in, Parquet out, on any number of threads, processes and hosts.

Runs dtype detection on each checkpoint of a list. A scan may be killed at any point and continued; its tables have the same bytes for any
number of processes.
"""

from analyzers.scan.journal import Journal
from analyzers.scan.request import ScanRequest
from analyzers.scan.run import Summary, scan
from analyzers.scan.scan_folder import JOURNAL

__all__ = ["JOURNAL", "Journal", "ScanRequest", "Summary", "scan"]
