"""The command line: ``python -m analyzers COMMAND ...``, one command for each analyzer and ``scan``.

Standard output holds the answer and nothing else; progress and errors go to standard error. Exit status: 0 done;
2 bad input, unusable checkpoint or a limit, with one line on standard error per model; 130 interrupted.
"""

# ruff: noqa: E402 - an interrupt is dealt with before anything else is imported, which takes a while
import gc
import os
import sys


def _leave(*_: object) -> None:
    """End at an interrupt, there being nothing to put in order. An exception would be lost in the callbacks that imports run."""
    if sys.stderr is not None:
        os.write(2, b"interrupted\n")
    os._exit(130)


try:
    import signal
except KeyboardInterrupt:
    _leave()

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, and stays so
    signal.signal(signal.SIGINT, _leave)

if __name__ == "__main__":
    gc.disable()  # what is imported stays: looking for garbage in it, again and again, takes a tenth of the time

import atexit
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from analyzers import ANALYZERS
from analyzers.errors import MantissaError
from analyzers.terminal import printable

if TYPE_CHECKING:
    from analyzers.command_line import Parser

_COMMANDS = ANALYZERS | {"scan": ("analyzers.scan", "dtype of thousands of models, as Parquet")}


def _parser(chosen: str | None) -> "Parser":
    """The parser of all commands, with the options of the ``chosen`` one: the others need not be loaded."""
    from analyzers.command_line import Parser  # here, where an interrupt of what it imports is dealt with

    parser = Parser(prog="python -m analyzers", description="What the numbers in a language model's weights say.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (package, help) in _COMMANDS.items():
        options = commands.add_parser(name, help=help)
        if name == chosen:
            _module(package).add_options(options)
    return parser


def _module(package: str) -> Any:
    return import_module(f"analyzers.{package.removeprefix('analyzers.')}.command")


def _not_lost(lost: Any) -> None:
    """Interrupt once more, a moment later, where the exception was lost in a callback or a finalizer, as those of imports."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        threading.Timer(0.01, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(lost)


def _is_text(word: str) -> bool:
    """Whether the bytes that were typed are text: others could stand in no report."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    if sys.stderr is None:  # closed by who started this: print would take standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for as long as the process lives
    words = sys.argv[1:] if arguments is None else list(arguments)
    if odd := next((word for word in words if not _is_text(word)), None):
        print(f"error: {printable(odd[:200])} holds bytes that are no UTF-8: rename the file, or write it otherwise.", file=sys.stderr)
        return 2
    try:
        options = _parser(next((word for word in words if not word.startswith("-")), None)).parse_args(words)
        command = _module(_COMMANDS[options.command][0])
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        if signal.getsignal(signal.SIGINT) is _leave:
            sys.unraisablehook = _not_lost
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status: int = command.run(options)
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


def _end(status: int) -> NoReturn:
    """End the process without taking it apart object by object: of torch's and LLVM's there are so many that it takes 0.4 s.

    What was registered to be done at the end is done.
    """
    if sys.getprofile() is not None or sys.gettrace() is not None:  # whoever measures has more to do
        sys.exit(status)
    atexit._run_exitfuncs()
    for output in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed; what a command prints it flushes itself, and says if that fails
            output.flush()
    os._exit(status)


if __name__ == "__main__":
    status = main()
    if status == 130:
        os._exit(130)  # Python ends by the signal itself where the interrupt came while text was executed, as in namedtuple
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said; what is left takes a moment, and an interrupt would hide the status
    _end(status)
