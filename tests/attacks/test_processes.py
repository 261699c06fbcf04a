"""Processes of analyses that the system kills, as it does where memory or processes run out: one sentence, and the next analysis runs."""

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.attacks.conftest import process_of
from tests.attacks.few_processes import AT_ONCE, command
from tests.attacks.http_calls import inspect, post, read, result
from tests.hub import LocalHub
from tests.hub.architectures import llama
from tests.hub.faults import Fault


@pytest.fixture(autouse=True, scope="module")
def _slow(hub: LocalHub) -> None:
    hub.add("org/slow", llama(lineage="bf16"))
    hub.fault(Fault("org/slow/resolve", times=None, method="GET", delay=3))


def _fork_server(app: str) -> psutil.Process:
    return next(child for child in process_of(app).children() if "forkserver" in " ".join(child.cmdline()))


def _analyses(app: str) -> set[psutil.Process]:
    return set(_fork_server(app).children())


def test_a_killed_analysis_ends_with_a_sentence(app: str) -> None:
    result(app, "dtype", inspect("sample:tiny-bf16"))
    waiting = _analyses(app)  # one that runs models is always ready
    with ThreadPoolExecutor() as readers:
        said = readers.submit(read, app, "dtype", post(app, "dtype", inspect("org/slow"))[1]["event_id"])
        while not (started := _analyses(app) - waiting):
            time.sleep(0.1)
        for process in started:
            process.kill()
        assert "MANTISSA_JOBS_MEMORY" in said.result()


@pytest.mark.exhaustive
def test_another_fork_server_is_started_for_one_that_was_killed(app: str) -> None:
    first = _fork_server(app)
    first.kill()
    assert result(app, "dtype", inspect("sample:tiny-tuned"))
    assert _fork_server(app) != first


@pytest.mark.exhaustive
def test_without_processes_left_there_is_a_sentence_and_the_next_analysis_runs() -> None:
    ended = subprocess.run(command(), capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr[-2000:]
    together, after = json.loads(ended.stdout)
    refused = [said for said in together if said]
    assert len(together) == AT_ONCE and refused
    assert all(said.startswith(("The analyses that run now need", "No process can be started")) for said in refused)
    assert after == ""
