"""The command line: ``python -m analyzers dtype MODEL ...`` and ``python -m analyzers scan LIST --out DIR``.

Standard output holds the answer and nothing else; progress and errors go to standard error. Exit status: 0 done;
2 bad input, unusable checkpoint or a limit, with one line on standard error per model; 130 interrupted.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from analyzers import limits
from analyzers.base import Progress, request_error
from analyzers.checkpoints import Access
from analyzers.errors import InvalidRequest, MantissaError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def parse_bytes(text: str) -> int:
    """``64MB``, ``1.5 GiB``, ``1000000`` -> bytes. Raises InvalidRequest."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", text, re.ASCII)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise InvalidRequest(f"The budget {text[:40]!r} is no size: write a number of bytes or, for example, 64MB.")
    return int(float(match[1]) * unit)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {_printable(' '.join(message.split())[:300])} (see --help)\n")


def _parser() -> _Parser:
    parser = _Parser(prog="python -m analyzers", description="What the numbers in a language model's weights say.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    dtype = commands.add_parser(
        "dtype",
        help="what formats the weights are stored in, have passed through, and fit into",
        description="Was this checkpoint trained in fp16, bf16 or fp32? What formats have its weights passed through? Will it fit fp16?",
    )
    dtype.add_argument("models", nargs="+", metavar="MODEL", help="org/name, org/name@revision, sample:NAME, ./folder or /file")
    how = dtype.add_mutually_exclusive_group()
    how.add_argument("--exact", action="store_true", help="read everything instead of a sample")
    how.add_argument("--budget", metavar="SIZE", help=f"bytes of weights to sample (default {limits.DEFAULT_BUDGET_BYTES // 10**6}MB)")
    dtype.add_argument("--include", metavar="RE", help="only tensors whose name this regular expression is found in")
    dtype.add_argument("--exclude", metavar="RE", help="no tensors whose name this regular expression is found in")
    dtype.add_argument("--subfolder", metavar="FOLDER", help="only the weights in this folder of the repository")
    dtype.add_argument("--json", action="store_true", help="print the report as JSON (a list for several models)")
    dtype.add_argument("--csv", metavar="DIR", help="write every table as CSV into this folder")
    dtype.add_argument("--html", metavar="FILE", help="write one self-contained page with tables and plots")
    dtype.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to count (default: the CPU)")
    dtype.add_argument("--seed", type=int, default=0, help="seed of the sample (default 0)")
    _add_scan(commands)
    return parser


def _add_scan(commands: "argparse._SubParsersAction[_Parser]") -> None:
    scan = commands.add_parser(
        "scan",
        help="the same of thousands of models, as Parquet",
        description="Run dtype on every model of a list and write two Parquet files. A scan that was ended goes on where it was.",
    )
    scan.add_argument("list", metavar="LIST", help="a file with one model per line, - for standard input, search:TEXT or org:NAME")
    scan.add_argument("--out", required=True, metavar="DIR", help="where to write; a scan that was ended is continued there")
    how = scan.add_mutually_exclusive_group()
    how.add_argument("--exact", action="store_true", help="read everything instead of a sample")
    how.add_argument("--budget", metavar="SIZE", help=f"bytes of weights to sample (default {limits.DEFAULT_BUDGET_BYTES // 10**6}MB)")
    scan.add_argument("--include", metavar="RE", help="only tensors whose name this regular expression is found in")
    scan.add_argument("--exclude", metavar="RE", help="no tensors whose name this regular expression is found in")
    scan.add_argument("--limit", type=int, metavar="N", help="only the first N of the list (default 200 for search: and org:)")
    scan.add_argument("--seed", type=int, default=0, help="seed of the samples (default 0)")
    scan.add_argument("--jobs", type=int, metavar="N", help="models one process works on at once (default 4, with --exact 1)")
    scan.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to count (default: the CPU)")
    scan.add_argument("--json", action="store_true", help="print the summary as JSON")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    if sys.stderr is None:  # closed by who started this: print would take standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for as long as the process lives
    options = _parser().parse_args(arguments)
    try:
        return _scan(options) if options.command == "scan" else _dtype(options)
    except MantissaError as error:
        print(f"error: {_printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit does not complain
        return 0


def _dtype(options: argparse.Namespace) -> int:
    from analyzers.dtype_detection import DtypeReport, DtypeRequest, analyze

    asked: dict[str, Any] = {"mode": "exact"} if options.exact else {}
    if options.budget is not None:
        asked["budget"] = parse_bytes(options.budget)
    asked |= {name: getattr(options, name) for name in ("include", "exclude", "subfolder", "seed", "device")}
    try:
        requests = [DtypeRequest(model=model, **asked) for model in options.models]
    except ValidationError as error:
        raise request_error(error) from None
    _check_outputs(options)
    reports: list[DtypeReport] = []
    failed = False
    for request in requests:
        try:
            for item in _with_progress(analyze(request, Access(token=True, local=True)), request.model):
                if isinstance(item, DtypeReport):
                    reports.append(item)
        except MantissaError as error:
            failed = True
            where = f"{_printable(request.model[:80])}: " if len(requests) > 1 else ""
            print(f"error: {where}{_printable(str(error))}", file=sys.stderr)
    if reports:
        _write(options, reports, several=len(requests) > 1)
    return 2 if failed else 0


def _scan(options: argparse.Namespace) -> int:
    from analyzers.scan.command import run_command

    return run_command(options, None if options.budget is None else parse_bytes(options.budget))


def _check_outputs(options: argparse.Namespace) -> None:
    """Refuse unusable output paths before any work is done."""
    try:
        if options.csv is not None and Path(options.csv).exists() and not Path(options.csv).is_dir():
            raise InvalidRequest(f"--csv needs a folder; {options.csv} is a file.")
        if options.html is not None and (Path(options.html).is_dir() or not Path(options.html).resolve().parent.is_dir()):
            raise InvalidRequest(f"--html needs a file in an existing folder, not {options.html}.")
    except OSError as error:  # a name too long, a folder that may not be entered
        raise InvalidRequest(f"The output path cannot be used: {error.strerror or 'the system refuses it'}.") from None


def _with_progress(items: Iterator[Any], name: str) -> Iterator[Any]:
    """Pass items on, drawing progress on a terminal."""
    with closing(items):  # type: ignore[type-var]
        if not sys.stderr.isatty():
            yield from items
            return
        from tqdm import tqdm

        with tqdm(unit="B", unit_scale=True, desc=_printable(name[:40]), leave=False, file=sys.stderr) as bar:
            for item in items:
                if isinstance(item, Progress):
                    bar.total = item.total or None
                    bar.update(item.done - bar.n)
                yield item


def _write(options: argparse.Namespace, reports: Sequence[Any], several: bool) -> None:
    from analyzers.dtype_detection import text

    try:
        if options.csv is not None:
            from analyzers.dtype_detection.tables import write_csv

            write_csv(reports, Path(options.csv))
        if options.html is not None:
            from components.export import write_html

            write_html(reports, Path(options.html))
    except OSError as error:
        raise InvalidRequest(f"Cannot write the output: {error.strerror or 'the disk refused'} ({error.filename}).") from None
    if options.json:
        each = [report.model_dump_json(indent=2) for report in reports]
        print("[" + ",\n".join(each) + "]" if several else each[0])
    else:
        print(text.several(reports) if several else text.one(reports[0]))
    sys.stdout.flush()


def _printable(message: str) -> str:
    """``message`` without control characters, which could rewrite a terminal."""
    return "".join(c if c.isprintable() else "?" for c in message)


if __name__ == "__main__":
    sys.exit(main())
