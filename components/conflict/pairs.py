"""Pairs typed or pasted into the page: JSON as in a file of instruction data, or columns as from a spreadsheet."""

import json
from collections.abc import Iterator
from typing import Any

from analyzers import limits
from analyzers.errors import InvalidData, LimitExceeded
from analyzers.language_models.data import pair_of

_CHARACTERS = limits.CONFLICT_SAMPLES * limits.PAIR_CHARACTERS


def pasted(text: str) -> tuple[dict[str, str], ...]:
    """The pairs in ``text``, each with instruction, input and output.

    A line is a JSON object with any of the fields that a file of instruction data may have, or an instruction and its answer with a tab
    between them (or instruction, input and answer). All of it may also be one JSON list. Raises InvalidData, naming the line, for what is
    none of these; LimitExceeded for too many pairs or too much text.
    """
    if len(text) > _CHARACTERS:
        raise LimitExceeded(
            f"{len(text):,} characters of pairs are more than {_CHARACTERS:,}, all samples together (MANTISSA_PAIR_CHARACTERS)."
        )
    found: list[dict[str, str]] = []
    for where, row in _rows(text):
        if len(found) == limits.CONFLICT_SAMPLES:
            raise LimitExceeded(
                f"There are more than {limits.CONFLICT_SAMPLES} pairs, the most that are compared (MANTISSA_CONFLICT_SAMPLES): paste fewer."
            )
        pair = pair_of(row, where)
        found.append({"instruction": pair.instruction, "input": pair.input, "output": pair.output})
    if not found:
        raise InvalidData("Paste at least 2 pairs: one per line, instruction and answer separated by a tab, or as JSON.")
    return tuple(found)


def lines(rows: Any) -> str:
    """Pairs as JSON, one per line, as `pasted` reads them."""
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)


def _rows(text: str) -> Iterator[tuple[str, Any]]:
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("["):
        yield from ((f"entry {number} of the pairs", row) for number, row in enumerate(_parsed(text, "the list of pairs"), start=1))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"line {number} of the pairs"
            yield where, _parsed(line, where) if line.lstrip().startswith("{") else _columns(line, where)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidData(f"{where[:1].upper()}{where[1:]} is not JSON: check its quotes, commas and braces.") from None


def _columns(line: str, where: str) -> dict[str, str]:
    cells = [cell.strip() for cell in line.rstrip("\r").split("\t")]
    if len(cells) not in (2, 3):
        tabs = "no tab" if len(cells) == 1 else f"{len(cells) - 1} tabs"
        raise InvalidData(
            f"{where[:1].upper()}{where[1:]} has {tabs}: write an instruction and its answer separated by a tab, or a JSON object."
        )
    return {"instruction": cells[0], "input": cells[1] if len(cells) == 3 else "", "output": cells[-1]}
