"""Reads the candidates that a model card names."""

import re

from analyzers.checkpoints import Checkpoint, read_range
from analyzers.errors import MantissaError
from analyzers.pasted_text import split

_CARD = "README.md"
_BYTES = 1 << 20
_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)


def base_models(checkpoint: Checkpoint, most: int) -> list[str]:
    """Return the ids under ``base_model`` in the model card's metadata, at most ``most``; none if no card can be read."""
    repository = checkpoint.repository
    if not 0 < repository.files.get(_CARD, 0) <= _BYTES:
        return []
    try:
        file = repository.open(_CARD)
        try:
            text = read_range(file, 0, file.size).decode(errors="replace")
        finally:
            file.close()
    except MantissaError:
        return []
    header = re.match(r"\s*---\s*\n(.*?)\n---\s*(\n|$)", text, re.DOTALL)
    named = re.search(r"^base_model:(.*(?:\n[ \t]*-.*)*)", header[1], re.MULTILINE) if header else None
    ids = [text.partition("@")[0] for text in split(named[1])] if named else []
    return list(dict.fromkeys(filter(_ID.fullmatch, ids)))[:most]
