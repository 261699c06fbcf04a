"""The list of a scan: a file of references, standard input, or what the Hub finds."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from analyzers import limits
from analyzers.checkpoints import parse_reference, quoted
from analyzers.errors import InvalidReference, InvalidRequest, LimitExceeded
from analyzers.scan.request import DEFAULT_LIMIT
from analyzers.terminal import printable

# What a line may hold by mistake and must not be written anywhere: tokens, and passwords in addresses.
_SECRET = re.compile(r"hf_[A-Za-z0-9]{8,}|(?<=//)[^/\s]*@")
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint of the list.

    line: its line in the file, from 1 on, None where the Hub listed it; asked: the reference as written, fit to be shown;
    key: what it is remembered by, for a local path the absolute one; problem: why it is no reference, None if it is one.
    """

    line: int | None
    asked: str
    key: str
    problem: str | None = None


def read_list(source: str, limit: int | None, find: Callable[[str, str, int], list[str]]) -> list[Listed]:
    """The checkpoints that ``source`` lists, each once, in its order; lines that are no reference are among them.

    find: asks the Hub for the models of a ("search" | "org", text, limit). Raises InvalidRequest for a source that
    cannot be read or lists nothing, LimitExceeded, and what ``find`` raises.
    """
    kind, colon, text = source.partition(":")
    if colon and kind in ("search", "org"):
        if not text.strip():
            raise InvalidRequest(f"{kind}: needs a text after the colon, for example search:llama or org:Qwen.")
        ids = find(kind, text.strip(), limit or DEFAULT_LIMIT)
        if not ids:
            raise InvalidRequest(f"The Hub has no models for {quoted(source)}.")
        return list(_distinct((None, name) for name in ids))
    lines = _lines(_read(source))
    listed = list(_distinct((number, line) for number, line in enumerate(lines, start=1)))
    if not listed:
        raise InvalidRequest("The list names no checkpoint: write one reference per line.")
    return listed[:limit]


def _read(source: str) -> bytes:
    try:
        if source == "-" and sys.stdin is not None:  # None where it was closed
            return _bounded(sys.stdin.buffer)
        with Path(source).open("rb") as file:
            return _bounded(file)
    except (OSError, ValueError):
        raise InvalidRequest(
            f"{quoted(source)} is no list that can be read: give a file with one reference per line, - for standard input, "
            "search:TEXT or org:NAME."
        ) from None


def _bounded(file: BinaryIO) -> bytes:
    data = file.read(limits.SCAN_LIST_BYTES + 1)
    if len(data) > limits.SCAN_LIST_BYTES:
        raise LimitExceeded(f"The list has more than {limits.SCAN_LIST_BYTES:,} bytes (MANTISSA_SCAN_LIST_BYTES): cut it into several.")
    return data


def _lines(data: bytes) -> list[str]:
    if data.count(b"\n") > limits.SCAN_CHECKPOINTS:
        raise LimitExceeded(f"The list has more than {limits.SCAN_CHECKPOINTS:,} lines (MANTISSA_SCAN_CHECKPOINTS): cut it into several.")
    return data.decode("utf-8-sig", errors="replace").split("\n")


def _distinct(lines: Iterator[tuple[int | None, str]]) -> Iterator[Listed]:
    """Comments and blank lines left out, and what is listed already."""
    seen = set[str]()
    for number, line in lines:
        text = line.strip()
        if not text.startswith(("./", "/")):  # a path may hold a number sign
            text = re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
        if text and text not in seen:
            seen.add(text)
            yield _listed(number, text)


def _listed(number: int | None, text: str) -> Listed:
    try:
        reference = parse_reference(text, local=True)
    except InvalidReference as error:
        return Listed(number, _shown(text), "", str(error))
    return Listed(number, text, os.path.abspath(text) if reference.kind == "local" else text)  # noqa: PTH100 - links are kept


def _shown(text: str) -> str:
    """A line that is no reference, for the error's row: cut, without control characters and secrets."""
    cut = _SECRET.sub("***", text)[:_SHOWN]
    return printable(cut) + ("..." if len(text) > _SHOWN else "")
