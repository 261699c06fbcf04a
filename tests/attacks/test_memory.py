"""Whatever repositories hold, the app stays small and answers others: analyses run in processes whose memory is limited together."""

import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.attacks.conftest import PATCHED_APP, process_of
from tests.attacks.headers import framed
from tests.attacks.http_calls import inspect, post, read
from tests.browser.conftest import serve
from tests.cases import few
from tests.hub import LocalHub
from tests.hub.architectures import llama

MEMORY, JOBS = 2_000_000_000, 600_000_000
# Without the caps on metadata, parsing has to be stopped by its memory.
WITHOUT_CAPS = " ".join(f"analyzers.checkpoints.formats.safetensors_header.METADATA_{name}=100000000" for name in ("ENTRIES", "BYTES"))


def _metadata(entries: int) -> bytes:
    return framed(b'{"__metadata__":{' + b",".join(b'"%d":""' % number for number in range(entries)) + b"}}")


def _tensors(many: int, layers: int) -> bytes:
    line = b'"layers.%d.experts.%d.weight":{"dtype":"BF16","shape":[4,8],"data_offsets":[%d,%d]}'
    return framed(b"{" + b",".join(line % (i % layers, i, 64 * i, 64 * i + 64) for i in range(many)) + b"}", bytes(64 * many))


@pytest.fixture
def hub(part: int) -> Iterator[LocalHub]:
    """A Hub with hostile headers, and one with as many tensors as the largest known checkpoint, in 60 layers.

    A smaller test has one ``part``-th of the memory and of the headers, and less of what is read to its end.
    """
    with LocalHub() as local:
        for name, data in {
            "metadata": _metadata(7_000_000 // part),
            "tensors": _tensors(200_000 // part, 200_000 // part),
            "largest": _tensors(92_000 // part**2, 60),
        }.items():
            local.add(f"org/{name}", {"model.safetensors": data, "config.json": b"{}"})
        yield local


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("part", "caps", "modes"),
    few([(1, WITHOUT_CAPS, ("quick", "exact")), (1, "", ("quick", "exact")), (5, WITHOUT_CAPS, ("quick",))], {2}),
)
def test_the_app_stays_under_2_gb_and_answers_others(hub: LocalHub, tmp_path: Path, part: int, caps: str, modes: tuple[str, ...]) -> None:
    limits = {"MANTISSA_JOB_SECONDS": "240", "MANTISSA_JOBS_MEMORY": str(JOBS // part)}
    with serve(tmp_path, hub.url, PATCHED_APP, PATCHED=caps, **limits) as url:
        app = process_of(url)
        over = threading.Event()
        web: list[int] = []
        memory: list[int] = []
        badges: list[int] = []

        def watch() -> None:
            while not over.wait(0.5):
                web.append(_resident(app))
                memory.append(web[-1] + sum(_resident(each) for each in app.children(recursive=True)))
                with urllib.request.urlopen(f"{url}/badge/org/name.svg", timeout=120) as answer:
                    badges.append(answer.status)

        def call(name: str, number: int, mode: str) -> str:
            values = inspect(f"org/{name}", number)
            _, accepted = post(url, "dtype", [values[0], mode, *values[2:]], {"Cookie": f"mantissa={name}-{number}-{mode}"})
            return read(url, "dtype", accepted["event_id"])

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with ThreadPoolExecutor() as visitors:
                calls = [
                    visitors.submit(call, name, number, mode)
                    for name, mode in (("metadata", "quick"), *(("tensors", mode) for mode in modes))
                    for number in range(2)
                ]
                said = [each.result() for each in calls]
            largest = call("largest", 0, "quick")
        finally:
            over.set()
            watcher.join()
        assert all("event: error" in each for each in said[:2])
        assert all("event: complete" in each or "MANTISSA_JOB" in each for each in said[2:]), [each[-300:] for each in said[2:]]
        assert "event: complete" in largest, largest[-500:]
        assert max(memory) < MEMORY - JOBS + JOBS // part, max(memory)
        assert max(web) - web[0] < 100_000_000, web
        assert len(badges) > 2 and set(badges) == {200}, "others are answered meanwhile"


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_many_of_the_largest_checkpoints_are_compared_on_the_page(tmp_path: Path) -> None:
    with LocalHub(delay=0.02) as local:
        local.add("org/large", llama(lineage="bf16"))
        with serve(tmp_path, local.url, MANTISSA_JOB_SECONDS="300") as url:
            values = ["org/large", ["org/large"] * 6, "quick", "100MB", "", "", "", 0, 0.001, False]
            _, accepted = post(url, "sparsity", values)
            said = read(url, "sparsity", accepted["event_id"])
            assert "event: complete" in said, said[-500:]


def _resident(process: psutil.Process) -> int:
    """Resident memory, without what it shares with the process it was forked from."""
    try:
        return int(process.memory_full_info().uss)
    except psutil.NoSuchProcess:
        return 0
