"""Scans over several processes: the same tables, byte for byte, by one, two and three of them and by two hosts."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import torch

from analyzers import limits
from analyzers.checkpoints import Access
from analyzers.dtype_detection import DtypeRequest, Inspection, Partial
from analyzers.errors import InvalidRequest, ProcessLost
from analyzers.scan.launched import Launched, _Unpickler
from analyzers.scan.outcome import Outcome
from analyzers.scan.relaunch import torchrun
from analyzers.scan.request import ScanRequest
from analyzers.scan.run import scan
from analyzers.scan.store import Launch, Store
from analyzers.scan.team import Done
from tests.dtype_detection.checkpoints import normal, write
from tests.dtype_detection.reports import exact, steady
from tests.scan.scans import ALL_SAMPLES, ROOT, command, free_port, launcher, log, run, start, summary, sums, table, write_list

PARTS = {"MANTISSA_SCAN_PART_BYTES": "25000000"}
NAMES = (f"mantissa-{os.getpid()}-a", f"mantissa-{os.getpid()}-b")


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All samples, a bad id, a checkpoint that is not there, and a local one whose first tensor alone has two spans."""
    folder = tmp_path_factory.mktemp("launched")
    large = normal(9_000, 4_096, seed=1).to(torch.bfloat16)
    write(folder / "large", {"model.embed_tokens.weight": large, "model.layers.0.mlp.up_proj.weight": normal(1_000, 1_000)})
    return write_list(folder / "list", [*ALL_SAMPLES, "no id", "sample:none", folder / "large"])


@pytest.fixture(scope="module")
def alone(listed: Path) -> dict[str, str]:
    """What one process makes of the list: this one."""
    out = listed.parent / "one"
    done = scan(ScanRequest.of(str(listed), {"mode": "exact"}), out)
    assert done is not None and (done.processes, done.checkpoints, done.ok) == (1, len(ALL_SAMPLES) + 3, len(ALL_SAMPLES) + 1)
    assert json.loads(table(out)["report"].iloc[-1]) == steady(exact(listed.parent / "large"))
    return sums(out)


def test_several_processes(listed: Path, alone: dict[str, str], tmp_path: Path) -> None:
    done = summary(start([*launcher(3, free_port()), str(listed), "--out", str(tmp_path), "--exact", "--json"], PARTS))
    assert (done["processes"], done["scanned"]) == (3, len(ALL_SAMPLES) + 2)
    assert sums(tmp_path) == alone
    assert len({line["process"] for line in log(tmp_path)}) > 1


def _namespaces() -> bool:
    """Whether this machine lets us make network namespaces."""
    if shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", NAMES[0]], capture_output=True).returncode:
        return False
    subprocess.run(["ip", "netns", "del", NAMES[0]], capture_output=True, check=True)
    return True


HOSTS = "two namespaces" if _namespaces() else "two addresses of loopback"


