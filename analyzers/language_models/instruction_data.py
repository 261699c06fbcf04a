"""Reads instruction data: the built-in text, a file on the command line, or a dataset on the Hub at one commit.

A row has ``instruction``, optionally ``input``, and ``output``; or ``prompt`` and ``completion``; or ``messages``: the first question and
its answer are used, with the system message before the question.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from analyzers.checkpoints import Access, LocalRepository, Repository, parse_reference, quoted
from analyzers.core import limits
from analyzers.core.errors import CheckpointError, HubError, InvalidData, InvalidReference, LimitExceeded
from analyzers.core.pasted_text import is_address
from analyzers.language_models.builtin_text import Pair, builtin_pairs
from analyzers.language_models.data_rows import ENDINGS, RowSelection, chosen_rows, read_rows

_COLUMNS = ("instruction", "input", "output", "prompt", "completion", "messages")
_NEEDED = "needed are instruction and output (and optionally input), prompt and completion, or messages"
_MANY_FILES = 1_000


@dataclass(frozen=True, slots=True)
class Instructions:
    """Pairs and their source. source: "builtin", a file name or a dataset id; commit: the dataset's, or the SHA-256 of a file's pairs.

    rows: row index of each pair, counted from 0 across all files read. total: number of rows to choose from, None if the first rows were
    taken without counting the rest. limited: whether they were chosen from a part of the data.
    """

    pairs: tuple[Pair, ...]
    source: str
    commit: str | None
    rows: tuple[int, ...] = ()
    total: int | None = None
    limited: bool = False


def instruction_pairs(
    source: str,
    access: Access,
    limit: int,
    choices: str = "builtin, a FILE.jsonl (command line)",
    *,
    choice: RowSelection = "first",
    seed: int = 0,
) -> Instructions:
    """Read ``limit`` pairs from ``source``.

    source: "builtin"; a file (.jsonl, .json, .parquet), if local files may be read; or org/dataset or org/dataset@revision on the Hub,
    whose training split is read as far as needed.

    choice: the first pairs, or a random choice by ``seed`` (`data_rows`), in row order. choices: the alternatives to a dataset that the
    error for an invalid ``source`` suggests.
    Raises InvalidData for an invalid source, for a source without rows, and, naming the line, for a row that is not a pair; LimitExceeded;
    the HubError family, CheckpointNotFound, AccessDenied.
    """
    if source == "builtin":
        every = builtin_pairs()
        rows = chosen_rows(len(every), limit, choice, seed)
        return Instructions(tuple(every[row] for row in rows), source, None, tuple(rows), len(every))
    if source.endswith(ENDINGS):
        if not access.local:
            raise InvalidData(f"{quoted(source)} is a file, which works on the command line only: paste its pairs, or name a dataset.")
        local: Repository = LocalRepository(source)
        found = _read(local, limit, choice, seed)
        content = json.dumps([(pair.instruction, pair.input, pair.output) for pair in found.pairs], separators=(",", ":"))
        return replace(found, source=source.rpartition("/")[2], commit=hashlib.sha256(content.encode()).hexdigest())
    with closing(_dataset(source, access, choices)) as repository:
        return _read(repository, limit, choice, seed)


def _dataset(source: str, access: Access, choices: str) -> Repository:
    try:
        reference = parse_reference(source.removeprefix("datasets/"), local=False, kind="dataset")  # reports use the form with datasets/
    except InvalidReference as error:
        if is_address(source):
            raise InvalidData(str(error)) from None
        reference = None
    local = ""
    if access.local and os.path.exists(source):  # noqa: PTH110 - Path.exists raises if a folder may not be entered
        local = f" {quoted(source, 200)} exists on this machine and is not a file of pairs, which ends in {', '.join(ENDINGS)}."
    if reference is None or reference.kind != "hub":
        raise InvalidData(f"{quoted(source)} is not a data source: give {choices} or the id of a dataset, org/name.{local}")
    # Local import: the Hub's client takes 0.2 s to import, and built-in pairs and local files do not need it.
    from analyzers.checkpoints.hub.hub_repository import open_hub

    try:
        return open_hub(reference.name, reference.revision, access, kind="datasets")
    except (CheckpointError, HubError) as error:
        raise type(error)(f"{error}{local}") from None


def _read(repository: Repository, limit: int, choice: RowSelection, seed: int) -> Instructions:
    """Read the pairs of a repository."""
    found = read_rows(repository, _files(repository.files), _COLUMNS, limit, choice, seed)
    pairs = tuple(pair_of(value, where) for where, value in found.values)
    if not pairs:
        raise InvalidData(f"There are no rows in {quoted(repository.ref)}; {_NEEDED}.")
    return Instructions(pairs, repository.ref, repository.commit, found.rows, found.total, found.limited)


def _files(files: Mapping[str, int]) -> list[str]:
    """List the data files: those of one folder and one format, from the training split if there is one."""
    for ending in ENDINGS:
        found = sorted(path for path in files if path.endswith(ending) and not path.rpartition("/")[2].startswith(("dataset_info", ".")))
        found = [path for path in found if "train" in path] or found
        folder = found[0].rpartition("/")[0] if found else ""
        if found:
            return [path for path in found if path.rpartition("/")[0] == folder][:_MANY_FILES]
    raise InvalidData("The dataset has no file of JSON lines, JSON or Parquet.")


def pair_of(row: Any, where: str) -> Pair:
    """Convert a row to a pair; where: location of the row for error messages. Raises InvalidData, LimitExceeded."""
    if not isinstance(row, dict):
        raise InvalidData(f"{_capital(where)} is not a JSON object; {_NEEDED}.")
    row = {name: value for name, value in row.items() if value is not None}  # in a table, every row has every column
    if "messages" in row:
        instruction, given, output = _first_exchange(row["messages"], where)
    elif "instruction" in row and "output" in row:
        instruction, given, output = row["instruction"], row.get("input", ""), row["output"]
    elif "prompt" in row and "completion" in row:
        instruction, given, output = row["prompt"], "", row["completion"]
    else:
        raise InvalidData(f"{_capital(where)} has {', '.join(quoted(str(name)) for name in list(row)[:8]) or 'nothing'}; {_NEEDED}.")
    return Pair(_text(instruction, "question", where), _text(given, "input", where, empty=True), _text(output, "answer", where), where)


def _first_exchange(messages: Any, where: str) -> tuple[Any, str, Any]:
    said: dict[str, list[Any]] = {"system": [], "user": [], "assistant": []}
    for message in messages if isinstance(messages, list) else ():
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if not isinstance(role, str) or role not in said or not isinstance(content, str):
            break
        said[role].append(content)
        if role == "assistant":
            break
    if not said["user"] or not said["assistant"]:
        raise InvalidData(f"{_capital(where)} has messages that do not begin with a user's question and its answer.")
    return "\n\n".join([*said["system"], *said["user"]]), "", said["assistant"][0]


def _text(value: Any, name: str, where: str, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value.strip() or empty):
        raise InvalidData(f"{_capital(where)} has no text for its {name}.")
    if len(value) > limits.PAIR_CHARACTERS:
        most = f"{limits.PAIR_CHARACTERS:,}"
        raise LimitExceeded(f"{_capital(where)} has {len(value):,} characters for its {name}, more than {most}.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidData(f"{_capital(where)} has half a character (a lone surrogate) in its {name}.") from None
    return value


def _capital(where: str) -> str:
    return where[:1].upper() + where[1:]
