"""Modules that the fork server imports once for all processes of analyses: the analyzers, torch, and compiled loops.

No import starts torch's threads, which a forked process would lack.
"""

import os
from contextlib import suppress
from pathlib import Path

from analyzers import ANALYZERS
from analyzers.checkpoints.hub import hub_repository as hub_repository
from analyzers.language_models import load as load
from analyzers.numerics.compilation import on_compiling
from analyzers.numerics.warm_up import warm_up
from components.running.analysis_process import COMPILING_FILE


def _tell() -> None:
    """Tell the process that waits for this one that loops are compiled."""
    if file := os.environ.get(COMPILING_FILE):
        with suppress(OSError):  # nobody waits any more
            Path(file).touch()


for analyzer in ANALYZERS.values():
    analyzer.load()
with on_compiling(_tell):
    warm_up()
