"""SIGTERM, as a Space sends it: streams end with a sentence, and what was contributed is published."""

import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.attacks.conftest import process_of
from tests.attacks.http_calls import inspect, post, result
from tests.browser.conftest import serve
from tests.hub import LocalHub
from tests.hub.architectures import llama
from tests.hub.faults import Fault
from tests.library import DATASET, TOKEN
from tests.library.test_publishing import published


def _wait_until_restored(url: str) -> None:
    while urllib.request.urlopen(f"{url}/healthz", timeout=120).read() != b"ok":
        time.sleep(0.1)


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    """A Hub with a slow model and a dataset that the app may write."""
    with LocalHub() as local:
        local.add("org/name", {"README.md": b""})
        local.add("org/slow", llama(lineage="bf16"))
        local.fault(Fault("org/slow/resolve", times=None, method="GET", delay=2))
        local.user(TOKEN, "server", writes=[DATASET])
        yield local


def test_sigterm_ends_streams_with_a_sentence_refuses_calls_and_publishes(hub: LocalHub, tmp_path: Path) -> None:
    with (
        serve(tmp_path, hub.url, MANTISSA_DATASET=DATASET, MANTISSA_TOKEN=TOKEN, HF_HUB_DISABLE_XET="1") as url,
        ThreadPoolExecutor() as readers,
    ):
        app = process_of(url)
        _wait_until_restored(url)
        saved = result(
            url, "add_label", ["org/name", "bf16", "section 3 of the paper", "We trained in bf16."], {"Cookie": "mantissa=contributor"}
        )
        assert saved["state"] == "saved here"
        calls = [post(url, "dtype", inspect("org/slow", seed))[1]["event_id"] for seed in range(5)]
        reading = [urllib.request.urlopen(f"{url}/gradio_api/call/dtype/{call}", timeout=120) for call in calls]
        for stream in reading:
            assert stream.readline()
        app.send_signal(signal.SIGTERM)
        streams = [readers.submit(stream.read) for stream in reading]
        status = 200
        while status == 200:
            status, _ = post(url, "dtype", inspect("org/slow", 9))
        assert status == 503
        assert app.wait(timeout=120) is not None
        for ended in streams:
            assert "The app is restarting: try again later." in ended.result().decode()
        for stream in reading:
            stream.close()
    assert saved["item"]["id"] in published(hub)


@pytest.mark.exhaustive
@pytest.mark.parametrize("status", [429, 500])
def test_a_label_is_published_at_the_end_though_the_hub_asked_to_wait(hub: LocalHub, tmp_path: Path, status: int) -> None:
    dataset = {"MANTISSA_DATASET": DATASET, "MANTISSA_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
    with serve(tmp_path, hub.url, **dataset, MANTISSA_EPHEMERAL="1") as url:
        _wait_until_restored(url)
        hub.fault(Fault("/commit/main$", times=None, status=status, headers={"Retry-After": "86400"}))
        saved = result(
            url, "add_label", ["org/name", "bf16", "section 3 of the paper", "We trained in bf16."], {"Cookie": "mantissa=contributor"}
        )
        assert saved["state"] == "saved here" and "did not answer" not in saved["note"]
        health = urllib.request.urlopen(f"{url}/healthz", timeout=120).read()
        assert health.startswith(b"degraded: The Hub ")
        hub.clear_faults()
        app = process_of(url)
        app.send_signal(signal.SIGTERM)
        assert app.wait(timeout=120) is not None
    assert saved["item"]["id"] in published(hub)
