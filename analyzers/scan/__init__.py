"""Scans thousands of checkpoints: a list in, Parquet out, on any number of threads, processes and hosts.

Runs dtype detection on each checkpoint of a list. A scan may be killed at any point and continued; its tables have the same bytes for any
number of processes.
"""
