"""Work that is watched: what it tells arrives in order, its end is the generator's, and who leaves ends it."""

import gc
import threading
import weakref
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from analyzers.core.thread_calls import Cancelled, call_in_thread

SECONDS = 20


def alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "watched"]


def result_of(steps: Any) -> tuple[list[Any], Any]:
    told = []
    while True:
        try:
            told.append(next(steps))
        except StopIteration as end:
            return told, end.value


def test_what_is_told_and_what_is_returned() -> None:
    def work(tell: Callable[[int | None], None]) -> str:
        for number in (3, None, 1):
            tell(number)
        return threading.current_thread().name

    assert result_of(call_in_thread(work)) == ([3, None, 1], "watched")
    assert not alive()


@pytest.mark.parametrize("failure", [ValueError("no"), KeyboardInterrupt()])
def test_a_failure_is_raised_where_it_is_watched(failure: BaseException) -> None:
    def work(tell: Callable[[int], None]) -> None:
        tell(1)
        raise failure

    steps = call_in_thread(work)
    assert next(steps) == 1
    with pytest.raises(type(failure)) as caught:
        next(steps)
    assert caught.value is failure and not alive()


def test_who_leaves_ends_it_at_its_next_word_and_waits_for_that() -> None:
    done: list[object] = []
    go = threading.Event()

    def work(tell: Callable[[int], None]) -> None:
        try:
            tell(0)
            go.wait(SECONDS)
            done.append("what had begun")
            try:
                tell(1)
            except Exception as error:  # as a library does that takes every failure for one of its own
                done.append(error)
            done.append("more")
        except Cancelled:
            done.append("left")
            raise

    steps = call_in_thread(work)
    assert next(steps) == 0
    threading.Timer(0.2, go.set).start()
    steps.close()
    assert done == ["what had begun", "left"] and not alive()


def test_who_leaves_waits_for_as_long_as_said() -> None:
    go = threading.Event()

    def work(tell: Callable[[int], None]) -> None:
        tell(0)
        go.wait(SECONDS)

    steps = call_in_thread(work, patience=0.05)
    next(steps)
    steps.close()
    (still,) = (thread for thread in threading.enumerate() if thread.name == "watched")
    go.set()
    still.join(SECONDS)
    assert not still.is_alive()


def test_silence_is_filled_with_the_last_word() -> None:
    go = threading.Event()

    def work(tell: Callable[[str], None]) -> None:
        tell("first")
        go.wait(SECONDS)
        tell("second")

    steps = call_in_thread(work, silence=0.01)
    assert list(islice(steps, 3)) == ["first"] * 3
    go.set()
    told = list(steps)
    assert told[-1] == "second" and set(told[:-1]) <= {"first"}


def test_nothing_that_the_work_had_is_held_by_its_end() -> None:
    class Large:
        """Something that can be referred to weakly."""

    def work_on(large: Large) -> Callable[[Callable[[int], None]], None]:
        def work(tell: Callable[[int], None]) -> None:
            tell(id(large))

        return work

    gc.disable()
    try:
        for leave in (False, True):
            large = Large()
            seen = weakref.ref(large)
            steps = call_in_thread(work_on(large))
            next(steps)
            if leave:
                steps.close()
            else:
                list(steps)
            del large, steps
            assert seen() is None
    finally:
        gc.enable()
