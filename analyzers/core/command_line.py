"""Options, progress and outputs shared by the commands of all analyzers.

A package in `analyzers.ANALYZERS` has a module ``command`` with ``add_options(parser)`` and ``run(options)``, which returns the exit status
or raises MantissaError. The entry point (`analyzers.__main__`) provides the function ``write_html`` of another layer through the options.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

from pydantic import ValidationError

from analyzers.core.atomic_files import try_to_write
from analyzers.core.errors import InvalidRequest
from analyzers.core.options import describe, is_list, is_subject, offered, option_of, parse
from analyzers.core.pasted_text import on_hub
from analyzers.core.progress_bar import drawn
from analyzers.core.report import Report
from analyzers.core.request import PASTED, Request, request_error
from analyzers.core.terminal import fitted, joined, printable, printable_json, terminal_width

RequestT = TypeVar("RequestT", bound=Request)
SAMPLING = ("mode", "budget", "include", "exclude", "seed")
"""Fields that a scan shares with `base.WeightsRequest`."""


class Parser(argparse.ArgumentParser):
    """Parser that reports an error on one line, and keeps the lines of a command's examples."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def describe(self, question: str, *examples: tuple[str, str]) -> None:
        """Set the question that a command answers, and the examples below its options: pairs of arguments and explanation."""
        self.description = question
        self.epilog = "\n".join(["examples:", *(f"  {self.prog} {arguments}\n      {does}" for arguments, does in examples)])

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and the message on one line."""
        self.exit(2, f"{self.prog}: {printable(' '.join(message.split())[:300])} (see --help)\n")


def add_fields(parser: Parser, request: type[Request], *names: str, **changed: dict[str, Any]) -> None:
    """Add an argument or option for each field offered on the command line, or for ``names``: ``--max-length`` for ``max_length``.

    changed: settings of argparse by field. An option that is not given is None, and keeps the request's default.
    """
    for name in names or offered(request, "command"):
        option, flag = option_of(request, name), name.replace("_", "-")
        more = f"; {option.more}" if option.more else ""
        settings: dict[str, Any] = {"help": described(request, name) + more} | _value(request, name)
        if name == "mode":
            how = parser.add_mutually_exclusive_group()
            how.add_argument("--quick", dest=name, action="store_const", const="quick", help="read a seeded sample (the default)")
            how.add_argument("--exact", dest=name, action="store_const", const="exact", help="read everything")
        elif is_subject(request, name):
            many = {"nargs": "+" if request.model_fields[name].is_required() else "*"} if option.one else {}
            parser.add_argument(name, **settings | {"metavar": (option.one or name).upper()} | many | changed.get(name, {}))
        elif request.model_fields[name].default is True:
            parser.add_argument(f"--no-{flag}", dest=name, action="store_const", const=False, help=option.off or f"not: {settings['help']}")
        else:
            parser.add_argument(f"--{flag}", *filter(None, [option.alias]), **settings | changed.get(name, {}))


def _value(request: type[Request], name: str) -> dict[str, Any]:
    """Return the settings with which argparse reads a field's value; a tuple is read as text, a switch takes no value."""
    kind, metavar = request.model_fields[name].annotation, option_of(request, name).metavar
    if metavar:
        return {"metavar": metavar}
    if kind is bool:
        return {"action": "store_const", "const": True}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if get_origin(kind) is tuple:
        return {"metavar": "A,B,..."}
    if {int, float} & {kind, *get_args(kind)}:
        return {"type": lambda text: parse(request, name, text, _flag(name)), "metavar": "N" if int in (kind, *get_args(kind)) else "X"}
    return {"metavar": name.rsplit("_", 1)[-1].upper()}


def described(request: type[Request], name: str) -> str:
    """Write `options.describe` in the style of argparse: lower case, no full stop."""
    text = describe(request, name)
    return text[:1].lower() + text[1:].removesuffix(".")


