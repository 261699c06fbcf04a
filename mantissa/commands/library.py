"""Implements ``mantissa library import DIR``."""

import argparse
from pathlib import Path

from analyzers.core.command_line import Parser, print_lines
from analyzers.core.terminal import print_line


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "Add the results of a scan to the library in MANTISSA_DATA, and publish them to MANTISSA_DATASET if that is set. What is there "
        "already is not added twice; samples, local files, and models that are not public are skipped.",
        ("import scan", "the folder that mantissa scan wrote"),
        ("import /data/scan", "again after an interruption, to continue"),
    )
    parser.add_argument("action", choices=["import"], help="add the results of a scan")
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder of a scan, to import")


def run(options: argparse.Namespace) -> int:
    """Import the results; return 2 if one is invalid, else 0. Raises MantissaError."""
    from components.library import open_library
    from components.scan_import import import_scan

    try:
        with open_library(background=False) as library:
            counts = import_scan(library, options.folder, lambda sentence: print_line(f"error: {sentence}"))
            print_lines([", ".join(f"{count:,} {outcome}" for outcome, count in counts.items()) + "."], "The summary")
            library.publish()
            if dataset := library.state().dataset:
                print_line(f"published: {dataset} is up to date")
    except KeyboardInterrupt as error:
        error.args = ("what was imported is kept; run the same command again to continue",)
        raise
    return 2 if counts["refused"] else 0
