"""The command ``mantissa``: the command line of `analyzers.__main__`, ``mantissa app`` (the pages) and ``mantissa library``."""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import mantissa
from analyzers import __main__ as command_line
from analyzers.errors import MantissaError
from analyzers.extras import extras_explained
from analyzers.terminal import printable


def main() -> int:
    """Run one command; returns the exit status, as `analyzers.__main__.main` does."""
    words = sys.argv[1:]
    if words == ["--version"]:
        print(f"mantissa {mantissa.__version__}")
        return 0
    command = {"app": _app, "library": _library}.get(next(iter(words), ""))
    if command is None:
        more = (
            "mantissa app starts the pages on this machine; it needs mantissa[app]. "
            "mantissa library import DIR adds the results of a scan to their library."
        )
        return command_line.main(words, program="mantissa", more=more)
    try:
        with extras_explained():
            return command(words[1:])
    except MantissaError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2


def _app(words: list[str]) -> int:
    """``mantissa app [--port N]``: serve the pages on this machine until interrupted."""
    from analyzers.command_line import Parser

    parser = Parser(prog="mantissa app", description="Start the pages on this machine.")
    parser.add_argument("--port", type=int, metavar="N", help="the port to serve on (default 7860)")
    port = parser.parse_args(words).port
    if port is not None:
        os.environ["PORT"] = str(port)
    # A wheel puts app.py into this package.
    app = import_module("mantissa.app") if find_spec("mantissa.app") else import_module("app")
    app.main()
    return 0


def _library(words: list[str]) -> int:
    """``mantissa library import DIR``: add the results of a scan to the library; 2 if one is invalid, 130 where it was interrupted."""
    from analyzers.command_line import Parser, print_answer

    parser = Parser(prog="mantissa library", description="The library of results that the pages show.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    importing = commands.add_parser("import", help="add the results of a scan")
    importing.describe(
        "Add the results of a scan to the library in MANTISSA_DATA, and publish them to MANTISSA_DATASET if that is set. What is there "
        "already is not added twice; samples, local files, and models that are not public are skipped.",
        ("scan", "the folder that mantissa scan wrote"),
    )
    importing.add_argument("folder", metavar="DIR", type=Path, help="the folder of a scan")
    folder = parser.parse_args(words).folder

    from components.library import open_library
    from components.site.scans import import_scan

    try:
        with open_library(background=False) as library:
            counts = import_scan(library, folder, lambda sentence: print(f"error: {printable(sentence)}", file=sys.stderr))
            print_answer(counts.text, False, "The summary")
            library.publish()
            state = library.state()
            if state.dataset:
                print(printable(state.problem) or f"published: {state.dataset} is up to date", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted: what was imported is kept; run the same command again to continue", file=sys.stderr)
        return 130
    return 2 if counts.refused else 0


if __name__ == "__main__":
    sys.exit(main())
