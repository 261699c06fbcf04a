"""Reads pairs of instruction and answer that somebody pastes, and writes them."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from analyzers.core import limits
from analyzers.core.errors import InvalidData, LimitExceeded
from analyzers.core.untrusted_json import InvalidJson, parse_json
from analyzers.language_models.instruction_data import pair_of

_CHARACTERS = limits.CONFLICT_SAMPLES * limits.PAIR_CHARACTERS


def parse_pairs(text: str) -> tuple[dict[str, str], ...]:
    """Parse the pairs in ``text``, each with instruction, input and output.

    A line is a JSON object with any of the fields that a file of instruction data may have, or an instruction and its answer separated by
    a tab (or instruction, input and answer). The text may also be one JSON list. Raises InvalidData, naming the line, for anything else;
    LimitExceeded for too many pairs or too much text.
    """
    if len(text) > _CHARACTERS:
        raise LimitExceeded(f"{len(text):,} characters of pairs are more than {_CHARACTERS:,}, all samples together.")
    pairs: list[dict[str, str]] = []
    for where, row in _rows(text):
        if len(pairs) == limits.CONFLICT_SAMPLES:
            raise LimitExceeded(f"There are more than {limits.CONFLICT_SAMPLES} pairs, the most that are compared: paste fewer.")
        pair = pair_of(row, where)
        pairs.append({"instruction": pair.instruction, "input": pair.input, "output": pair.output})
    if not pairs:
        raise InvalidData("Paste at least 2 pairs: one per line, instruction and answer separated by a tab, or as JSON.")
    return tuple(pairs)


def write_pairs(pairs: Iterable[Any]) -> str:
    """Write pairs as JSON, one per line, as `parse_pairs` reads them."""
    return "\n".join(json.dumps(pair.model_dump(exclude_defaults=True), ensure_ascii=False) for pair in pairs)


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
        return parse_json(text)
    except InvalidJson as error:
        raise InvalidData(f"{where[:1].upper()}{where[1:]} {error}: check its quotes, commas and braces.") from None


def _columns(line: str, where: str) -> dict[str, str]:
    cells = [cell.strip() for cell in line.rstrip("\r").split("\t")]
    if len(cells) not in (2, 3):
        tabs = "no tab" if len(cells) == 1 else f"{len(cells) - 1} tabs"
        raise InvalidData(
            f"{where[:1].upper()}{where[1:]} has {tabs}: write an instruction and its answer separated by a tab, or a JSON object."
        )
    return {"instruction": cells[0], "input": cells[1] if len(cells) == 3 else "", "output": cells[-1]}
