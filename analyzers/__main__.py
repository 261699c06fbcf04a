"""Runs the command line: ``python -m analyzers COMMAND ...``, one command for each analyzer and each of `TOOLS`.

Only the answer goes to standard output; progress and errors go to standard error. Exit status: 0 done; 1 `check` found an error; 2 bad
input, unusable checkpoint or a limit, with one line on standard error per model; 130 interrupted; 143 ended by SIGTERM.
"""

import atexit
import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from analyzers import ANALYZERS
from analyzers.core.errors import MantissaError
from analyzers.core.terminal import print_line

if TYPE_CHECKING:
    from analyzers.core.command_line import Parser

Tools = Mapping[str, tuple[str, Callable[[], Any]]]
# Commands that use an analyzer, or act on its result: name -> description and module, like an analyzer's ``command``.
TOOLS: Tools = {
    "shrink": ("store a checkpoint in fewer bytes without changing a value", lambda: import_module("analyzers.write.command").SHRINK),
    "merge": ("write a base with an adapter merged in, and what its dtype loses", lambda: import_module("analyzers.write.command").MERGE),
    "scan": ("dtype of thousands of models, as Parquet", lambda: import_module("analyzers.scan.command")),
}


def _write_html(reports: Any, path: Any) -> None:
    from components.result.render import write_html

    write_html(reports, path)


def build_parser(chosen: Collection[str], tools: Tools = TOOLS) -> "Parser":
    """Build the parser of all commands, with options for the ``chosen`` ones only: the others are not imported. tools: see `TOOLS`."""
    from analyzers.core.command_line import Parser  # not at the top: main catches an interrupt during these imports

    parser = Parser(prog="mantissa", description="What the numbers in a language model's weights say.")
    # Passed down as defaults: a command line may depend on components, analyzers may not.
    parser.set_defaults(write_html=_write_html, tools=tools)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    known = {each.name: (each.question, partial(each.module, "command")) for each in ANALYZERS.values()} | {**tools}
    for name, (question, module) in known.items():
        options = commands.add_parser(name, help=question)
        options.set_defaults(module=module)
        if name in chosen:
            module().add_options(options)
    return parser


def _is_text(word: str) -> bool:
    """Return whether the argument is valid UTF-8; anything else cannot be stored in a report."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Terminated(KeyboardInterrupt):
    """SIGTERM was received: the command ends as after Ctrl-C, and leaves nothing unfinished behind."""


@contextmanager
def _terminable() -> Iterator[None]:
    """Raise `_Terminated` in the block on SIGTERM, unless the calling program has its own handler."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def terminate(*_: object) -> None:
        raise _Terminated

    try:
        if ours:
            signal.signal(signal.SIGTERM, terminate)
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def main(arguments: Sequence[str] | None = None, tools: Tools = TOOLS) -> int:
    """Run one command; return the exit status. tools: see `TOOLS`, possibly extended by the calling program."""
    if sys.stderr is None:  # closed by the parent process: print would use standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for as long as the process lives
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's small products: its threads would spin next to those that read weights
    if arguments is None:  # of 100,000 tensors millions of objects live until the end: looking for garbage among them costs a fifth
        gc.set_threshold(100_000, 50, 100)
        atexit.register(gc.freeze)  # Python looks once more, at its end: a quarter of the time of a short command
    words = sys.argv[1:] if arguments is None else list(arguments)
    if odd := next((word for word in words if not _is_text(word)), None):
        print_line(f"error: {odd[:200]} contains bytes that are not UTF-8: rename the file.")
        return 2
    try:
        from analyzers.core.extras import extras_explained  # here, where an interrupt of the import is caught

        chosen = next((word for word in words if not word.startswith("-")), "")
        with _terminable(), extras_explained():
            options = build_parser({chosen}, tools).parse_args(words)
            status: int = options.module().run(options)
        return status
    except MantissaError as error:
        print_line(f"error: {error}")
        return 2
    except KeyboardInterrupt as error:
        ended, status = ("terminated", 128 + signal.SIGTERM) if isinstance(error, _Terminated) else ("interrupted", 128 + signal.SIGINT)
        print_line(": ".join([ended, *map(str, error.args)]))
        # Python would end itself by the signal where it interrupted text that a library executes, as namedtuple does, whatever the status.
        atexit.register(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGINT})
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the flush at exit would complain
        return 0
    except (MemoryError, ImportError, OSError) as error:
        if not (isinstance(error, MemoryError) or "failed to map" in str(error) or getattr(error, "errno", None) == errno.ENOMEM):
            raise
        print_line("error: There is not enough memory for this, or for the libraries that it needs.")
        return 2


if __name__ == "__main__":
    sys.exit(main())
