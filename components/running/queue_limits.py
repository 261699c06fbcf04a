"""Queue limits per kind of job: many waiting analyses must not keep anybody from looking something up.

Gradio's own limit counts all waiting calls together; `components.site.front` refuses a call where its own kind has no room left.
"""

import gradio as gr

from analyzers import limits
from components.running.gradio_internals import waiting

# As multiples of limits.QUEUE: for calls that are answered at once, and for all calls together, which are held in memory.
_QUICK, _ALL = 4, 16


def limit_queue(app: gr.Blocks) -> None:
    """Set how many calls of each kind run at once unless they say otherwise, and how many may wait in all."""
    app.queue(max_size=_ALL * limits.QUEUE, default_concurrency_limit=limits.JOBS)


def has_room(app: gr.Blocks, endpoint: int) -> bool:
    """Whether another call of this endpoint (its index in ``app.fns``) may wait."""
    called = app.fns[endpoint]
    most = limits.QUEUE if called.queue else _QUICK * limits.QUEUE
    return waiting(app, called.concurrency_id) < most
