"""Runs the local Hub as a program: `python -m tests.hub --llama org/large --delay 0.05` prints its URL and serves."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from .architectures import llama, mixture
from .generated import LINEAGES
from .repositories import Contents
from .server import LocalHub
from .updates import UPDATES


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until standard input closes, so that the Hub never outlives the program that started it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hub", description="A local Hugging Face Hub. Ends when its standard input closes."
    )
    parser.add_argument("--port", type=int, default=0, help="0 (the default): any free port")
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS", help="before each answer")
    parser.add_argument("--rate", type=float, metavar="BYTES_PER_SECOND", help="over all connections together")
    parser.add_argument("--cdn", action="store_true", help="redirect weights to signed URLs at a second origin")
    parser.add_argument("--folder", action="append", default=[], metavar="ID=PATH", help="a repository with the files of a folder")
    parser.add_argument(
        "--llama", action="append", default=[], metavar="ID[=LINEAGE[+UPDATE]]", help="a virtual model of 80 layers, 141 GB"
    )
    parser.add_argument("--mixture", action="append", default=[], metavar="ID[=LINEAGE]", help="a virtual mixture of 90,619 tensors")
    options = parser.parse_args(arguments)
    with LocalHub(port=options.port, delay=options.delay, rate=options.rate, cdn=options.cdn) as hub:
        for text in options.folder:
            repo_id, _, folder = text.partition("=")
            hub.add(repo_id, _files(Path(folder)))
        for text in options.llama:
            repo_id, _, kind = text.partition("=")
            lineage, _, update = kind.partition("+")
            hub.add(repo_id, llama(lineage=_one_of(parser, lineage or "bf16", LINEAGES), update=_one_of(parser, update or "none", UPDATES)))
        for text in options.mixture:
            repo_id, _, lineage = text.partition("=")
            hub.add(repo_id, mixture(lineage=_one_of(parser, lineage or "bf16", LINEAGES)))
        print(hub.url, flush=True)
        sys.stdin.read()


def _one_of(parser: argparse.ArgumentParser, name: str, known: Iterable[str]) -> str:
    if name not in known:
        parser.error(f"unknown {name!r}; choose from {', '.join(known)}")
    return name


def _files(folder: Path) -> dict[str, bytes | Path | Contents]:
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


if __name__ == "__main__":
    main()
