"""No address takes long to answer once it was answered: processor time of the app for each, over HTTP."""

import urllib.request
from typing import NamedTuple
from urllib.error import HTTPError

import psutil
import pytest

from analyzers import ANALYZERS
from analyzers.language_models.samples import sample_folder
from tests.attacks.conftest import process_of
from tests.attacks.http_calls import inspect, result
from tests.hub import LocalHub

TIMES = 20
# Seconds of the app's processor time for an answer. 20 ms are promised; the rest is for slower machines.
MOST = 0.04
ROUNDS = 3
MODEL = "org/addresses"
PAGES = ("", *(each.address for each in ANALYZERS.values() if each.address and not each.shown_by), "library")
# {} is replaced by another number in each request, and ID by the id of a stored result.
ADDRESSES = [
    *(f"GET /{page}" for page in PAGES),
    *(f"HEAD /{page}" for page in PAGES),
    *(f"GET /?{query}" for query in ("deep_link={}", "page=library", "__theme=dark", "view=api", "{}=x", f"model={MODEL}", "x=&" * 3000)),
    *(f"GET /config{query}" for query in ("", "/", "?x={}", "?page=", "?page={}", "?deep_link={}")),
    *(f"GET /gradio_api/info{query}" for query in ("", "?x={}", "?page=", "?all_endpoints={}")),
    *(f"GET /gradio_api/{name}" for name in ("openapi.json?x={}", "theme.css", "queue/status", "mcp/schema", "deep_link?session_hash=x")),
    *(f"GET /{name}" for name in ("openapi.json", "theme.css", "manifest.json", "favicon.ico", "gradio.js", "version", "healthz")),
    *(f"GET /{name}" for name in ("methods", "methods/dtype", "nothing/{}", f"badge/{MODEL}.svg?show=checked,fp16,{{}}")),
    *(f"GET /result/ID{ending}" for ending in ("?{}=x", "?embed=1", "?embed=small", ".json", ".png", ".zip", ".html?{}")),
    *(f"GET /{name}" for name in ("card/ID.png", "card/dtype.png", "card/org/org.png", "org/org?sort={}")),
    *(f"GET /library/{name}" for name in ("labels.csv", "results.jsonl", "models.parquet", "training.csv")),
]


class App(NamedTuple):
    """An app with a stored result."""

    url: str
    process: psutil.Process
    result: str


@pytest.fixture(scope="module")
def served(app: str, hub: LocalHub) -> App:
    """Return an app with a result of one model."""
    hub.add(MODEL, {path.name: path for path in sample_folder("tiny-bf16-as-fp32").iterdir()})
    report = result(app, "dtype", inspect(MODEL))
    return App(app, process_of(app), report["id"])


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_answer_takes_at_most_20_ms(served: App, address: str) -> None:
    method, _, path = address.partition(" ")

    def answered(number: int) -> int:
        return _status(served.url + path.replace("ID", served.result).replace("{}", f"a{number}"), method)

    def spent() -> float:
        before = served.process.cpu_times()
        assert {answered(number) for number in range(TIMES)} == {first}
        after = served.process.cpu_times()
        return float(after.user + after.system - before.user - before.system) / TIMES

    first = answered(-1)
    assert first == (404 if path.startswith("/nothing") else 200)
    means = [spent()]
    while min(means) > MOST and len(means) < ROUNDS:  # the app may still end what an earlier test began
        means.append(spent())
    assert min(means) < MOST, means


def _status(url: str, method: str) -> int:
    headers = {"Accept": "text/html", "Accept-Encoding": "gzip"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method), timeout=120) as answer:
            answer.read()
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code
