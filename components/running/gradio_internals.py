"""What Gradio offers no public interface for. Nothing else in this repository touches these parts, and nothing is replaced in them.

requirements.txt pins the exact version of Gradio for this file: after an upgrade, run tests/browser/test_api.py and change the pin.

* `Pages.process_api`: Gradio prints the traceback of any error that is not a silent `gr.Error`, and its message may quote the inputs.
* `waiting`: Gradio limits the length of all queues together, so that one kind of job could keep every other call out.
* `has_session`, `has_event`: Gradio answers 200 for an unknown one and then breaks off.
"""

from typing import Any

import gradio as gr

from components.running.log import log_unexpected

NOT_PROCESSED = "This call failed: check its values against /gradio_api/info, which describes every endpoint."


class Pages(gr.Blocks):
    """Blocks whose errors all have a sentence for the caller and none of their inputs in the log."""

    async def process_api(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Process a call. Raises gr.Error only, which Gradio then does not print."""
        try:
            return await super().process_api(*arguments, **named)
        except gr.Error as error:
            error.print_exception = False
            raise
        except Exception as error:
            log_unexpected(error)
            raise gr.Error(NOT_PROCESSED, print_exception=False) from None


def waiting(app: gr.Blocks, concurrency_id: str) -> int:
    """How many calls of one kind of job are waiting."""
    queue = app._queue.event_queue_per_concurrency_id.get(concurrency_id)
    return 0 if queue is None else len(queue.queue)


def has_session(app: gr.Blocks, session: str) -> bool:
    """Whether this session has joined the queue."""
    return session in app._queue.pending_messages_per_session


def has_event(app: gr.Blocks, event: str) -> bool:
    """Whether this call was accepted and its result not yet read."""
    queue = app._queue
    return event in queue.event_ids_to_events or any(event in events for events in queue.pending_event_ids_session.values())
