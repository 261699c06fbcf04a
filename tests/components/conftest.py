"""Fixtures for the tests of the product."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from components import store
from components.library import Library, open_library
from tests.hub import LocalHub


@pytest.fixture
def library(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """Open a new library, which this process uses during the test."""
    monkeypatch.setenv("MANTISSA_DATA", str(tmp_path / "library"))
    with open_library() as opened:
        store.set_library(opened)
        yield opened
        store.set_library(None)
