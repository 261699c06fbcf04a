"""The app of the attacks: a process of its own, and a local Hub that may be slow."""

from collections.abc import Iterator

import psutil
import pytest

from tests.browser.conftest import serve
from tests.hub import LocalHub

# In seconds, for waits that tests sit through.
READER, BODY = 3, 2
# From one address without a login, in an hour.
LABELS = 2
# The program of an app with other constants.
PATCHED_APP = ("-m", "tests.patched", "app.py")


@pytest.fixture(scope="package")
def hub() -> Iterator[LocalHub]:
    """A Hub on the loopback."""
    with LocalHub() as local:
        yield local


@pytest.fixture(scope="package")
def app(hub: LocalHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an app that reads from ``hub`` and waits READER and BODY seconds for readers and bodies, and takes LABELS labels."""
    seconds = f"analyzers.limits.READER_SECONDS={READER} components.server.front_layer.BODY_SECONDS={BODY}"
    folder, labels = tmp_path_factory.mktemp("app"), str(LABELS)
    with serve(folder, hub.url, PATCHED_APP, PATCHED=seconds, MANTISSA_LABELS_PER_ADDRESS=labels) as url:
        yield url


def process_of(url: str) -> psutil.Process:
    """The app at this address."""
    port = url.rpartition(":")[2]
    (found,) = (child for child in psutil.Process().children() if "app.py" in child.cmdline() and child.environ().get("PORT") == port)
    return found
