"""Store the finished examples of the pages again: ``python -m tests.examples.build [ANALYZER ...]``, by default of every page that has one.

Needed after a change of what is computed; a test says so. Takes about a minute.
"""

import gzip
import sys
from collections.abc import Sequence
from typing import Any

from analyzers import ANALYZERS
from components.examples.finished import FOLDER, path


def example_request(name: str) -> Any:
    """The request of the first example button of a page."""
    page = ANALYZERS[name].component("page").PAGE
    return page.form.request(next(iter(page.examples.values())))


def computed(name: str) -> Any:
    """The report of this request, computed now."""
    *_, report = ANALYZERS[name].load().analyze(example_request(name))
    return report


def main(names: Sequence[str]) -> None:
    for name in names or sorted(file.name.partition(".")[0] for file in FOLDER.iterdir()):
        path(name).write_bytes(gzip.compress(computed(name).model_dump_json().encode(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1:])
