"""The command line: ``python -m analyzers COMMAND ...``, one command for each analyzer and each of `TOOLS`.

Only the answer goes to standard output; progress and errors go to standard error. Exit status: 0 done; 1 `check` found an error; 2 bad
input, unusable checkpoint or a limit, with one line on standard error per model; 130 interrupted.
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

# Commands that use an analyzer, or act on what one finds: name -> what it does. Each has a module ``command``, as an analyzer does.
TOOLS = {
    "shrink": "store a checkpoint in fewer bytes without changing a value",
    "scan": "dtype of thousands of models, as Parquet",
}


def _write_html(reports: Any, path: Any) -> None:
    from components.results.export import write_html

    write_html(reports, path)


def _contribute(reports: Any, dataset: str) -> str:
    from components.site.archive import contribute

    return contribute(reports, dataset)


def _pull_request_on(model: str) -> Any:
    from components.library.pull_request import PullRequest

    return PullRequest(model)


def _parser(chosen: str | None, program: str, more: str | None) -> "Parser":
    """The parser of all commands, with options for the ``chosen`` one only: the others are not imported."""
    from analyzers.command_line import Parser, wrapped  # not at the top: main catches an interrupt during these imports

    parser = Parser(prog=program, description="What the numbers in a language model's weights say.", epilog=more and wrapped(more, 0))
    # a command line reaches up, as app.py does; analyzers do not
    parser.set_defaults(write_html=_write_html, contribute_to=_contribute, pull_request_on=_pull_request_on)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, question in (*((each.name, each.question) for each in ANALYZERS.values()), *TOOLS.items()):
        options = commands.add_parser(name, help=wrapped(question, 14))
        if name == chosen:
            _module(name).add_options(options)
    return parser


def _module(command: str) -> Any:
    return ANALYZERS[command].command() if command in ANALYZERS else import_module(f"analyzers.{command}.command")


def _is_text(word: str) -> bool:
    """Whether the argument is valid UTF-8; anything else cannot be stored in a report."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def main(arguments: Sequence[str] | None = None, program: str = "python -m analyzers", more: str | None = None) -> int:
    """Run one command; returns the exit status. program: the name it was called by; more: the last line of its help."""
    if sys.stderr is None:  # closed by the parent process: print would use standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for as long as the process lives
    words = sys.argv[1:] if arguments is None else list(arguments)
    if odd := next((word for word in words if not _is_text(word)), None):
        print(f"error: {printable(odd[:200])} contains bytes that are not UTF-8: rename the file.", file=sys.stderr)
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
