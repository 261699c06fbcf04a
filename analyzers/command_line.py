"""What the commands of every analyzer have in common: options, progress, outputs.

A package in `analyzers.ANALYZERS` has a module ``command`` with ``add_options(parser)`` and ``run(options)``, which
returns the exit status or raises MantissaError.
"""

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

from analyzers import limits
from analyzers.base import Progress, Report
from analyzers.errors import InvalidRequest
from analyzers.formatting import parse_bytes
from analyzers.terminal import printable


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"{self.prog}: {printable(' '.join(message.split())[:300])} (see --help)\n")


def add_reading(parser: argparse.ArgumentParser) -> None:
    """The options of `base.WeightsRequest`: how much is read, and of which tensors."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--exact", action="store_true", help="read everything instead of a sample")
    how.add_argument("--budget", metavar="SIZE", help=f"bytes of weights to sample (default {limits.DEFAULT_BUDGET_BYTES // 10**6}MB)")
    parser.add_argument("--include", metavar="RE", help="only tensors whose name this regular expression is found in")
    parser.add_argument("--exclude", metavar="RE", help="no tensors whose name this regular expression is found in")
    parser.add_argument("--subfolder", metavar="FOLDER", help="only the weights in this folder of the repository")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to count (default: the CPU)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default 0)")


def reading(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_reading` added, as fields of a `base.WeightsRequest`. Raises InvalidRequest."""
    asked: dict[str, Any] = {"mode": "exact"} if options.exact else {}
    if options.budget is not None:
        asked["budget"] = parse_bytes(options.budget)
    return asked | {name: getattr(options, name) for name in ("include", "exclude", "subfolder", "seed", "device")}


def add_outputs(parser: argparse.ArgumentParser, tensors: bool = False) -> None:
    """``--json``, ``--csv``, ``--html`` and ``--contribute``; tensors: also ``--tensors``, for commands that pass `write` their table."""
    parser.add_argument("--json", action="store_true", help="print the report as JSON (a list for several)")
    parser.add_argument("--csv", metavar="DIR", help="write every table as CSV into this folder")
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page with tables and plots")
    if tensors:
        parser.add_argument("--tensors", action="store_true", help="also print one line per tensor (JSON and CSV have them anyway)")
    contributing = "open a pull request with the result on the dataset MANTISSA_DATASET, with your own token; public checkpoints only"
    parser.add_argument("--contribute", action="store_true", help=contributing)


def check_outputs(options: argparse.Namespace) -> None:
    """Refuse output paths that cannot be used, or written to, before any work is done. Raises InvalidRequest."""
    if options.contribute and not _dataset():
        raise InvalidRequest("--contribute needs the dataset to contribute to: set MANTISSA_DATASET to its id on the Hub, org/name.")
    for option, path, check in (("--csv", options.csv, _check_folder), ("--html", options.html, _check_file)):
        try:
            if path is not None:
                check(path)
        except OSError as error:  # a name too long, a folder that may not be entered or written to
            reason = error.strerror or "the system refuses it"
            raise InvalidRequest(f"{option} cannot write to {path[:200]}: {reason}.") from None


def _check_folder(path: str) -> None:
    folder = Path(path).resolve()
    if not path:
        raise InvalidRequest("--csv is empty: name the folder to write to.")
    if folder.exists() and not folder.is_dir():
        raise InvalidRequest(f"--csv needs a folder; {path} is a file.")
    _write_in(next(place for place in (folder, *folder.parents) if place.exists()))


def _check_file(path: str) -> None:
    file = Path(path).resolve()
    if file.is_dir() or not file.parent.is_dir():
        raise InvalidRequest(f"--html needs a file in an existing folder, not {path[:200]}.")
    if not file.exists():
        _write_in(file.parent)
    elif not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _write_in(folder: Path) -> None:
    """Raise OSError where no file can be made in ``folder``; that it may be is not enough, as in /proc."""
    from tempfile import TemporaryFile

    with TemporaryFile(dir=folder):
        pass


def with_progress(items: Iterator[Any], name: str) -> Iterator[Any]:
    """Pass items on, drawing progress on a terminal."""
    with closing(items):  # type: ignore[type-var]
        if not sys.stderr.isatty():
            yield from items
            return
        from tqdm import tqdm

        with tqdm(unit="B", unit_scale=True, desc=printable(name[:40]), leave=False, file=sys.stderr) as bar:
            for item in items:
                if isinstance(item, Progress):
                    bar.unit = "B" if item.unit == "bytes" else f" {item.unit}"
                    bar.total = item.total or None
                    bar.update(item.done - bar.n)
                yield item


def write(
    options: argparse.Namespace,
    reports: Sequence[Report],
    several: bool,
    text: Callable[[], str],
    tensors: Callable[[Any], list[str]] | None = None,
) -> None:
    """Write the requested outputs, print the JSON or else ``text()``, and contribute.

    several: print a JSON list, even of one report. tensors: the lines of one report's table of tensors, for ``--tensors``.
    Raises InvalidRequest; contributing also AccessDenied, CheckpointNotFound and the HubError family.
    """
    try:
        if options.csv is not None:
            from analyzers.tables import write_csv

            write_csv(reports, Path(options.csv))
        if options.html is not None:
            from components.results.export import write_html

            write_html(reports, Path(options.html))
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise InvalidRequest(f"Cannot write the output: {error.strerror or 'the disk refused'}{where}.") from None
    if options.json:
        each = [report.model_dump_json(indent=2) for report in reports]
        answer = "[" + ",\n".join(each) + "]" if several else each[0]
    else:
        answer = text()
        if tensors is not None and options.tensors:
            answer = "\n".join([answer, *(line for report in reports for line in _tensor_table(report, several, tensors))])
    if sys.stdout is None:  # closed by who started this
        raise InvalidRequest("The answer cannot be written: standard output is closed.")
    try:
        print(_in_encoding(answer, sys.stdout.encoding, options.json), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit does not complain
        raise InvalidRequest(f"The answer cannot be written to standard output: {error.strerror or 'the system refuses it'}.") from None
    if options.contribute:
        from components.site.archive import contribute

        print(f"contributed: {printable(contribute(reports, _dataset()))}", file=sys.stderr)


def _tensor_table(report: Report, several: bool, tensors: Callable[[Any], list[str]]) -> list[str]:
    """The table after an empty line; named after its model where there are several."""
    return ["", *([printable(" -> ".join(report.subject().values()))] if several else []), *tensors(report)]


def _in_encoding(answer: str, encoding: str, as_json: bool) -> str:
    """``answer`` as standard output can take it, which may know fewer characters: others as escapes, in JSON as JSON writes them."""
    try:
        answer.encode(encoding)
    except UnicodeEncodeError:
        if as_json:
            return json.dumps(json.loads(answer), indent=2)
        return answer.encode(encoding, "backslashreplace").decode(encoding)
    return answer


def _dataset() -> str:
    return os.environ.get("MANTISSA_DATASET", "").strip()
