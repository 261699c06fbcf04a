"""The candidates that a model card names."""

import re
from typing import Any

from analyzers.checkpoints import Checkpoint, read_range
from analyzers.errors import MantissaError

_CARD = "README.md"
_BYTES = 1 << 20
_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")


def base_models(checkpoint: Checkpoint, most: int) -> list[str]:
    """The ids under ``base_model`` in the metadata of the model card, at most ``most``; none where there is no card that can be read."""
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
    named = _metadata(header[1]).get("base_model") if header else None
    listed = named if isinstance(named, list) else [named]
    return list(dict.fromkeys(each for each in listed if isinstance(each, str) and _ID.fullmatch(each)))[:most]


def _metadata(text: str) -> dict[str, Any]:
    import yaml  # local import: only where a card is read

    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
