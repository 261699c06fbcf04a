"""Reads the list of a scan: a file of references, or standard input."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from analyzers.checkpoints import parse_reference, quoted
from analyzers.core import limits
from analyzers.core.errors import InvalidReference, InvalidRequest, LimitExceeded
from analyzers.core.pasted_text import on_hub
from analyzers.core.terminal import printable

SCAN_LIST_BYTES = 20_000_000  # The list of a scan is held in memory.
# Tokens, and passwords in addresses, which a line may contain by mistake and which must never be repeated.
_SECRET = re.compile(r"hf_[A-Za-z0-9]{8,}|(?<=//)[^/\s]*@")
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint of the list.

    line: line number in the file, counted from 1; asked: the reference as written, printable; key: identifies it among the outcomes (the
    absolute path of a local one); problem: why it is not a reference, None if it is.
    """

    line: int
    asked: str
    key: str
    problem: str | None = None


def read_list(source: str) -> list[Listed]:
    """Return the checkpoints of ``source``, a file or ``-``, each once, in order, including lines that are not a reference.

    Comments and blank lines are left out. Raises InvalidRequest for a source that cannot be read or is empty, and LimitExceeded.
    """
    data = _read(source)
    if data.count(b"\n") > limits.SCAN_CHECKPOINTS:
        raise LimitExceeded(f"The list has more than {limits.SCAN_CHECKPOINTS:,} lines: cut it into several.")
    lines: dict[str, int] = {}
    for number, line in enumerate(data.decode("utf-8-sig", errors="replace").split("\n"), start=1):
        text = line.strip()
        if not text.startswith(("./", "/")):  # a path may contain a number sign
            text = re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
        lines.setdefault(on_hub(text), number)
    listed = [_listed(number, text) for text, number in lines.items() if text]
    if not listed:
        raise InvalidRequest("The list names no checkpoint: write one reference per line.")
    return listed


def _read(source: str) -> bytes:
    try:
        if source == "-" and sys.stdin is not None:  # None if it was closed
            return _bounded(sys.stdin.buffer)
        with Path(source).open("rb") as file:
            return _bounded(file)
    except (OSError, ValueError):
        raise InvalidRequest(
            f"{quoted(source)} is not a list that can be read: give a file with one reference per line, or - for standard input."
        ) from None


def _bounded(file: BinaryIO) -> bytes:
    data = file.read(SCAN_LIST_BYTES + 1)
    if len(data) > SCAN_LIST_BYTES:
        raise LimitExceeded(f"The list has more than {SCAN_LIST_BYTES:,} bytes: cut it into several.")
    return data


def _listed(number: int, text: str) -> Listed:
    try:
        reference = parse_reference(text, local=True)
    except InvalidReference as error:
        return Listed(number, _shown(text), "", str(error))
    return Listed(number, text, os.path.abspath(text) if reference.kind == "local" else text)  # noqa: PTH100 - links are kept


def _shown(text: str) -> str:
    """Prepare a line that is not a reference for its row in the table: truncated, without control characters and secrets."""
    cut = _SECRET.sub("***", text)[:_SHOWN]
    return printable(cut) + ("..." if len(text) > _SHOWN else "")
