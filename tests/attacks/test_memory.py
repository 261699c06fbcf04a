"""Whatever a repository's header holds, the app stays small and answers others: long headers are parsed in a process of their own."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from analyzers import limits
from analyzers.checkpoints.header import parse_header
from analyzers.checkpoints.header_process import parse_apart
from analyzers.errors import InvalidCheckpoint, LimitExceeded
from tests.attacks.calls import inspect, post, read
from tests.attacks.conftest import process_of
from tests.attacks.headers import ATTACKS, framed
from tests.browser.conftest import serve
from tests.hub import LocalHub

MEMORY = 2_000_000_000
NAMES = ("org/metadata-0", "org/metadata-1", "org/tensors-0")


def _metadata(entries: int) -> bytes:
    return framed(b'{"__metadata__":{' + b",".join(b'"%d":""' % number for number in range(entries)) + b"}}")


def _tensors(many: int) -> bytes:
    described = {f"layers.{i}.weight": {"dtype": "BF16", "shape": [1], "data_offsets": [2 * i, 2 * i + 2]} for i in range(many)}
    return framed(json.dumps(described, separators=(",", ":")).encode(), bytes(2 * many))


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every header goes to the process."""
    monkeypatch.setattr(limits, "HEADER_PROCESS_BYTES", 0)


def test_a_process_gives_the_same_header(apart: None) -> None:
    data = _tensors(20_000)
    raw = data[: len(data) - 40_000]
    assert parse_apart(raw, len(data), "model.safetensors") == parse_header(raw, len(data), "model.safetensors")


@pytest.mark.parametrize("attack", ["deep_lists", "duplicate_tensor", "half_surrogate", "not_utf8"])
def test_a_process_refuses_with_the_same_sentence(apart: None, attack: str) -> None:
    (data,) = (each.data for each in ATTACKS if each.name == attack)
    with pytest.raises(InvalidCheckpoint) as expected:
        parse_header(data, len(data), "model.safetensors")
    with pytest.raises(InvalidCheckpoint) as caught:
        parse_apart(data, len(data), "model.safetensors")
    assert str(caught.value) == str(expected.value)


def test_a_process_that_needs_too_much_memory_is_a_sentence(apart: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANTISSA_HEADER_PROCESS_MEMORY", "300000000")
    # the caps on metadata come first where they are: without them, memory ends it
    monkeypatch.setenv("MANTISSA_METADATA_ENTRIES", "100000000")
    monkeypatch.setenv("MANTISSA_METADATA_BYTES", "100000000")
    raw = _metadata(3_000_000)
    with pytest.raises(LimitExceeded, match="MANTISSA_HEADER_PROCESS_MEMORY"):
        parse_apart(raw, len(raw), "model.safetensors")


@pytest.fixture(scope="module")
def hub() -> Iterator[LocalHub]:
    """A Hub with hostile headers."""
    files = {"metadata": _metadata(7_000_000), "tensors": _tensors(20_000)}
    with LocalHub() as local:
        for name in NAMES:
            local.add(name, {"model.safetensors": files[name[4:-2]], "config.json": b"{}"})
        yield local


def test_the_app_stays_under_2_gb_and_answers_others(hub: LocalHub, tmp_path: Path) -> None:
    # without the caps on metadata, which would come first
    caps = {"MANTISSA_METADATA_ENTRIES": "100000000", "MANTISSA_METADATA_BYTES": "100000000"}
    with serve(tmp_path, hub.url, **caps) as url:
        app = process_of(url)
        over = threading.Event()
        memory: list[int] = []
        badges: list[int] = []

        def watch() -> None:
            while not over.wait(0.5):
                memory.append(sum(_resident(each) for each in (app, *app.children(recursive=True))))
                with urllib.request.urlopen(f"{url}/badge/org/name.svg", timeout=60) as answer:
                    badges.append(answer.status)

        def call(name: str) -> str:
            _, accepted = post(url, "inspect", inspect(name), {"Cookie": f"mantissa={name}"})
            return read(url, "inspect", accepted["event_id"])

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with ThreadPoolExecutor() as visitors:
                said = list(visitors.map(call, NAMES))
        finally:
            over.set()
            watcher.join()
        assert all("event: error" in each for each in said[:2])
        assert max(memory) < MEMORY, max(memory)
        assert len(badges) > 2 and set(badges) == {200}, "others are answered meanwhile"


def _resident(process: psutil.Process) -> int:
    """Resident memory, without what it shares with the process it was forked from."""
    try:
        return int(process.memory_full_info().uss)
    except psutil.NoSuchProcess:
        return 0
