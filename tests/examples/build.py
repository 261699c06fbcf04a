"""Store the finished examples of the pages again: ``python -m tests.examples.build [ANALYZER ...]``, by default of every page.

Needed after a change of what is computed; a test says so. Takes about two minutes.
"""

import gzip
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import components.analyses
from analyzers import ANALYZERS, with_pages

FOLDER = Path(components.analyses.__file__).parent


def example_request(name: str) -> Any:
    """Return the request of the first example of a page."""
    question = ANALYZERS[name].component("layout").QUESTION
    return ANALYZERS[name].request_model()(**next(iter(question.examples.values())))


def computed(name: str) -> Any:
    """Return the report of this request, computed now."""
    *_, report = ANALYZERS[name].load().analyze(example_request(name))
    return report


def main(names: Sequence[str]) -> None:
    """Store the examples of some analyzers."""
    for name in names or [analyzer.name for analyzer in with_pages()]:
        (FOLDER / name / "example.json.gz").write_bytes(gzip.compress(computed(name).model_dump_json().encode(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1:])
