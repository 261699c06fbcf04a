"""Fixtures of the attacks: an app in its own process, and a local Hub that may be slow."""

import resource
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.browser.conftest import serve
from tests.hub import LocalHub

# Seconds before the app gives up on readers, bodies and clients, short enough for tests to wait.
READER, BODY, CLIENT = 3, 2, 3
# Labels per hour from one address without a login.
LABELS = 2
# Bytes of a block from which on the system gets it back at once, so that the memory of an app is what it still holds.
MAPPED = 1_000_000
# Starts an app with other values of constants.
PATCHED_APP = ("-m", "tests.patched", "app.py")


@pytest.fixture(scope="package")
def hub() -> Iterator[LocalHub]:
    """Start a Hub on loopback."""
    with LocalHub() as local:
        yield local


@pytest.fixture(scope="package")
def app_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the app at ``app``."""
    return tmp_path_factory.mktemp("app")


@pytest.fixture(scope="package")
def app(hub: LocalHub, app_folder: Path) -> Iterator[str]:
    """Start an app that reads from ``hub``, may open 1,024 files, waits READER, BODY and CLIENT seconds, and accepts LABELS labels."""
    seconds = (
        f"analyzers.core.limits.READER_SECONDS={READER} components.server.front_layer.BODY_SECONDS={BODY} "
        f"components.server.connections.CLIENT_SECONDS={CLIENT}"
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        try:
            limits = {"MANTISSA_LABELS_PER_ADDRESS": str(LABELS), "MALLOC_MMAP_THRESHOLD_": str(MAPPED)}
            served = serve(app_folder, hub.url, PATCHED_APP, PATCHED=seconds, **limits)
            url = stack.enter_context(served)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
        yield url


def process_of(url: str) -> psutil.Process:
    """Return the process of the app at this address."""
    port = url.rpartition(":")[2]
    alive = (child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE)
    (found,) = (child for child in alive if "app.py" in child.cmdline() and child.environ().get("PORT") == port)
    return found
