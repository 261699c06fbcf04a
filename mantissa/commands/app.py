"""Implements ``mantissa app [--port N]``."""

import argparse
import os
from importlib import import_module
from importlib.util import find_spec

from analyzers.core.command_line import Parser


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe("Serve the pages on this machine until interrupted.", ("", "on http://127.0.0.1:7860"), ("--port 8000", "elsewhere"))
    parser.add_argument("--port", type=int, metavar="N", help="the port to serve on (default 7860)")


def run(options: argparse.Namespace) -> int:
    """Serve the pages until interrupted; return 0."""
    if options.port is not None:
        os.environ["PORT"] = str(options.port)
    # A wheel contains app.py as a module of this package.
    app = import_module("mantissa.app") if find_spec("mantissa.app") else import_module("app")
    app.main()
    return 0
