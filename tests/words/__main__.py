"""Writes the snapshots again: ``python -m tests.words [NAME ...]``."""

import sys

from tests.words import SNAPSHOTS, converted, snapshot

for name in sys.argv[1:] or converted():
    (SNAPSHOTS / f"{name}.txt").write_text(snapshot(name))
