"""Fixtures for the tests of the product."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from components.library import Library
from components.site import stored_results
from tests.tokenizer_processes import kept_processes as kept_processes


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    """Open a new library, which this process uses during the test."""
    with Library.open(tmp_path / "library") as opened:
        stored_results.set_library(opened)
        yield opened
        stored_results.set_library(None)
