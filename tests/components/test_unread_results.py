"""Results that nobody reads do not stay in Gradio's memory for as long as the app runs."""

import asyncio
import threading
import time
from collections.abc import Iterator

import gradio as gr
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from components.running import queue_limits
from components.running.gradio_internals import Pages, idle_sessions, mounted
from components.server.front_layer import middleware

CALL = "/gradio_api/call/double"


class Doubler:
    """An app with an endpoint that waits until it is allowed to end, and a client of it."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.may_end.set()
        self.client = TestClient(asyncio.run(self._made()), "http://localhost")

    async def _made(self) -> FastAPI:
        """Return the app, made while an event loop runs, since elsewhere Gradio leaves one open."""
        with Pages() as self.pages:
            gr.api(self.double, api_name="double")  # type: ignore[attr-defined]
        queue_limits.limit_queue(self.pages)
        return mounted(self.pages, app_kwargs={"middleware": middleware(self.pages)})

    def double(self, number: float) -> float:
        """Return twice a number."""
        assert self.may_end.wait(60)
        return 2 * number

    def call(self, session: str | None = None) -> str:
        """Make a call, at which the app looks for unread results before it accepts the call. Returns its id."""
        answer = self.client.post(CALL, json={"data": [4], "session_hash": session})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["event_id"])

    def finish(self, session: str) -> None:
        """Wait until all calls of a session have ended."""
        end = time.monotonic() + 60
        while session not in idle_sessions(self.pages):
            assert time.monotonic() < end
            time.sleep(0.01)

    def read(self, event: str) -> tuple[int, str]:
        """Return the status and the text of the results of a call."""
        answer = self.client.get(f"{CALL}/{event}")
        return answer.status_code, answer.text


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Doubler]:
    """Yield an app that looks for unread results at every call."""
    monkeypatch.setattr(queue_limits, "KEPT_SECONDS", 0)
    monkeypatch.setenv("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000000")  # as `launch` does
    doubler = Doubler()
    with doubler.client:
        yield doubler


def test_an_unread_result_is_dropped_at_the_second_look(app: Doubler) -> None:
    event = app.call()
    app.finish(event)
    app.call()
    app.call()
    status, said = app.read(event)
    assert status == 404 and "There is no such session or call" in said


def test_an_unread_result_is_kept_at_the_first_look(app: Doubler) -> None:
    event = app.call()
    app.finish(event)
    app.call()
    status, said = app.read(event)
    assert status == 200 and "event: complete\ndata: [8" in said


def test_a_session_whose_results_were_read_is_dropped_too(app: Doubler) -> None:
    app.may_end.clear()  # a call that had ended would be dropped at the second call after it
    events = [app.call() for _ in range(10)]
    app.may_end.set()
    assert all("event: complete" in app.read(event)[1] for event in events)
    for event in events:
        app.finish(event)
    app.call()
    app.call()
    assert not set(events) & set(idle_sessions(app.pages))


def test_a_running_call_is_kept(app: Doubler) -> None:
    app.may_end.clear()
    event = app.call()
    for _ in range(3):
        app.call()
    app.may_end.set()
    assert "event: complete" in app.read(event)[1]


def test_a_session_that_was_dropped_begins_again(app: Doubler) -> None:
    app.call("mine")
    app.finish("mine")
    app.call()
    app.call()
    assert app.client.get("/gradio_api/queue/data?session_hash=mine").status_code == 404
    assert "event: complete" in app.read(app.call("mine"))[1]


def test_a_later_call_of_the_same_session_keeps_it(app: Doubler) -> None:
    app.call("mine")
    app.finish("mine")
    event = app.call("mine")
    app.finish("mine")
    app.call()
    assert "event: complete" in app.read(event)[1]
