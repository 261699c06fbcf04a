"""Scans over several processes: the tables of one process, of a launch and of a cluster are the same bytes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from analyzers.core.errors import InvalidRequest
from analyzers.scan.ranks import Rank
from analyzers.scan.request import ScanRequest
from analyzers.scan.run import scan
from tests.dtype.checkpoints import normal, write
from tests.dtype.reports import exact, rounded, steady
from tests.hub import LocalHub
from tests.ports import free_port
from tests.scan.scans import ALL_SAMPLES, ROOT, command, launcher, run, start, summary, sums, table, write_list
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All samples, a bad id, a checkpoint that does not exist, and a local one."""
    folder = tmp_path_factory.mktemp("engines")
    large = normal(9_000, 4_096, seed=1).to(torch.bfloat16)
    write(folder / "large", {"model.embed_tokens.weight": large, "model.layers.0.mlp.up_proj.weight": normal(1_000, 1_000)})
    return write_list(folder / "list", [*ALL_SAMPLES, "no id", "sample:none", folder / "large"])


@pytest.fixture(scope="module")
def alone(listed: Path) -> dict[str, str]:
    """The tables of a scan by this process."""
    out = listed.parent / "one"
    done = scan(ScanRequest.of(str(listed), {"mode": "exact"}), out)
    assert done is not None and (done.processes, done.checkpoints, done.ok) == (1, len(ALL_SAMPLES) + 3, len(ALL_SAMPLES) + 1)
    assert rounded(table(out)["report"].iloc[-1]) == steady(exact(listed.parent / "large"))
    return sums(out)


# --- accelerate launch ---------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_launch_of_two_processes(listed: Path, alone: dict[str, str], tmp_path: Path) -> None:
    arguments = [*launcher(2, free_port()), str(listed), "--out", str(tmp_path), "--exact", "--json"]
    done = summary(start(arguments, {}))
    assert (done["processes"], done["scanned"]) == (2, len(ALL_SAMPLES) + 2)
    assert sums(tmp_path) == alone
    assert {path.name for path in tmp_path.iterdir()} == {"outcomes.jsonl", "outcomes-1.jsonl", *alone}, "each process scanned its share"
    assert summary(start(arguments, {}))["scanned"] == 0


def test_ranks() -> None:
    told = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert Rank.of(told) == Rank(1, 4, 1, 2)
    assert Rank.of({}) is None
    assert Rank.of({"RANK": "0", "WORLD_SIZE": "1"}) is None


def test_each_process_takes_its_gpu_before_cuda_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA reads which devices are visible once, when it is first asked."""
    seen: list[str | None] = []

    def ask() -> bool:
        seen.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return False

    monkeypatch.setattr(torch.cuda, "is_available", ask)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    monkeypatch.setattr(Rank, "of", lambda: Rank(1, 2, 1, 2))
    with pytest.raises(InvalidRequest, match="No CUDA device"):
        scan(ScanRequest.of("list", {}, device="cuda"), tmp_path / "out")
    assert seen == ["7"]


# --- dask.distributed ----------------------------------------------------------------------------------------------


@contextmanager
def cluster(workers: int, variables: dict[str, str]) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The address of a scheduler on loopback, and its workers: programs of their own, as on a real cluster."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    environ = os.environ | variables | {"PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__WORKER__DAEMON": "False"}
    quiet = {"cwd": ROOT, "env": environ, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    processes = [subprocess.Popen(scheduler, **quiet)]  # type: ignore[call-overload]
    try:
        processes += [subprocess.Popen(worker, **quiet) for _ in range(workers)]  # type: ignore[call-overload]
        yield address, processes[1:]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


@pytest.mark.exhaustive
def test_a_cluster(listed: Path, alone: dict[str, str], tmp_path: Path) -> None:
    with cluster(3, {}) as (address, _):
        done = run(str(listed), "--out", str(tmp_path), "--exact", "--json", "--dask", address)
    assert summary(done)["scanned"] == len(ALL_SAMPLES) + 2
    assert sums(tmp_path) == alone


@pytest.mark.exhaustive
def test_a_worker_that_is_killed_costs_its_tasks_only(hub: LocalHub, tmp_path: Path) -> None:
    weights = {"model.safetensors": (ROOT / "analyzers/language_models/samples/tiny-bf16/model.safetensors").read_bytes()}
    names = [f"org/m{number:02}" for number in range(12)]
    for name in names:
        hub.add(name, weights)
    hub.delay = 0.1
    listed, out = write_list(tmp_path / "list", names), tmp_path / "out"
    with cluster(2, {}) as (address, workers):
        arguments = command(str(listed), "--out", str(out), "--json", "--dask", address)
        process = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE)
        wait_until(lambda: sum(request.path.startswith("/api/models/") for request in hub.requests) >= 4)
        workers[0].send_signal(signal.SIGKILL)
        printed, _ = process.communicate(timeout=100)
    assert process.returncode == 0 and json.loads(printed)["ok"] == len(names)
    asked = [request.path for request in hub.requests if request.path.startswith("/api/models/")]
    assert len(names) < len(asked) <= 2 * len(names), "what the lost worker had begun, and nothing else, was asked for again"
    hub.delay = 0
    scan(ScanRequest.of(str(listed), {}), tmp_path / "whole")
    assert sums(out) == sums(tmp_path / "whole")


def test_a_scheduler_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzers.scan.cluster._CONNECT_SECONDS", 1)
    listed = write_list(tmp_path / "list", ALL_SAMPLES[:1])
    with pytest.raises(InvalidRequest, match="No dask scheduler answers"):
        scan(ScanRequest.of(str(listed), {}, dask=f"tcp://127.0.0.1:{free_port()}"), tmp_path / "out")
