"""SIGTERM, as a Space sends it: streams end with a sentence, and what was contributed is published."""

import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.attacks.calls import inspect, post, read, result
from tests.browser.conftest import serve
from tests.hub import LocalHub
from tests.hub.architectures import llama
from tests.hub.faults import Fault

DATASET, TOKEN = "org/library", "hf_" + "canaryCANARY" * 3


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    """A Hub with a slow model and a dataset that the app may write."""
    with LocalHub() as local:
        local.add("org/name", {"README.md": b""})
        local.add("org/slow", llama(lineage="bf16"))
        local.fault(Fault("org/slow/resolve", times=None, method="GET", delay=2))
        local.user(TOKEN, "server", writes=[DATASET])
        yield local


def test_sigterm_ends_streams_with_a_sentence_and_publishes(hub: LocalHub, tmp_path: Path) -> None:
    with (
        serve(tmp_path, hub.url, MANTISSA_DATASET=DATASET, MANTISSA_TOKEN=TOKEN, HF_HUB_DISABLE_XET="1") as url,
        ThreadPoolExecutor() as readers,
    ):
        (app,) = (child for child in psutil.Process().children() if "app.py" in child.cmdline())
        time.sleep(5)  # the dataset is restored, and the next turn to publish is a minute away
        saved = result(url, "add_label", ["org/name", "bf16", "section 3 of the paper", ""], {"Cookie": "mantissa=contributor"})
        assert saved["state"] == "saved here"
        calls = [post(url, "inspect", inspect("org/slow", seed))[1]["event_id"] for seed in range(5)]
        streams = [readers.submit(read, url, "inspect", call) for call in calls]
        time.sleep(3)
        began = time.monotonic()
        app.send_signal(signal.SIGTERM)
        assert app.wait(timeout=30) is not None
        assert time.monotonic() - began < 40
        for stream in streams:
            assert "The app is restarting: try again in a minute." in stream.result()
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    written = hub.files(DATASET, kind="dataset")
    assert any(path.startswith("labels") for path in written), written


def test_calls_after_sigterm_are_refused(hub: LocalHub, tmp_path: Path) -> None:
    with serve(tmp_path, hub.url) as url:
        (app,) = (child for child in psutil.Process().children() if "app.py" in child.cmdline())
        call = post(url, "inspect", inspect("org/slow"))[1]["event_id"]
        with urllib.request.urlopen(f"{url}/gradio_api/call/inspect/{call}", timeout=60) as stream:
            assert stream.readline()
            app.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert post(url, "inspect", inspect("org/slow", 1))[0] == 503
        app.wait(timeout=30)
