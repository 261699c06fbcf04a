"""Who waits for whom: each lane of calls has its own room to wait in."""

from typing import Any

import gradio as gr

from components.text import numbers

# Calls that wait in all lanes together, in times the room of one: what they bring is held in memory.
_LANES = 8


def queue(app: gr.Blocks, waiting: int, at_once: int) -> None:
    """Queue the calls of ``app``: at most ``waiting`` of each lane, ``at_once`` of them at work unless the lane says otherwise.

    Gradio counts all that wait together, so that whoever asks for many analyses would also keep everybody from looking something up.
    """
    app.queue(max_size=_LANES * waiting, default_concurrency_limit=at_once)
    ours = app._queue
    push = ours.push
    full = f"Too many calls are waiting already ({numbers.plural(waiting, 'call')}): try again in a minute."

    async def push_where_there_is_room(body: Any, request: Any, username: str | None) -> tuple[bool, Any, Any]:
        called = app.fns.get(body.fn_index)
        lane = None if called is None else ours.event_queue_per_concurrency_id.get(called.concurrency_id)
        if lane is not None and len(lane.queue) >= waiting:
            return False, full, "queue_full"
        return await push(body=body, request=request, username=username)

    ours.push = push_where_there_is_room  # type: ignore[method-assign]
