"""Detects folders of a user's project that have the names of Mantissa's packages."""

import sys
from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def check_packages() -> None:
    """Raise ImportError, with advice, if a folder of the project would be imported in place of ``analyzers`` or ``components``.

    ``python -m mantissa`` puts the current folder first in ``sys.path``, so Mantissa's own folder is inserted before it.
    """
    if any(sys.orig_argv[i : i + 2] == ["-m", "mantissa"] for i in range(1, len(sys.orig_argv))):
        sys.path.insert(0, str(_ROOT))
    for name in ("analyzers", "components"):
        spec = find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin is not None else _ROOT / name / "__init__.py"
        if origin.parent != _ROOT / name:
            other = origin.parent if origin.name == "__init__.py" else origin
            raise ImportError(
                f"{other} would be imported in place of Mantissa's own package {name}. Rename it, or start Python in another folder or "
                "with the option -P, which leaves the current folder out."
            )
