"""Thousands of checkpoints: a list in, Parquet out, over as many threads, processes and hosts as there are.

No analyzer of its own: it runs dtype detection on each checkpoint of a list. A scan may be killed at any point and goes on
where it was; its tables are the same bytes however many processes made them.
"""

from analyzers.scan.request import ScanRequest
from analyzers.scan.run import Summary, scan

__all__ = ["ScanRequest", "Summary", "scan"]
