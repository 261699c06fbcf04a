"""Fixtures of the attacks: an app in its own process, and a local Hub that may be slow."""

from collections.abc import Iterator

import psutil
import pytest

from tests.browser.conftest import serve
from tests.hub import LocalHub

# Seconds before the app gives up on readers and bodies, short enough for tests to wait.
READER, BODY = 3, 2
# Labels per hour from one address without a login.
LABELS = 2
# Starts an app with other values of constants.
PATCHED_APP = ("-m", "tests.patched", "app.py")


@pytest.fixture(scope="package")
def hub() -> Iterator[LocalHub]:
    """Start a Hub on loopback."""
    with LocalHub() as local:
        yield local


@pytest.fixture(scope="package")
def app(hub: LocalHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start an app that reads from ``hub``, waits READER and BODY seconds for readers and bodies, and accepts LABELS labels."""
    seconds = f"analyzers.limits.READER_SECONDS={READER} components.server.front_layer.BODY_SECONDS={BODY}"
    folder, labels = tmp_path_factory.mktemp("app"), str(LABELS)
    with serve(folder, hub.url, PATCHED_APP, PATCHED=seconds, MANTISSA_LABELS_PER_ADDRESS=labels) as url:
        yield url


def process_of(url: str) -> psutil.Process:
    """Return the process of the app at this address."""
    port = url.rpartition(":")[2]
    (found,) = (child for child in psutil.Process().children() if "app.py" in child.cmdline() and child.environ().get("PORT") == port)
    return found
