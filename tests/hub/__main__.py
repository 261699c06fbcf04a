"""Runs the local Hub as a program: `python -m tests.hub --llama org/large --delay 0.05` prints its URL and serves."""

import argparse
import sys
from collections.abc import Iterable, Sequence

from .architectures import llama, mixture
from .generated import LINEAGES
from .quantized import LAYOUTS
from .server import LocalHub
from .updates import UPDATES


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until standard input closes, so that the Hub never outlives the program that started it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hub", description="A local Hugging Face Hub. Ends when its standard input closes."
    )
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS", help="before each answer")
    parser.add_argument(
        "--llama", action="append", default=[], metavar="ID[=LINEAGE[+UPDATE]]", help="a virtual model of 80 layers, 141 GB"
    )
    parser.add_argument("--mixture", action="append", default=[], metavar="ID[=LINEAGE]", help="a virtual mixture of 90,619 tensors")
    options = parser.parse_args(arguments)
    with LocalHub(delay=options.delay) as hub:
        for text in options.llama:
            repo_id, _, kind = text.partition("=")
            lineage, _, update = kind.partition("+")
            lineage, update = _one_of(parser, lineage or "bf16", (*LINEAGES, *LAYOUTS)), _one_of(parser, update or "none", UPDATES)
            hub.add(repo_id, llama(lineage=lineage, update=update))
        for text in options.mixture:
            repo_id, _, lineage = text.partition("=")
            hub.add(repo_id, mixture(lineage=_one_of(parser, lineage or "bf16", LINEAGES)))
        print(hub.url, flush=True)
        sys.stdin.read()


def _one_of(parser: argparse.ArgumentParser, name: str, known: Iterable[str]) -> str:
    if name not in known:
        parser.error(f"unknown {name!r}; choose from {', '.join(known)}")
    return name


if __name__ == "__main__":
    main()
