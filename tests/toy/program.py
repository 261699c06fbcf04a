"""The app with the toy analyzer in its registry; with arguments its command line: ``python -m tests.toy.program [COMMAND ...]``."""

import sys

import app
from analyzers import ANALYZERS
from analyzers.__main__ import main as command
from tests.toy import ENTRY

ANALYZERS["toy"] = ENTRY
if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(command())
    app.main()  # this module is imported again by the process of every analysis, unlike a __main__.py
