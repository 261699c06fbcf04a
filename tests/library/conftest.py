"""Fixtures of a Hub with a dataset that a server may write, and of libraries that publish to it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from components.library import Library
from tests.hub import LocalHub
from tests.library import DATASET, TOKEN


@pytest.fixture
def server(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    """Set up the server's account, and waits short enough for tests."""
    hub.user(TOKEN, "server", writes=[DATASET])
    monkeypatch.setattr("components.library.publisher._FIRST_PAUSE", 0.01)
    return hub


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Library]]:
    """Yield a function that opens libraries in folders by name, and close them all at the end."""
    libraries: list[Library] = []

    def open_one(name: str, **options: Any) -> Library:
        libraries.append(Library(tmp_path / name, **{"dataset": DATASET, "token": TOKEN} | options))
        return libraries[-1]

    yield open_one
    for library in libraries:
        library.close()
