"""The folder of the library, and whether it survives a restart."""

import os
from pathlib import Path


def data_folder() -> Path:
    """The folder of the library: MANTISSA_DATA; else /data on a Space with a mounted disk; else the user's data folder."""
    if named := os.environ.get("MANTISSA_DATA"):
        return Path(named).expanduser()
    if os.environ.get("SPACE_ID") and os.path.ismount("/data"):
        return Path("/data/mantissa")
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "mantissa"


def is_ephemeral() -> bool:
    """Whether a restart erases the disk: on a Space, unless /data is a mount. MANTISSA_EPHEMERAL=0 or 1 overrides this."""
    if said := os.environ.get("MANTISSA_EPHEMERAL"):
        return said != "0"
    return bool(os.environ.get("SPACE_ID")) and not os.path.ismount("/data")
