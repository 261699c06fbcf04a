"""The command line: ``python -m analyzers COMMAND ...``, one command for each analyzer and ``scan``.

Standard output holds the answer and nothing else; progress and errors go to standard error. Exit status: 0 done;
2 bad input, unusable checkpoint or a limit, with one line on standard error per model; 130 interrupted.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from analyzers import ANALYZERS
from analyzers.errors import MantissaError
from analyzers.terminal import printable

if TYPE_CHECKING:
    from analyzers.command_line import Parser

_SCAN = "scan", "dtype of thousands of models, as Parquet"


def _parser(chosen: str | None, program: str, more: str | None) -> "Parser":
    """The parser of all commands, with the options of the ``chosen`` one: the others need not be loaded."""
    from analyzers.command_line import Parser  # here, where main catches an interrupt of what it imports

    parser = Parser(prog=program, description="What the numbers in a language model's weights say.", epilog=more)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, question in (*((each.name, each.question) for each in ANALYZERS.values()), _SCAN):
        options = commands.add_parser(name, help=question)
        if name == chosen:
            _module(name).add_options(options)
    return parser


def _module(command: str) -> Any:
    return ANALYZERS[command].command() if command in ANALYZERS else import_module("analyzers.scan.command")


def _is_text(word: str) -> bool:
    """Whether the bytes that were typed are text: others could stand in no report."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def main(arguments: Sequence[str] | None = None, program: str = "python -m analyzers", more: str | None = None) -> int:
    """Run one command; returns the exit status. program: the name it was called by; more: the last line of its help."""
    if sys.stderr is None:  # closed by who started this: print would take standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for as long as the process lives
    words = sys.argv[1:] if arguments is None else list(arguments)
    if odd := next((word for word in words if not _is_text(word)), None):
        print(f"error: {printable(odd[:200])} holds bytes that are no UTF-8: rename the file, or write it otherwise.", file=sys.stderr)
        return 2
    try:
        from analyzers.extras import extras_explained  # here, where an interrupt of the import is caught

        chosen = next((word for word in words if not word.startswith("-")), None)
        with extras_explained():
            options = _parser(chosen, program, more).parse_args(words)
            status: int = _module(options.command).run(options)
        return status
    except MantissaError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit does not complain
        return 0


if __name__ == "__main__":
    sys.exit(main())