@pytest.fixture
def hosts() -> Iterator[tuple[list[str], list[str], str]]:
    """How to start a command on each of two hosts, and the address of the first."""
    if HOSTS != "two namespaces":
        yield [], [], "127.0.0.1"
        return
    first, second = NAMES
    try:
        for name in NAMES:
            subprocess.run(["ip", "netns", "add", name], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        subprocess.run(
            ["ip", "link", "add", "mantissa0", "netns", first, "type", "veth", "peer", "name", "mantissa0", "netns", second], check=True
        )
        for name, address in ((first, "10.231.7.1/24"), (second, "10.231.7.2/24")):
            subprocess.run(["ip", "-n", name, "addr", "add", address, "dev", "mantissa0"], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "mantissa0", "up"], check=True)
        yield ["ip", "netns", "exec", first], ["ip", "netns", "exec", second], "10.231.7.1"
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.mark.parametrize("where", [HOSTS])
def test_two_hosts(where: str, hosts: tuple[list[str], list[str], str], listed: Path, alone: dict[str, str], tmp_path: Path) -> None:
    """One process on each; the second is given another folder, and never makes it: results travel, files need not."""
    first, second, address = hosts
    port, processes = free_port(), []
    for rank, prefix in enumerate((first, second)):
        options = ["--num_machines", "2", "--machine_rank", str(rank), "--main_process_ip", address, "--rdzv_backend", "static"]
        arguments = [*prefix, *launcher(2, port, *options), str(listed), "--out", str(tmp_path / f"host-{rank}"), "--exact", "--json"]
        processes.append(subprocess.Popen(arguments, cwd=ROOT, env=os.environ | PARTS, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    said = []
    for process in processes:
        try:
            out, errors = process.communicate(timeout=100)
        finally:
            process.kill()
        assert process.returncode == 0, errors.decode()[-2000:]
        said.append(out)
    assert json.loads(said[0])["processes"] == 2 and said[1] == b"", where
    assert sums(tmp_path / "host-0") == alone and not (tmp_path / "host-1").exists()
    assert {line["process"] for line in log(tmp_path / "host-0")} == {0, 1}


# --- a process that dies -------------------------------------------------------------------------------------------


def test_a_process_that_never_comes(tmp_path: Path) -> None:
    """The first of two, started alone: it does all it can, gives the other up in bounded time, and keeps what is finished."""
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environ["MANTISSA_SCAN_SILENCE_SECONDS"] = "1"
    listed, out = write_list(tmp_path / "list", ALL_SAMPLES[:3]), tmp_path / "out"
    done = run(str(listed), "--out", str(out), environ=environ)  # in bounded time
    # It may have finished all before the other was missed: then there is nobody to wait for.
    assert done.returncode in (0, 2) and "Traceback" not in done.stderr
    again = scan(ScanRequest.of(str(listed), {}), out)
    assert again is not None and again.ok == 3


def test_the_first_process_dies(tmp_path: Path) -> None:
    """The second of two is told, or notices, and ends."""
    port = free_port()
    environ = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "MANTISSA_SCAN_SILENCE_SECONDS": "2"}
    with Serving(port) as store:  # a first process that says which checkpoints there are, and then nothing any more
        store.put("keys", json.dumps(["sample:tiny-bf16"]).encode())
        arguments = command(str(tmp_path / "no-list"), "--out", str(tmp_path / "out"))
        with subprocess.Popen(arguments, cwd=ROOT, env=environ | {"RANK": "1"}, stderr=subprocess.PIPE, text=True) as process:
            end = time.monotonic() + 50
            while process.poll() is None and not store.has("done/0") and time.monotonic() < end:
                time.sleep(0.05)
            errors = process.communicate(timeout=100)[1]
    assert process.returncode == 2 and "silent for 2 seconds" in errors and errors.count("\n") == 1
    assert not (tmp_path / "out").exists()


class Serving(Store):
    """A store served by this process, to be closed."""

    def __init__(self, port: int) -> None:
        super().__init__(Launch(0, 2, 0, 1, "127.0.0.1", port))

    def __enter__(self) -> "Serving":
        return self

    def __exit__(self, *_: object) -> None:
        del self._store


@pytest.fixture
def teams(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Launched, Launched]]:
    """Two processes' teams in one process."""
    monkeypatch.setattr(limits, "SCAN_SILENCE_SECONDS", 5)
    first = Launch(0, 2, 0, 1, "127.0.0.1", free_port())
    pair = Launched(first), Launched(replace(first, rank=1))
    yield pair
    for team in pair:
        team._left.set()
        team._beating.join()


def _open(model: str) -> Inspection:
    return Inspection(DtypeRequest(model=model, mode="exact"), Access(local=True))


def _count(inspection: Inspection, part: int, parts: int) -> Partial:
    *_, partial = inspection.count(part, parts)
    assert isinstance(partial, Partial)
    return partial


