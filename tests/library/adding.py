"""Adds labels until it is killed: ``python -m tests.library.adding FOLDER FIRST LAST`` prints a line for each acknowledged one.

Several threads add at once, as visitors do. Each label of a model is added by a login of its own.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from analyzers.core import limits
from components.library import Identity, Library
from tests.library import DATASET, LINK, TOKEN


def main() -> None:
    """Add the labels with the numbers from FIRST to LAST."""
    limits.PUBLISH_WAIT_SECONDS = 1
    library = Library(Path(sys.argv[1]), DATASET, TOKEN)
    print("ready", flush=True)

    def add(number: int) -> None:
        saved = library.add_label(f"org/name{number // 4}", "bf16", f"{LINK}/{number}", Identity.login(f"user{number % 100}"))
        os.write(1, f"{number} {saved.item.id} {saved.where}\n".encode())  # at once, since print writes the end of the line apart

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(add, range(int(sys.argv[2]), int(sys.argv[3]))))


if __name__ == "__main__":
    main()