def given_options(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return those options among ``names`` that are given."""
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}


def request_of(kind: type[RequestT], options: argparse.Namespace, **fields: Any) -> RequestT:
    """Build the request from these fields and the options that are given. Raises InvalidRequest."""
    given = given_options(options, kind.model_fields) | fields
    for name in (name for name in given if PASTED in kind.model_fields[name].metadata):
        given[name] = on_hub(given[name]) if isinstance(given[name], str) else tuple(map(on_hub, given[name]))
    listed = {
        name: parse(kind, name, value, _flag(name)) for name, value in given.items() if isinstance(value, str) and is_list(kind, name)
    }
    try:
        return kind(**given | listed)
    except ValidationError as error:
        raise request_error(error, lambda name: name if is_subject(kind, name) else _flag(name)) from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def add_outputs(parser: Parser) -> None:
    """Add ``--json``, ``--full``, ``--csv`` and ``--html``."""
    parser.add_argument("--json", action="store_true", help="print the report as JSON (a list for several)")
    parser.add_argument("--full", action="store_true", help="print every table and note, not only the answer")
    parser.add_argument("--csv", metavar="DIR", help="write every table as CSV into this folder")
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page with tables and plots")


def check_outputs(options: argparse.Namespace) -> None:
    """Make the folder of ``--csv``, and refuse outputs that cannot be written, before any work is done. Raises InvalidRequest."""
    for option, path, below in (("--csv", options.csv, "summary.csv"), ("--html", options.html, "")):
        try:
            if below and path is not None:
                Path(path).mkdir(parents=True, exist_ok=True)
            if path is not None:
                try_to_write(Path(path) / below)
        except OSError as error:  # for example a name that is too long, or a folder without permission
            raise InvalidRequest(f"{option} cannot write to {path[:200]}: {error.strerror or 'the system refuses it'}.") from None


def with_progress(items: Iterator[Any], name: str) -> Iterator[Any]:
    """Yield ``items``, showing their progress on a terminal."""
    if not sys.stderr.isatty():
        with closing(items):  # type: ignore[type-var]
            yield from items
        return
    from tqdm import tqdm

    yield from drawn(items, name, tqdm, file=sys.stderr)


def write(
    options: argparse.Namespace,
    reports: Sequence[Report],
    several: bool,
    text: Callable[[], list[str]] | None = None,
) -> None:
    """Write the requested files, print the JSON or else ``text()``, by default the report's lines or a row per report.

    several: print a JSON list, even for one report.
    Raises InvalidRequest.
    """
    try:
        if options.csv is not None:
            from analyzers.core.tables import write_csv

            write_csv(reports, Path(options.csv))
        if options.html is not None:
            options.write_html(reports, Path(options.html))
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise InvalidRequest(f"Cannot write the output: {error.strerror or 'the disk refused'}{where}.") from None
    if options.json:
        each = [report.model_dump_json(indent=2) for report in reports]
        print_json("[" + ",\n".join(each) + "]" if several else each[0], "The answer")
    else:
        if text is not None:
            answer = text()
        elif several and not options.full:
            answer = reports[0].compared(reports)
        else:
            answer = [line for report in reports for line in report.lines(options.full)]
        print_lines(answer, "The answer")


def write_one(options: argparse.Namespace, analysis: Iterator[Any], subject: str) -> int:
    """Run an ``analysis`` of ``subject``, showing progress, and `write` its report. Returns the exit status 0; raises as `write` does."""
    check_outputs(options)
    (report,) = (item for item in with_progress(analysis, subject) if isinstance(item, Report))
    write(options, [report], False)
    return 0


def print_lines(lines: Iterable[str], subject: str) -> None:
    """Print `terminal.printable` lines to standard output, fitted to a terminal. Raises InvalidRequest as `print_text` does."""
    if sys.stdout is not None and sys.stdout.isatty():
        lines = [part for line in lines for part in fitted(printable(line), int(terminal_width()))]
    print_text(joined(lines), subject)


def print_json(text: str, subject: str) -> None:
    """Print `terminal.printable_json`, in ASCII if standard output cannot encode it. Raises InvalidRequest as `print_text` does."""
    if sys.stdout is not None and not _encodes(text):
        text = json.dumps(json.loads(text), indent=2)
    print_text(printable_json(text), subject)


def print_text(text: str, subject: str) -> None:
    """Print text that is trusted or already escaped. Raises InvalidRequest, naming ``subject``, if it cannot be written."""
    if sys.stdout is None:  # The parent process has closed it.
        raise InvalidRequest(f"{subject} cannot be written: standard output is closed.")
    if not _encodes(text):
        text = text.encode(sys.stdout.encoding, "backslashreplace").decode(sys.stdout.encoding)
    try:
        print(text, flush=True)  # noqa: T201
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Otherwise the flush at exit would fail again.
        raise InvalidRequest(f"{subject} cannot be written to standard output: {error.strerror or 'the system refuses it'}.") from None


def _encodes(text: str) -> bool:
    """Tell whether standard output can encode ``text``."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")  # a StringIO has none
    except UnicodeEncodeError:
        return False
    return True
