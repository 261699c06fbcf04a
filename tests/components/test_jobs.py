"""What the page may do on a visitor's behalf: no local files, no token, limits, no leaks."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analyzers import dtype_detection, update_sparsity
from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import CheckpointError, HubUnreachable, InvalidReference, LimitExceeded
from analyzers.core.request import Progress, Request
from components.dtype.form import request as passport
from components.forms.checkpoint_picker import SAMPLES_WORK, UNREACHABLE, Suggestions, choices
from components.running import jobs, queue_limits, rejoined_runs
from components.running.progress import Meter
from components.running.queue_limits import Caller
from components.server.log import Repeats, log_unexpected, redact_user_input
from components.site.identity import Client
from components.sparsity.form import request as pair

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", ["/etc/passwd", "./", "../", "/proc/self/environ", "file:///etc/passwd", "sample:../../secret"])
def test_local_paths_cannot_be_reached(path: str) -> None:
    with pytest.raises((InvalidReference, CheckpointError)) as caught:
        list(jobs.job(passport({"model": path})))
    assert "root:" not in str(caught.value)


def _endless(closed: list[str], seen: list[Any]) -> Any:
    def analyze(request: object, access: Access, *, largest: int | None) -> Iterator[Progress]:
        seen.extend((access, largest))
        try:
            while True:
                yield Progress(done=1, total=2, unit="bytes")
        finally:
            closed.append("closed")

    return analyze


_EXACT = (passport({"model": "a/b", "mode": "exact"}), pair({"base": "a/b", "tuned": ["c/d"], "mode": "exact"}))


@pytest.mark.parametrize("request_", _EXACT, ids=["dtype", "sparsity"])
def test_a_job_ends_at_its_time_limit_and_frees_what_it_held(monkeypatch: pytest.MonkeyPatch, request_: Request) -> None:
    closed: list[str] = []
    seen: list[Any] = []
    for package in (dtype_detection, update_sparsity):
        monkeypatch.setattr(package, "analyze", _endless(closed, seen))
    monkeypatch.setattr(limits, "JOB_SECONDS", 0)
    with pytest.raises(LimitExceeded, match="MANTISSA_JOB_SECONDS"):
        list(jobs.job(request_))
    assert closed == ["closed"]
    assert seen == [Access(), limits.WEB_EXACT_BYTES]


def test_closing_a_job_closes_the_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(dtype_detection, "analyze", _endless(closed, []))
    job = jobs.job(passport({"model": "a/b"}))
    next(job)
    job.close()
    assert closed == ["closed"]


def _counting(closed: list[str], starts: list[int]) -> Any:
    def analyze(request: object, access: Access, *, largest: int | None) -> Iterator[Progress]:
        starts.append(len(starts))
        try:
            for done in range(100):
                yield Progress(done=done, total=100, unit="bytes")
        finally:
            closed.append("closed")

    return analyze


def _who(visitor: str, session: str) -> Caller:
    return Caller(Client(visitor, f"address of {visitor}"), session)


def test_who_reloads_in_the_middle_of_a_run_joins_it_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    starts: list[int] = []
    monkeypatch.setattr(dtype_detection, "analyze", _counting(closed, starts))
    request = passport({"model": "sample:tiny-bf16"})

    def read(who: Caller, items: int) -> list[int]:
        token = queue_limits.caller.set(who)
        try:
            with queue_limits.reading(who.session):
                job = jobs.job(request, again=True, rejoin=True)
                found = [next(job).done for _ in range(items)]
                job.close()
        finally:
            queue_limits.caller.reset(token)
        return found

    assert read(_who("a", "first"), 3) == [0, 1, 2]
    assert closed == []
    assert rejoined_runs.join(request, _who("a", "other")._replace(access=Access(token="hf_other"))) is None
    assert read(_who("a", "second"), 2) == [3, 4]
    assert read(_who("b", "third"), 1) == [0] and len(starts) == 2
    rejoined_runs.stop("third")
    assert closed == ["closed"]
    rejoined_runs.stop("second")
    assert closed == ["closed"] * 2 and not queue_limits.SAMPLES.slots


def test_stop_may_be_quicker_than_the_end_of_what_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(dtype_detection, "analyze", _endless(closed, []))
    token = queue_limits.caller.set(_who("a", "quick"))
    try:
        with queue_limits.reading("quick"):
            job = jobs.job(passport({"model": "sample:tiny-bf16"}), rejoin=True)
            next(job)
            rejoined_runs.stop("quick")
            job.close()
    finally:
        queue_limits.caller.reset(token)
    assert closed == ["closed"] and not queue_limits.SAMPLES.slots


def test_a_run_that_nobody_joins_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(dtype_detection, "analyze", _endless(closed, []))
    monkeypatch.setattr(limits, "READER_SECONDS", 0)
    token = queue_limits.caller.set(_who("a", "gone"))
    try:
        with queue_limits.reading("gone"):
            job = jobs.job(passport({"model": "sample:tiny-bf16"}), rejoin=True)
            next(job)
            job.close()
        for _ in range(1000):
            if closed:
                break
            time.sleep(0.1)
    finally:
        queue_limits.caller.reset(token)
    assert closed == ["closed"] and not queue_limits.SAMPLES.slots


def test_the_log_says_where_and_not_what(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "mantissa"):
        try:
            raise ValueError("hf_secret")
        except ValueError as error:
            log_unexpected(error)
    assert "unexpected ValueError" in caplog.text
    assert "test_jobs.py" in caplog.text
    assert "hf_secret" not in caplog.text


def test_what_repeats_is_logged_once_in_a_minute_and_then_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("components.server.log.time.monotonic", lambda: clock[0])
    repeats = Repeats()

    def logged(text: str) -> str | None:
        record = logging.makeLogRecord({"msg": "%s", "args": (text,)})
        return record.getMessage() if repeats.filter(record) else None

    assert [logged("lost"), logged("lost"), logged("other"), logged("lost")] == ["lost", None, "other", None]
    clock[0] = 61.0
    assert [logged("lost"), logged("other")] == ["lost (and 2 times since this was logged last)", "other"]


@pytest.fixture
def redacted() -> Iterator[None]:
    factory = logging.getLogRecordFactory()
    redact_user_input()
    yield
    logging.setLogRecordFactory(factory)


@pytest.mark.usefixtures("redacted")
@pytest.mark.parametrize("name", ["uvicorn.error", "asyncio", "mcp.server.lowlevel.server", "starlette", "fastapi"])
def test_the_servers_own_loggers_do_not_quote_a_request(name: str, caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("hf_secret")
    except ValueError as error:
        logging.getLogger(name).exception("Exception in call: %s", error)
    logging.getLogger("mcp.server").warning("Failed to validate request: %s", {"token": "hf_secret"})
    assert "unexpected ValueError" in caplog.text and "test_jobs.py" in caplog.text
    assert "hf_secret" not in caplog.text
    logging.getLogger("mantissa").error("kept: %s", 5)
    assert "kept: 5" in caplog.text


def test_suggestions_keep_their_length_and_have_the_samples() -> None:
    asked: list[str] = []

    def search(text: str, limit: int) -> list[str]:
        asked.append(text)
        return [f"org/{text}-{i}" for i in range(limit)] if text != "few" else ["openai-community/gpt2"]

    suggestions = Suggestions(search)
    for text in ("", "x", "llama@main", "few", "sample:tiny", "y" * 10_000):
        found = suggestions.find(text)
        assert found is not None
        assert len(found[0]) == len(set(found[0])) == len(choices())
        assert {name for name in choices() if name.startswith("sample:")} <= set(found[0])
        assert found[1] == ""
    assert asked == ["llama", "few"]


def test_an_unreachable_hub_is_said_and_left_alone_for_a_while() -> None:
    calls: list[str] = []

    def search(text: str, limit: int) -> list[str]:
        calls.append(text)
        raise HubUnreachable("The Hub does not answer.")

    suggestions = Suggestions(search)
    assert suggestions.find("llama") == (choices(wanted="llama"), UNREACHABLE + SAMPLES_WORK)
    assert suggestions.find("llama-2") == (choices(wanted="llama-2"), UNREACHABLE + SAMPLES_WORK)
    assert calls == ["llama"]
    labels = Suggestions(search, samples=False)  # those of the form for labels, which refuses samples
    offered, note = labels.find("llama") or ([], "")
    assert note == UNREACHABLE and offered and not any(name.startswith("sample:") for name in offered)


def test_progress_is_escaped_and_not_too_frequent() -> None:
    meter = Meter()
    first = meter.show(Progress(done=1_000_000, total=4_000_000, unit="bytes", note="reading <b>"))
    assert "Reading &lt;b&gt;" in first
    assert "25%, 1 MB of 4 MB" in first
    assert meter.show(Progress(done=2, total=4, unit="bytes")) == ""
