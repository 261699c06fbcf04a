"""Stores labels of how models were trained, with evidence, and results of public checkpoints: a dataset, and a cache of it."""

import os
from pathlib import Path

from components.library.consensus import Consensus
from components.library.evidence import EVIDENCE, model_id
from components.library.items import PRECISIONS, Identity, Label, ResultRow
from components.library.library import Counts, Library, LibraryState, ModelRow, Saved

__all__ = [
    "EVIDENCE", "PRECISIONS", "Consensus", "Counts", "Identity", "Label", "Library", "LibraryState", "ModelRow", "ResultRow", "Saved",
    "model_id", "open_library",
]  # fmt: skip


def open_library(background: bool = True) -> Library:
    """Open the library that the environment configures: MANTISSA_DATA, MANTISSA_DATASET, and the token MANTISSA_TOKEN or HF_TOKEN.

    background: read and publish in a thread. Raises LibraryUnavailable, InvalidRequest.
    """
    token = (os.environ.get("MANTISSA_TOKEN") or os.environ.get("HF_TOKEN") or "").strip() or None
    dataset = os.environ.get("MANTISSA_DATASET", "").strip()
    ephemeral = bool(os.environ.get("SPACE_ID")) and not os.path.ismount("/data")
    return Library(_folder(), dataset, token, ephemeral=ephemeral, background=background)


def _folder() -> Path:
    """Return MANTISSA_DATA; else /data on a Space with a mounted disk; else the user's data folder."""
    if named := os.environ.get("MANTISSA_DATA"):
        return Path(named).expanduser()
    if os.environ.get("SPACE_ID") and os.path.ismount("/data"):
        return Path("/data/mantissa")
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "mantissa"
