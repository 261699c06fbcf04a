"""Stores contributed labels of how models were trained, with evidence, and results of public checkpoints."""

import os
from pathlib import Path

from components.library.backups import Restored, restore
from components.library.consensus import Consensus, LabelRow, Vote
from components.library.contribute import contribute
from components.library.export_files import FILES, KINDS
from components.library.item_checks import EVIDENCE, model_id
from components.library.library import Library
from components.library.library_status import Counts, LibraryState, Saved
from components.library.list_query import LAST_PAGE, Page, Query
from components.library.model_rows import ModelRow
from components.library.result_rows import ResultRow
from components.library.schema import DECISIONS, FLAG_REASONS, PRECISIONS, Flag, Identity, Label, Result

__all__ = [
    "DECISIONS", "EVIDENCE", "FILES", "FLAG_REASONS", "KINDS", "LAST_PAGE", "PRECISIONS", "Consensus", "Counts", "Flag", "Identity",
    "Label", "LabelRow", "Library", "LibraryState", "ModelRow", "Page", "Query", "Restored", "Result", "ResultRow", "Saved", "Vote",
    "contribute", "model_id", "open_library", "restore_library",
]  # fmt: skip


def open_library(background: bool = True) -> Library:
    """Open the library that the environment configures: MANTISSA_DATA, MANTISSA_DATASET, and the token MANTISSA_TOKEN or HF_TOKEN.

    background: restore and publish in a thread. Raises LibraryUnavailable, InvalidRequest.
    """
    token = (os.environ.get("MANTISSA_TOKEN") or os.environ.get("HF_TOKEN") or "").strip() or None
    dataset = os.environ.get("MANTISSA_DATASET", "").strip()
    own = _is_own() if background else None  # a command may run with other settings than the app
    return Library.open(_folder(), dataset, token=token, ephemeral=_is_ephemeral(), own=own, background=background)


def restore_library() -> Restored:
    """Restore the library that the environment configures (see `restore`), while no app runs. Raises LibraryUnavailable."""
    return restore(_folder())


def _folder() -> Path:
    """Return MANTISSA_DATA; else /data on a Space with a mounted disk; else the user's data folder."""
    if named := os.environ.get("MANTISSA_DATA"):
        return Path(named).expanduser()
    if os.environ.get("SPACE_ID") and os.path.ismount("/data"):
        return Path("/data/mantissa")
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "mantissa"


def _is_ephemeral() -> bool:
    """Return whether a restart erases the disk: on a Space, unless /data is a mount. MANTISSA_EPHEMERAL=0 or 1 overrides this."""
    if given := os.environ.get("MANTISSA_EPHEMERAL"):
        return given != "0"
    return bool(os.environ.get("SPACE_ID")) and not os.path.ismount("/data")


def _is_own() -> bool:
    """Return whether only this machine reaches the app: not on a Space, listening at loopback, and behind no proxy."""
    is_served = any(os.environ.get(name) for name in ("SPACE_ID", "FORWARDED_ALLOW_IPS", "GRADIO_ROOT_PATH"))
    return not is_served and os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1").strip("[]") in ("127.0.0.1", "localhost", "::1")
