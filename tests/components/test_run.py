"""A run: in a process of its own, in turn, ended when it is closed, stored where everything is public."""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import psutil
import pytest

from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import LimitExceeded, MantissaError
from analyzers.core.request import Progress
from analyzers.dtype.report import DtypeRequest
from analyzers.language_models.samples import sample_folder
from components import store
from components.library import Library
from components.run import Finished, Turns, Visitor, run
from tests.conftest import local_hub
from tests.hub import Fault, LocalHub
from tests.hub.architectures import llama


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHub]:
    """One Hub for all tests: the processes of analyses have the environment in which the first was started."""
    with pytest.MonkeyPatch.context() as patch, local_hub(patch, tmp_path_factory.mktemp("hf-home")) as local:
        yield local


@pytest.fixture(scope="module", autouse=True)
def _preloaded() -> None:
    """Let the fork server import what these tests run, and not all analyzers with torch, which takes seconds."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["components.worker", "analyzers.dtype"])


_SAMPLE = DtypeRequest(model="sample:tiny-fp32")


async def finished(request: Any, visitor: Visitor | None = None, again: bool = False) -> Finished:
    """The result of a run."""
    *_, last = [item async for item in run(request, visitor or Visitor("a"), again)]
    assert isinstance(last, Finished)
    return last


def test_a_result_is_stored_and_found_again(library: Library) -> None:
    first = asyncio.run(finished(_SAMPLE))
    assert first.address == f"result/{first.report.id}" and first.made == ""
    again = asyncio.run(finished(_SAMPLE))
    assert again.report.id == first.report.id and again.made
    assert asyncio.run(finished(_SAMPLE, again=True)).made == ""
    assert store.stored(first.report.id) is not None


def test_what_is_private_is_kept_for_an_hour_and_not_stored(hub: LocalHub, library: Library) -> None:
    token = "hf_" + "private" * 5
    hub.user(token, "me")
    hub.add("me/private", {path.name: path for path in sample_folder("tiny-fp32").iterdir()}, private=True)
    found = asyncio.run(finished(DtypeRequest(model="me/private"), Visitor("a", Access(token=token))))
    assert found.address.startswith("open/") and store.stored(found.report.id) is None
    kept = store.opened(found.address.removeprefix("open/"))
    assert kept is not None and kept.id == found.report.id and store.opened("x" * 43) is None


def test_an_error_keeps_its_sentence(hub: LocalHub) -> None:
    with pytest.raises(MantissaError, match="nothing"):
        asyncio.run(finished(DtypeRequest(model="sample:nothing")))


@pytest.fixture
def slow(hub: LocalHub) -> DtypeRequest:
    """A request that takes minutes."""
    hub.add("org/large", llama(lineage="bf16"))
    hub.fault(Fault("^/org/large/resolve/.*safetensors$", times=None, ranged=True, rate=200_000))
    return DtypeRequest(model="org/large")


def workers() -> list[psutil.Process]:
    """The processes of analyses that are at work."""
    children = psutil.Process().children(recursive=True)
    return [each for each in children if each.nice() == 10 and any("forkserver" in part for part in each.cmdline())]


async def begun(items: AsyncIterator[Any]) -> None:
    """Take items until the analysis itself tells its progress."""
    async for item in items:
        if isinstance(item, Progress) and item.unit == "bytes":
            return


def test_closing_a_run_kills_its_process(slow: DtypeRequest) -> None:
    async def closed() -> None:
        async with aclosing(run(slow, Visitor("a"))) as items:
            await begun(items)
            assert workers()

    asyncio.run(closed())
    assert not workers()


def test_a_process_that_is_killed_is_a_sentence(slow: DtypeRequest) -> None:
    async def killed() -> None:
        async with aclosing(run(slow, Visitor("a"))) as items:
            await begun(items)
            os.kill(workers()[0].pid, signal.SIGKILL)
            async for _ in items:
                pass

    with pytest.raises(LimitExceeded, match="memory"):
        asyncio.run(killed())


def test_a_run_ends_after_its_time(slow: DtypeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOB_SECONDS", 1)
    with pytest.raises(LimitExceeded, match=r"Stopped after 1\.0 s, the limit"):
        asyncio.run(finished(slow))
    assert not workers()


def test_one_visitor_does_not_hold_up_another() -> None:
    turns, order = Turns(total=2, each=1), list[str]()

    async def one(visitor: str, name: str, over: asyncio.Event) -> None:
        async with aclosing(turns.turn(visitor)) as turn:
            async for progress in turn:
                if progress.unit != "turns":
                    break
            order.append(name)
            await over.wait()

    async def several() -> None:
        over = asyncio.Event()
        runs = [asyncio.ensure_future(one(name[0], name, over)) for name in ("a0", "a1", "a2", "a3", "b")]
        while len(order) < 2:
            await asyncio.sleep(0)
        assert sorted(order) == ["a0", "b"]
        over.set()
        await asyncio.gather(*runs)

    asyncio.run(several())
    assert sorted(order) == ["a0", "a1", "a2", "a3", "b"]


def test_the_fifth_that_waits_is_refused_and_one_that_leaves_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.run._STEP_SECONDS", 0.01)
    turns = Turns(total=1, each=1)

    async def waits(started: asyncio.Event) -> None:
        async with aclosing(turns.turn("a")) as turn:
            async for progress in turn:
                started.set()
                if progress.unit != "turns":
                    await asyncio.Event().wait()

    async def crowd() -> None:
        started = [asyncio.Event() for _ in range(5)]
        runs = []
        for waiting in started:  # the first has its turn
            runs.append(asyncio.ensure_future(waits(waiting)))
            await waiting.wait()
        with pytest.raises(LimitExceeded, match="waiting already"):
            await anext(turns.turn("a"))
        for each in runs:
            each.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        async with aclosing(turns.turn("a")) as turn:
            assert (await anext(turn)).unit == ""

    asyncio.run(crowd())
