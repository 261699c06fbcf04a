"""Accesses parts of Gradio that have no public interface. No other file touches them, and nothing in them is replaced.

requirements.txt pins the exact version of Gradio for this file: after an upgrade, run tests/browser/test_api.py and change the pin.

Figures are processor time of one core, with 1,133 components and Gradio's own way measured in the same run.

* `Pages.add_page`: 1.1 s instead of 2.4 s to build the pages: Gradio creates a web application each time the context of a page is left.
* `Pages.process_api`: Gradio prints the traceback of any error that is not a silent `gr.Error`, and its message may quote the inputs.
* `Pages.space_id`: with a Space's id, pages request a header from the Hub and fonts from Google, which the content policy blocks.
* `Components`: 0.3 ms and 0.2 MB instead of 77 ms and 1.7 MB for each session and each call without one: Gradio describes every component
  of every page again, for deep links, which this app does not offer.
* `Pages.postprocess_data`: 0.4 ms instead of 18 ms of the event loop for each step of a run's progress, six a second: Gradio builds and
  describes all 63 outputs again, of which one has changed.
* `Pages.queue`: 0.5 % instead of 4.6 % of a core in an idle app: Gradio polls for calls to start 1,000 times a second.
* `mounted`: mounting omits settings that launching makes.
* `waiting`: Gradio limits the total length of all queues, so that one kind of job could exclude every other call.
* `has_session`, `session_of`: Gradio answers 200 for an unknown session or call, then aborts the response.
* `idle_sessions`, `drop_sessions`: Gradio keeps the identifier of each session for as long as the app runs, and results that nobody reads
  until 2,000 later sessions have some.
"""

import warnings
from collections.abc import Iterable
from copy import copy
from typing import Any

import gradio as gr
from fastapi import FastAPI
from gradio.blocks import Block, BlocksConfig
from gradio.state_holder import SessionState

from components.running.resource_exhaustion import EXHAUSTED, is_exhausted
from components.server.log import log_unexpected

# Interval between two polls. Gradio has the same on Windows, where its loop cannot wait for less.
_QUEUE_SECONDS = 0.05
NOT_PROCESSED = "This call failed: check its values against /gradio_api/info, which describes every endpoint."


class Components(BlocksConfig):
    """The components of the app. A copy has those of a session, which need no description."""

    _of_session = False

    def config_for_block(self, _id: int, rendered_ids: list[int], block: Block, renderable: Any = None) -> dict[str, Any]:  # type: ignore[override]
        """Describe a component; empty for a session."""
        if self._of_session and renderable is None:
            return {}
        return super().config_for_block(_id, rendered_ids, block, renderable)

    def __copy__(self) -> "Components":
        made = Components(self.root_block)
        made.blocks, made.fns, made.renderables = dict(self.blocks), dict(self.fns), list(self.renderables)
        made.fn_id = self.fn_id
        made._of_session = True
        return made


class Pages(gr.Blocks):
    """Blocks that answer every error with a sentence, log no inputs, and create sessions quickly."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.default_config = Components(self)
        self.space_id = None

    def add_page(self, name: str, path: str) -> None:
        """Start the page at this path: later components belong to it, as in the context of `route`."""
        # Otherwise one form could hold the last fields of one page and the first of the next.
        self.fill_expected_parents()  # type: ignore[no-untyped-call]
        self.pages.append((path, name, True))
        self.current_page = path

    def queue(self, *arguments: Any, **named: Any) -> gr.Blocks:
        """Set up the queue, which sleeps while it is idle."""
        super().queue(*arguments, **named)
        self._queue.sleep_when_free = self._queue.progress_update_sleep_when_free = _QUEUE_SECONDS
        return self

    async def process_api(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Process a call. Raises only gr.Error that Gradio does not print."""
        try:
            return await super().process_api(*arguments, **named)
        except gr.Error as error:
            error.print_exception = False
            raise
        except Exception as error:
            if is_exhausted(error):
                raise gr.Error(EXHAUSTED, print_exception=False) from None
            log_unexpected(error)
            raise gr.Error(NOT_PROCESSED, print_exception=False) from None

    async def postprocess_data(self, block_fn: Any, predictions: Any, state: SessionState | None) -> list[Any]:
        """Return the values for the browser. If updates are given by component, all other outputs are skipped."""
        if not (isinstance(predictions, dict) and predictions and predictions.keys() <= set(block_fn.outputs)):
            return await super().postprocess_data(block_fn, predictions, state)
        changing = copy(block_fn)
        changing.outputs = [block for block in block_fn.outputs if block in predictions]
        values = [predictions[block] for block in changing.outputs]
        changed = iter(await super().postprocess_data(changing, values if len(values) > 1 else values[0], state))
        return [next(changed) if block in predictions else gr.skip() for block in block_fn.outputs]


def mounted(app: Pages, **options: Any) -> FastAPI:
    """Make a web application that serves ``app``. options: passed to `gr.mount_gradio_app`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "SSR mode is not supported")  # a warning about an option that is not set
        outer: FastAPI = gr.mount_gradio_app(FastAPI(openapi_url=None), app, path="", **options)
    served: Any = outer.routes[-1]
    app.app = served.app  # `close` ends the streams of this application
    app.app.startup_events_triggered = True  # otherwise a request for /gradio_api/startup-events would start a second queue
    app.has_launched = True  # otherwise Gradio does not check the paths of files in answers
    return outer


def waiting(app: gr.Blocks, concurrency_id: str) -> int:
    """Count the waiting calls of one kind of job."""
    queue = app._queue.event_queue_per_concurrency_id.get(concurrency_id)
    return 0 if queue is None else len(queue.queue)


def has_session(app: gr.Blocks, session: str) -> bool:
    """Return whether this session has joined the queue."""
    return session in app._queue.pending_messages_per_session


def session_of(app: gr.Blocks, event: str) -> str | None:
    """Return the session of an accepted call whose result was not yet read; None for any other call."""
    queue = app._queue
    if (waiting_event := queue.event_ids_to_events.get(event)) is not None:
        return str(waiting_event.session_hash)
    return next((session for session, events in queue.pending_event_ids_session.items() if event in events), None)


def idle_sessions(app: gr.Blocks) -> dict[str, frozenset[str]]:
    """Return the sessions without a waiting or running call, each with its calls whose results were not yet read."""
    queue = app._queue
    busy = {event.session_hash for event in queue.event_ids_to_events.values()}
    return {session: frozenset(events) for session, events in queue.pending_event_ids_session.items() if session not in busy}


def drop_sessions(app: gr.Blocks, sessions: Iterable[str]) -> None:
    """Drop sessions that are idle, with all results that were not yet read. Another call of such a session begins it again."""
    for session in sessions:
        app._queue.pending_event_ids_session.pop(session, None)
        app._queue.pending_messages_per_session.pop(session, None)
