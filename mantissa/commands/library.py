"""Implements ``mantissa library import DIR`` and ``mantissa library restore``."""

import argparse
from pathlib import Path

from analyzers.core.command_line import Parser, print_lines
from analyzers.core.errors import InvalidRequest
from analyzers.core.formatting import plural
from analyzers.core.terminal import print_line


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "Add the results of a scan to the library in MANTISSA_DATA, and publish them to MANTISSA_DATASET if that is set. What is there "
        "already is not added twice; samples, local files, and models that are not public are skipped. Or restore a damaged or lost "
        "library, while the app is stopped: from its newest backup, and from the rows that can still be reached in its file.",
        ("import scan", "the folder that mantissa scan wrote"),
        ("import /data/scan", "again after an interruption, to continue"),
        ("restore", "the library in MANTISSA_DATA"),
    )
    parser.add_argument("action", choices=["import", "restore"], help="add the results of a scan, or restore the library")
    parser.add_argument("folder", metavar="DIR", type=Path, nargs="?", help="the folder of a scan, to import")


def run(options: argparse.Namespace) -> int:
    """Import the results or restore the library; return 2 if a result is invalid, else 0. Raises MantissaError."""
    if (options.action == "import") == (options.folder is None):
        raise InvalidRequest("Give the folder of a scan: mantissa library import DIR. To restore the library, give none.")
    if options.action == "restore":
        return _restore()
    from components.library import open_library
    from components.site.scan_import import import_scan

    try:
        with open_library(background=False) as library:
            counts = import_scan(library, options.folder, lambda sentence: print_line(f"error: {sentence}"))
            print_lines([counts.text], "The summary")
            library.publish()
            state = library.state()
            if state.dataset:
                print_line(state.problem or f"published: {state.dataset} is up to date")
    except KeyboardInterrupt as error:
        error.args = ("what was imported is kept; run the same command again to continue",)
        raise
    return 2 if counts.refused else 0


def _restore() -> int:
    from components.library import restore_library

    made = restore_library()
    source = f"the backup of {made.backup}" if made.backup else "no backup: there is none"
    said = f"restored: {plural(made.labels, 'label')}, {plural(made.flags, 'flag')}, {plural(made.results, 'result')}, from {source}"
    print_lines([said], "The library is restored, but this sentence")
    if made.aside:
        some = "Some of the old file cannot be read: the rest of it was added" if made.read else "Nothing in the old file can be read"
        read = "All of the old file was read" if made.whole else some
        print_line(f"{read}. It is kept in {made.aside}, next to the new one.")
    return 0
