"""Reads which models a model card names as those that it was made from."""

import re

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.repository import read_range
from analyzers.core.errors import MantissaError
from analyzers.core.pasted_text import split

_CARD = "README.md"
_BYTES = 100_000  # of a card, from its start, where its metadata stands
_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)


def base_models(checkpoint: Checkpoint, most: int) -> list[str]:
    """Return the ids under ``base_model`` in the model card's metadata, at most ``most``; none if no card can be read."""
    repository = checkpoint.repository
    nbytes = min(repository.files.get(_CARD, 0), _BYTES)
    try:
        text = read_range(repository.open(_CARD), 0, nbytes).decode(errors="replace") if nbytes else ""
    except MantissaError:
        return []
    header = re.match(r"\s*---[^\S\n]*\n(.*?)\n---[^\S\n]*(\n|$)", text, re.DOTALL)
    named = re.search(r"^base_model:(.*(?:\n[ \t]*-.*)*)", header[1], re.MULTILINE) if header else None
    ids = [text.partition("@")[0] for text in split(named[1])] if named else []
    return list(dict.fromkeys(filter(_ID.fullmatch, ids)))[:most]
