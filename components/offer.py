"""Offers a pull request with a smaller copy of a public model, in the visitor's name: shown where the app may open one, and a result knows
that a copy would lose nothing.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import gradio as gr

from analyzers.core import limits
from analyzers.core.errors import AccessDenied, LimitExceeded
from analyzers.core.formatting import share, size
from analyzers.core.report import Report
from analyzers.core.request import Progress
from components import store, worker
from components.errors import sentence
from components.identity import access_of, login_page, may_open_pull_requests
from components.progress import Meter
from components.pull_request import shrink_and_open
from components.result.layout import layout_of
from components.result.links import page_of
from components.run import COPIES, Finished
from components.text import html

_LOG_IN = "Log in with Hugging Face first, and allow this app to open pull requests: it opens this one in your name."
_GONE = "This result is no longer kept here: compute it again."


class Offer:
    """The button below a result, with what it says. Lays nothing out where the app may not open pull requests."""

    def __init__(self, quiet: Mapping[str, Any]) -> None:
        self._outputs: list[Any] = []
        if not may_open_pull_requests():
            return
        self._address = gr.State("")
        self._go = gr.Button(visible=False)
        self._said = gr.HTML(apply_default_css=False)
        self._outputs = [self._address, self._go, self._said]
        self._go.click(self._open, self._address, [self._go, self._said], concurrency_limit=None, **quiet)

    def outputs(self) -> list[Any]:
        """List the components that `show` updates."""
        return self._outputs

    def show(self, found: Finished | None) -> dict[Any, Any]:
        """Return updates that offer the copy of a result's model, if there is one; hidden without a result."""
        if not self._outputs:
            return {}
        saved = None if found is None else _saved(found.report)
        label = "" if saved is None else f"Open a pull request with the copy that is {saved} smaller"
        address = "" if found is None else found.address
        return {self._address: address, self._go: gr.update(value=label, visible=saved is not None), self._said: ""}

    async def _open(self, address: str, request: gr.Request, login: gr.OAuthToken | None) -> AsyncIterator[dict[Any, Any]]:
        meter, access = Meter(), access_of(request, login)
        yield {self._said: meter.waiting(), self._go: gr.update(interactive=False)}
        report: Any = store.stored(address.removeprefix("result/"))
        try:
            if report is None or (narrower := layout_of(report).narrower(report)) is None:
                raise LimitExceeded(_GONE)
            if not isinstance(access.token, str):
                raise AccessDenied(_LOG_IN)
            model, arguments = report.checkpoint, (narrower[0], limits.PULL_REQUEST_BYTES, access.token)
            async with aclosing(COPIES.turn(access.token)) as turn, aclosing(_copied(turn, (model.ref, model.commit, *arguments))) as items:
                async for item in items:
                    if isinstance(item, Progress):
                        yield {self._said: meter.show(item)}
                    else:
                        opened, written = html(item[0], 300), item[1]
                        kept = f"{size(written.bytes_before)} became {size(written.bytes_after)}; read back, no value has changed."
                        yield {self._said: f'<div class="status" role="status">Opened <a href="{opened}">{opened}</a>: {kept}</div>'}
        except Exception as error:
            link = login_page(page_of(report)) if isinstance(error, AccessDenied) and report is not None else ""
            more = f' <a href="{html(link)}">Log in</a>' if link else ""
            yield {self._said: f'<div class="status error" role="alert">{html(sentence(error), 1000)}{more}</div>'}
        yield {self._go: gr.update(interactive=True)}


async def _copied(turn: AsyncIterator[Progress], arguments: tuple[Any, ...]) -> AsyncGenerator[Any, None]:
    """Wait for the turn, then copy and open in a process that closing this ends."""
    async for progress in turn:
        yield progress
        if progress.unit != "turns":
            break
    async with aclosing(worker.run_work(shrink_and_open, arguments)) as items:
        async for item in items:
            yield item


def _saved(report: Report) -> str | None:
    """Return by how much a lossless copy of a public model on the Hub is smaller, in words; None if there is none."""
    narrower, model = layout_of(report).narrower(report), getattr(report, "checkpoint", None)
    if narrower is None or model is None or not model.public or model.ref.startswith("sample:") or "+" in model.ref:
        return None
    return share(1 - narrower[0] / model.bytes) if model.bytes <= limits.PULL_REQUEST_BYTES else None
