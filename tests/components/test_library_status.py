"""What is said of the library while its dataset is read, and where that, its file or its token fails."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from analyzers.core.errors import LibraryUnavailable
from components.api import library_endpoints as api
from components.library import Identity, Library
from components.server.front_layer import middleware
from components.server.routes import routes
from components.site import stored_results
from tests.cases import few
from tests.components.dtype_reports import report
from tests.components.test_routes import no_pages
from tests.hub import Fault, LocalHub
from tests.library import DATASET, TOKEN
from tests.library.test_operator_messages import wait_until

# The client uploads with an argument that its transport calls outdated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
ID = f"{1:064x}"


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(Starlette(routes=routes(), middleware=middleware(no_pages()))) as opened:
        yield opened


@pytest.fixture
def opened(hub: LocalHub, tmp_path: Path) -> Iterator[Callable[..., Library]]:
    """Opens the library that the app uses, in an empty folder: its dataset has a result and a label."""
    hub.user(TOKEN, "server", writes=[DATASET])
    hub.add("org/name", {"config.json": b"{}"})
    with Library.open(tmp_path / "writer", DATASET, token=TOKEN, background=False) as writer:
        writer.add_result(report("org/name", id=ID), public=True)
        writer.add_label("org/name", "bf16", "https://example.org/paper", Identity.login("ann"))
        writer.publish()
    libraries: list[Library] = []

    def open_one(dataset: str = DATASET, token: str | None = TOKEN) -> Library:
        libraries.append(Library.open(tmp_path / "one", dataset, token=token))
        stored_results.set_library(libraries[-1])
        return libraries[-1]

    yield open_one
    stored_results.set_library(None)
    for library in libraries:
        library.close()


def test_what_is_not_read_yet_is_not_called_missing(hub: LocalHub, opened: Callable[..., Library], client: TestClient) -> None:
    fault = hub.fault(Fault("/resolve/", times=None, delay=15))
    library = opened()
    for address in (f"/result/{ID}", f"/result/{ID}.json", "/org/org"):
        answer = client.get(address)
        assert (answer.status_code, answer.headers["Cache-Control"], answer.headers["Retry-After"]) == (503, "no-store", "10")
        assert "still being read" in answer.text and "never stored" not in answer.text
    with pytest.raises(Exception, match="still being read"):
        api.stored_result(ID)
    badge = client.get("/badge/org/name.svg")
    assert badge.headers["Cache-Control"] == "no-store" and "bf16" not in badge.text
    health = client.get("/healthz")
    assert (health.status_code, health.text.partition(":")[0]) == (200, "restoring")
    assert not library.state().restored
    fault.delay = 0
    assert library.wait_restored(60)
    wait_until(lambda: library.state().problem == "")
    answer = client.get(f"/result/{ID}.json")
    assert answer.status_code == 200, (answer.text, library.state(), library.counts())
    assert answer.json()["id"] == ID
    assert client.get(f"/result/{ID}").status_code == 200
    assert client.get(f"/result/{'0' * 64}").status_code == client.get(f"/result/{'0' * 64}.json").status_code == 404
    badge = client.get("/badge/org/name.svg")
    assert badge.headers["Cache-Control"] == "public, max-age=300" and "bf16" in badge.text
    assert client.get("/healthz").text == "ok"


@pytest.mark.parametrize(
    ("options", "said"),
    few(
        [
            ({"token": "hf_" + "wrong" * 8}, "The Hub refuses to write the dataset org/library"),
            ({"token": None}, "set MANTISSA_TOKEN"),
            ({"dataset": "org/missing", "token": None}, "The dataset org/missing was not found on the Hub"),
        ],
        {2},
        ["wrong token", "no token", "missing dataset"],
    ),
)
def test_health_says_why_nothing_is_published(
    opened: Callable[..., Library], client: TestClient, options: dict[str, Any], said: str
) -> None:
    library = opened(**options)
    wait_until(lambda: library.state().problem != "")
    health = client.get("/healthz")
    assert health.status_code == 200 and health.text.startswith("degraded: ") and said in health.text


def test_a_deleted_file_of_the_library_is_said_by_every_address_that_needs_it(
    opened: Callable[..., Library], client: TestClient, tmp_path: Path
) -> None:
    library = opened("")
    (tmp_path / "one" / "library.sqlite3").unlink()
    for address in ("/healthz", "/version", "/badge/org/name.svg", f"/result/{ID}.json"):
        answer = client.get(address)
        assert answer.status_code == 503 and "deleted or replaced" in answer.text
    with pytest.raises(LibraryUnavailable):
        library.add_label("org/name", "bf16", "https://example.org/paper", Identity.login("ann"))
