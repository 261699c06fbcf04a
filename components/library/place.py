"""Where the library lies, and whether it survives a restart there."""

import os
from pathlib import Path


def data_folder() -> Path:
    """Where the library is: MANTISSA_DATA; else /data of a Space with a disk that stays; else a folder of the user's."""
    if named := os.environ.get("MANTISSA_DATA"):
        return Path(named).expanduser()
    if os.environ.get("SPACE_ID") and os.path.ismount("/data"):
        return Path("/data/mantissa")
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "mantissa"


def is_ephemeral() -> bool:
    """Whether the disk is lost with a restart: on a Space, unless /data is a mount. MANTISSA_EPHEMERAL=0 or 1 says otherwise."""
    if said := os.environ.get("MANTISSA_EPHEMERAL"):
        return said != "0"
    return bool(os.environ.get("SPACE_ID")) and not os.path.ismount("/data")
