"""Runs the app or the command line with other values of constants.

``PATCHED="analyzers.core.limits.READER_SECONDS=3" python -m tests.patched app.py``, or ``... analyzers dtype MODEL``. An analysis of the
page runs in a process that imports the main module again, so it has the same values.
"""

import os
import sys
from importlib import import_module

for assignment in os.environ["PATCHED"].split():
    path, value = assignment.split("=")
    module, _, name = path.rpartition(".")
    if __name__ == "__main__" or module.startswith("analyzers"):  # an analysis needs no modules of the server, which are slow to import
        patched = import_module(module)
        assert hasattr(patched, name), path
        setattr(patched, name, int(value))

if __name__ == "__main__":
    program = sys.argv.pop(1)
    if program == "app.py":
        import_module("app").main()
    else:
        sys.exit(import_module(f"{program}.__main__").main())
