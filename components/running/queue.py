"""Who waits for whom: each lane of calls has its own room to wait in."""

from typing import Any

import gradio as gr

# In times the room of a lane: that of one whose calls take no time worth waiting for, and of all together, whose calls are held in memory.
_QUICK, _ALL = 4, 16


def queue(app: gr.Blocks, waiting: int, at_once: int) -> None:
    """Queue the calls of ``app``: at most ``waiting`` of each lane, or four times as many where they are answered at once.

    at_once: how many of a lane are at work, unless it says otherwise.

    Gradio counts all that wait together, so that whoever asks for many analyses would also keep everybody from looking something up.
    """
    app.queue(max_size=_ALL * waiting, default_concurrency_limit=at_once)
    ours = app._queue
    push = ours.push
    full = "Too many calls are waiting already: try again in a minute."

    async def push_where_there_is_room(body: Any, request: Any, username: str | None) -> tuple[bool, Any, Any]:
        called = app.fns.get(body.fn_index)
        lane = None if called is None else ours.event_queue_per_concurrency_id.get(called.concurrency_id)
        if lane is not None and called is not None and len(lane.queue) >= (waiting if called.queue else _QUICK * waiting):
            return False, full, "queue_full"
        return await push(body=body, request=request, username=username)

    ours.push = push_where_there_is_room  # type: ignore[method-assign]