@pytest.mark.parametrize("fails", [False, True])
def test_parts_are_taken_over(
    fails: bool, teams: tuple[Launched, Launched], listed: Path, alone: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner waits until the helper has taken a part; where the helper fails at it, the owner counts it after all."""
    monkeypatch.setattr(limits, "SCAN_PART_BYTES", 20_000_000)
    owner, helper = teams
    model = str(listed.parent / "large")
    taken, helped = threading.Event(), []

    def slow(inspection: Inspection, part: int, parts: int) -> Partial:
        assert taken.wait(30)
        return _count(inspection, part, parts)

    def take(inspection: Inspection, part: int, parts: int) -> Partial:
        helped.append(part)
        taken.set()
        if fails:
            raise InvalidRequest("the file is gone")
        return _count(inspection, part, parts)

    thread = threading.Thread(target=helper.help, args=(_open, take))
    thread.start()
    with _open(model) as inspection:
        partials = owner.share(model, inspection, slow)
        report = inspection.report(partials)
    owner.begin([])
    thread.join(30)
    assert not thread.is_alive() and helped and len(partials) == inspection.parts(limits.SCAN_PART_BYTES) == 3
    assert steady(report) == steady(exact(model))


def test_another_file_of_the_same_name_is_not_helped_with(
    teams: tuple[Launched, Launched], listed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits, "SCAN_PART_BYTES", 20_000_000)
    owner, helper = teams
    other = write(tmp_path, {"model.embed_tokens.weight": normal(64, 64)})
    opened: list[str] = []

    def elsewhere(model: str) -> Inspection:
        opened.append(model)
        return _open(str(other))

    def never(inspection: Inspection, part: int, parts: int) -> Partial:
        raise AssertionError("counted another file")

    def slow(inspection: Inspection, part: int, parts: int) -> Partial:
        end = time.monotonic() + 10
        while not opened and time.monotonic() < end:
            time.sleep(0.01)
        return _count(inspection, part, parts)

    thread = threading.Thread(target=helper.help, args=(elsewhere, never))
    thread.start()
    with _open(str(listed.parent / "large")) as inspection:
        assert len(owner.share("/large", inspection, slow)) == 3
    owner.begin([])
    thread.join(30)
    assert not thread.is_alive() and opened == ["/large"]


def test_outcomes_travel_whole(teams: tuple[Launched, Launched]) -> None:
    first, second = teams
    first.begin(["a", "b", "c"])
    assert [second.take(), first.take(), second.take(), first.take(), second.take()] == ["a", "b", "c", None, None]
    sent = [Done(Outcome(key, report="é" * 3_000_000 if key == "b" else "{}"), 0.5, 1, 0) for key in ("b", "a", "c")]
    for done in sent:
        second.give(done)
    assert [done for done in first.done() if done is not None] == sent
    second.help(_open, _count)


def test_who_is_silent_is_lost(teams: tuple[Launched, Launched], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = teams
    second._left.set()
    second._beating.join()
    monkeypatch.setattr(limits, "SCAN_SILENCE_SECONDS", 1)
    first.begin(["a"])
    start = time.monotonic()
    with pytest.raises(ProcessLost, match="Process 1 of the scan has been silent"):
        list(first.done())
    assert time.monotonic() - start < 20 and first.stopped
    with pytest.raises(ProcessLost):
        first.check()


# --- what a launcher and a store may say ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "-1", "WORLD_SIZE": "2"}, {"RANK": "x", "WORLD_SIZE": "2"}, {"MASTER_PORT": "99999"},
        {"MASTER_ADDR": None}, {"LOCAL_RANK": "5"},
    ],
)  # fmt: skip
def test_contradictory_launches(variables: dict[str, str | None]) -> None:
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234"} | variables
    with pytest.raises(InvalidRequest, match="do not describe a launched process"):
        Launch.of({name: value for name, value in told.items() if value is not None})


def test_launches() -> None:
    told = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1234"}
    assert Launch.of(told) == Launch(1, 4, 1, 2, "a", 1234)
    assert Launch.of({}) is None and Launch.of(told | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}) is None


def test_nothing_but_parts_is_constructed(listed: Path) -> None:
    with _open("sample:tiny-bf16") as inspection:
        partial = _count(inspection, 0, 2)
        back = _Unpickler(BytesIO(pickle.dumps(partial))).load()
        assert steady(inspection.report([back, _count(inspection, 1, 2)])) == steady(exact("sample:tiny-bf16"))

    class Gadget:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, ("true",)

    for hostile in (Gadget(), Path("/"), [os.getcwd], {"a": subprocess.Popen}, Launched.check, summary):
        with pytest.raises(pickle.UnpicklingError, match="is no piece of a part"):
            _Unpickler(BytesIO(pickle.dumps(hostile))).load()


ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"]


def test_what_accelerate_leaves_out_is_started(listed: Path, alone: dict[str, str], tmp_path: Path) -> None:
    """accelerate itself starts a single process here, for want of GPUs."""
    done = start([*ACCELERATE, "-m", "analyzers", "scan", str(listed), "--out", str(tmp_path), "--exact", "--json"], PARTS)
    assert summary(done)["processes"] == 2 and "torchrun takes over" in done.stderr
    assert sums(tmp_path) == alone


def test_accelerate_on_the_cpu_leaves_the_same_out(tmp_path: Path) -> None:
    """What a process that accelerate starts finds, and would become."""
    witness = tmp_path / "witness.py"
    witness.write_text(
        "import json, sys\nfrom analyzers.scan.relaunch import parent_words, started_alone, torchrun\n"
        "print(json.dumps([started_alone(), torchrun(parent_words(), sys.orig_argv[1:])]))"
    )
    done = start([*ACCELERATE, "--cpu", str(witness), "--out", "out"], {"PYTHONPATH": str(ROOT)})
    several = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--no_python"]
    assert json.loads(done.stdout) == [True, [*several, sys.executable, str(witness), "--out", "out"]]


COMMAND = ["-m", "analyzers", "scan", "list", "--num_processes", "9", "--out", "out"]
ADDRESS = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--num_processes 2", "--standalone --nproc_per_node=2"),
        ("--cpu --num-processes=3 --mixed_precision no", "--standalone --nproc_per_node=3"),
        (
            "--num_machines 2 --num_processes 8 --machine_rank 1 --main_process_ip 10.0.0.1 --main_process_port 29500",
            "--nnodes=2 --node_rank=1 --master_addr=10.0.0.1 --master_port=29500 --nproc_per_node=4",
        ),
        ("", None), ("--num_processes 1", None), ("--num_processes x", None), ("--num_processes -3", None), ("--num_process 2", None),
        ("--num_processes 2 --num_machines 3", None), ("--num_processes 2 --num_machines 0", None), ("--config_file x.yaml", None),
    ],
)  # fmt: skip
def test_what_was_asked_of_accelerate(options: str, expected: str | None) -> None:
    words = ["python", "/bin/accelerate", "launch", *options.split(), *COMMAND]
    several = torchrun(words, COMMAND, ADDRESS)
    if expected is None:
        assert several is None
    else:
        assert several == [sys.executable, "-m", "torch.distributed.run", *expected.split(), "--no_python", sys.executable, *COMMAND]
    assert torchrun(["bash", "-c", *options.split()], COMMAND, ADDRESS) is None and torchrun([], COMMAND, ADDRESS) is None


def test_each_process_takes_its_device_before_cuda_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA reads which devices are visible once, when it is first asked."""
    seen: list[str | None] = []

    def ask() -> bool:
        seen.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return False

    monkeypatch.setattr(torch.cuda, "is_available", ask)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    monkeypatch.setattr(Launch, "of", lambda: Launch(1, 2, 1, 2, "127.0.0.1", free_port()))
    with pytest.raises(InvalidRequest, match="no CUDA device"):
        scan(ScanRequest.of("list", {}, device="cuda"), tmp_path / "out")
    assert seen == ["7"]


def test_accelerate_that_starts_one_process_is_pointed_out(tmp_path: Path) -> None:
    arguments = [str(write_list(tmp_path / "list", ALL_SAMPLES[:1])), "--out", str(tmp_path / "out")]
    done = run(*arguments, environ={"ACCELERATE_USE_CPU": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
    assert done.returncode == 0 and "--multi_gpu" in done.stderr
