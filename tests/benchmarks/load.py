"""Measures 200 concurrent visitors of badges, library search, stored results and pages, while 20 run analyses of a slow repository."""

import asyncio
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from analyzers.language_models.samples import sample_folder
from components.site.addresses import badge, stored
from tests.browser.conftest import serve
from tests.hub.process import HubProcess

from .library_store import fill, model_of
from .result import Result

VISITORS = {"badge": 60, "search": 50, "stored": 40, "page": 30, "analysis": 20}
# Target 95th percentiles in seconds. Analyses have none, since they wait for their turn and for the Hub.
TARGETS = {"badge": 1.0, "search": 3.0, "stored": 3.0, "page": 5.0}
ROWS = 20_000
# Results that visitors follow links to.
_POPULAR = 50
SECONDS = 30.0
ROUNDS = 2
_WARM_SECONDS = 20.0
# Wait after a round, since analyses end once their results have not been read for 10 seconds.
_LEFT_SECONDS = 15.0
_PAUSE_SECONDS = (0.5, 1.5)
_PAGES = ("", "library", "sparsity", "conflict", "precision", "exit", "methods")
_REFUSED = (429, 503)
_TIMEOUT = 180.0


def load(folder: Path) -> Iterator[Result]:
    """Let each visitor repeat a request, wait for the answer, and pause for about a second, on loopback and for a limited time."""
    data = fill(folder / "data", ROWS)
    # a stored result is withdrawn if the Hub does not know its model
    known = [argument for number in range(_POPULAR) for argument in ("--folder", f"{model_of(number)}={sample_folder('tiny-bf16')}")]
    with (
        HubProcess("--llama", "org/large", "--delay", "0.2", *known) as hub,
        serve(folder / "app", hub.url, MANTISSA_DATA=str(data)) as url,
    ):
        (app,) = (child for child in psutil.Process().children() if "app.py" in child.cmdline())
        time.sleep(_WARM_SECONDS)
        memory = []
        for number in range(ROUNDS):
            answers = asyncio.run(_visit(url))
            time.sleep(_LEFT_SECONDS)
            memory.append(_bytes(app))
            yield from _figures(number + 1, answers)
        yield Result("  memory after each round", ", ".join(f"{each / 1e6:.0f} MB" for each in memory))


def _bytes(app: psutil.Process) -> int:
    """Return the memory of the app and its children, counting shared pages once."""
    return sum(process.memory_full_info().pss for process in (app, *app.children(recursive=True)))


def _figures(number: int, answers: dict[str, list[tuple[float, int]]]) -> Iterator[Result]:
    for kind, given in answers.items():
        fine = sorted(seconds for seconds, status in given if status == 200)
        refused = sum(status in _REFUSED for _, status in given)
        wrong = sorted({status for _, status in given} - {200, *_REFUSED})
        if not fine:
            yield Result(f"round {number}, {kind}: no answer, {refused} refused, wrong: {wrong}", "", met=False)
            continue
        p95 = fine[int(0.95 * (len(fine) - 1))]
        ours = f"median {statistics.median(fine):.2f} s, p95 {p95:.2f} s, {len(fine)} answers, {refused} refused"
        target = TARGETS.get(kind)
        met = None if target is None else p95 < target and not wrong
        yield Result(
            f"round {number}, {kind}{f', wrong: {wrong}' if wrong else ''}", ours, target=f"p95 < {target:g} s" if target else "", met=met
        )


async def _visit(url: str) -> dict[str, list[tuple[float, int]]]:
    answers: dict[str, list[tuple[float, int]]] = defaultdict(list)
    end = time.monotonic() + SECONDS
    visitors = {
        kind: [asyncio.create_task(_visitor(url, kind, number, end, answers[kind])) for number in range(many)]
        for kind, many in VISITORS.items()
    }
    waiting = visitors.pop("analysis")
    await asyncio.gather(*(task for tasks in visitors.values() for task in tasks))
    # Visitors who wait for an analysis leave, since their calls would continue for minutes.
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return dict(answers)


async def _visitor(url: str, kind: str, number: int, end: float, answers: list[tuple[float, int]]) -> None:
    chance = random.Random(f"{kind} {number}")
    cookie = f"mantissa=visitor-{kind}-{number}"
    while True:
        await asyncio.sleep(chance.uniform(*_PAUSE_SECONDS))
        if time.monotonic() > end:
            return
        began = time.monotonic()
        try:
            async with asyncio.timeout(_TIMEOUT):
                status = await _ask(url, kind, cookie, chance)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            status = 0
        answers.append((time.monotonic() - began, status))


async def _ask(url: str, kind: str, cookie: str, chance: random.Random) -> int:
    row = chance.randrange(ROWS)
    if kind == "search":
        return await _call(url, "find_models", [model_of(row), "", "", "", "", "", None, "updated", True, 1], cookie)
    if kind == "analysis":
        return await _call(url, "dtype", ["org/large", "quick", "", "", "", "", row, None], cookie)
    path = {"badge": badge(model_of(row)), "stored": stored(f"{chance.randrange(_POPULAR) + 1:064x}"), "page": chance.choice(_PAGES)}[kind]
    return (await _http(url, f"/{path}", cookie))[0]


async def _call(url: str, name: str, values: list[object], cookie: str) -> int:
    """Make an API call. Returns the status if it is refused, 200 once its result arrives, or 0 if the result is an error."""
    status, said = await _http(url, f"/gradio_api/call/{name}", cookie, json.dumps({"data": values}).encode())
    if status != 200:
        return status
    status, said = await _http(url, f"/gradio_api/call/{name}/{json.loads(said)['event_id']}", cookie)
    return 0 if status == 200 and b"event: complete" not in said else status


async def _http(url: str, path: str, cookie: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Make one request on a new connection. Returns status and body."""
    there = urlsplit(url)
    reader, writer = await asyncio.open_connection(there.hostname, there.port)
    try:
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: {there.netloc}\r\nCookie: {cookie}\r\nConnection: close\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"\r\n" + (body or b""))
        start = await reader.readuntil(b"\r\n\r\n")
        content = bytearray()
        while part := await reader.read(1 << 16):
            content += part

        return int(start.split(b" ", 2)[1]), bytes(content) if b"chunked" not in start else _unchunked(bytes(content))
    finally:
        writer.close()


def _unchunked(body: bytes) -> bytes:
    parts, at = [], 0
    while (end := body.find(b"\r\n", at)) >= 0 and (size := int(body[at:end], 16)):
        parts.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(parts)
