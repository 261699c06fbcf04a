"""A Hub whose dataset a server may write, and libraries that publish to it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from components.library import Library
from tests.hub import LocalHub
from tests.library import DATASET, TOKEN


@pytest.fixture
def server(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's account, and waits that a test can bear."""
    hub.user(TOKEN, "server", writes=[DATASET])
    monkeypatch.setattr("components.library.publisher._FIRST_WAIT", 0.001)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Library]]:
    """Opens libraries in folders by name, and closes them all."""
    libraries: list[Library] = []

    def open_one(name: str, **options: Any) -> Library:
        libraries.append(Library.open(tmp_path / name, **{"dataset": DATASET, "token": TOKEN} | options))
        return libraries[-1]

    yield open_one
    for library in libraries:
        library.close()
