"""The command ``mantissa``: the command line of `analyzers.__main__`, and ``mantissa app``, which starts the pages."""

import os
import sys
from importlib import import_module
from importlib.util import find_spec

import mantissa
from analyzers import __main__ as command_line
from analyzers.errors import MantissaError
from analyzers.extras import extras_explained


def main() -> int:
    """Run one command; returns the exit status, as `analyzers.__main__.main` does."""
    words = sys.argv[1:]
    if words == ["--version"]:
        print(f"mantissa {mantissa.__version__}")
        return 0
    if words[:1] == ["app"]:
        return _app(words[1:])
    return command_line.main(words, program="mantissa", more="mantissa app starts the pages on this machine; it needs mantissa[app].")


def _app(words: list[str]) -> int:
    """``mantissa app [--port N]``: serve the pages on this machine until interrupted."""
    from analyzers.command_line import Parser

    parser = Parser(prog="mantissa app", description="Start the pages on this machine.")
    parser.add_argument("--port", type=int, metavar="N", help="the port to serve on (default 7860)")
    port = parser.parse_args(words).port
    if port is not None:
        os.environ["PORT"] = str(port)
    try:
        with extras_explained():
            # A wheel puts app.py into this package.
            app = import_module("mantissa.app") if find_spec("mantissa.app") else import_module("app")
            app.main()
    except MantissaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
