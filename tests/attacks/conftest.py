"""The app of the attacks: a process of its own, and a local Hub that may be slow."""

from collections.abc import Iterator

import pytest

from tests.browser.conftest import serve
from tests.hub import LocalHub


@pytest.fixture(scope="module")
def hub() -> Iterator[LocalHub]:
    """A Hub on the loopback."""
    with LocalHub() as local:
        yield local


@pytest.fixture(scope="module")
def app(hub: LocalHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an app that reads from ``hub``."""
    with serve(tmp_path_factory.mktemp("app"), hub.url) as url:
        yield url
