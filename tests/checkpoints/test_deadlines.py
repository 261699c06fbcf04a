"""Deadlines: calls in the order of their times whatever the order in which they were set, none that was cancelled, one thread for all."""

import threading
import weakref

from analyzers.checkpoints.hub.deadlines import Deadlines


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "deadlines"]


def test_the_soonest_is_called_first_and_a_cancelled_one_never() -> None:
    deadlines, called, over = Deadlines(), list[str](), threading.Event()
    last = deadlines.call_after(0.3, over.set)
    cancelled = deadlines.call_after(0.05, lambda: called.append("cancelled"))
    deadlines.call_after(0.2, lambda: called.append("second"))
    deadlines.call_after(0.1, lambda: called.append("first"))
    cancelled.cancel()
    assert over.wait(60) and called == ["first", "second"]
    last.cancel()  # too late: nothing happens


def test_a_late_deadline_does_not_hold_up_an_earlier_one() -> None:
    deadlines, over = Deadlines(), threading.Event()
    deadlines.call_after(3600, lambda: None)
    deadlines.call_after(0.01, over.set)
    assert over.wait(60)


def test_a_cancelled_deadline_holds_no_object() -> None:
    class Client:
        def expire(self) -> None:
            raise AssertionError

    deadlines, client = Deadlines(), Client()
    known = weakref.ref(client)
    deadlines.call_after(3600, client.expire).cancel()
    del client
    assert known() is None


def test_one_thread_calls_all_and_ends_after_the_last() -> None:
    deadlines, before, over = Deadlines(), _threads(), threading.Event()
    for _ in range(100):
        deadlines.call_after(0.2, lambda: None)
    deadlines.call_after(0.3, over.set)
    (thread,) = set(_threads()) - set(before)
    assert over.wait(60)
    thread.join(60)
    assert not thread.is_alive()
    deadlines.call_after(0.01, (again := threading.Event()).set)
    assert again.wait(60)
