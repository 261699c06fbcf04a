"""A scan in one process: its rows, going on where it was, errors, the Hub, and what the command says."""

import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from analyzers.__main__ import main
from tests.cases import few
from tests.dtype.checkpoints import normal, write
from tests.dtype.reports import exact, inspect, rounded, steady
from tests.hub import Fault, LocalHub
from tests.scan.scans import ALL_SAMPLES, ROOT, command, finished, sums, table, write_list
from tests.waiting import wait_until

WEIGHTS = save({"model.layers.0.mlp.up_proj.weight": normal(64, 64).to(torch.bfloat16)})


def only_progress(errors: str) -> bool:
    """Whether standard error is empty but for the lines of progress every ten seconds, which a busy machine makes appear."""
    return re.fullmatch(r"(\d+ of \d+ checkpoints?, \d+ errors? in this run\n)*", errors) is not None


def scan(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """The command in this process, with --json."""
    status = main(["scan", *map(str, arguments), "--json"])
    captured = capsys.readouterr()
    assert status == 0 and only_progress(captured.err)
    found = json.loads(captured.out)
    assert isinstance(found, dict)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The sentence of a scan that ends with status 2."""
    try:
        status = main(["scan", *map(str, arguments)])
    except SystemExit as stop:
        status = int(str(stop.code))
    captured = capsys.readouterr()
    assert (status, captured.out) == (2, "") and captured.err.count("\n") == 1 and captured.err.strip().isprintable()
    return captured.err


def test_rows_are_the_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "model", {"model.layers.0.mlp.up_proj.weight": normal(64, 64)})
    asked: list[str | Path] = [*ALL_SAMPLES[:4], "no id at all", folder, "sample:nope"]
    done = scan(capsys, write_list(tmp_path / "list", asked), "--out", tmp_path / "out", "--exact")
    assert (done["checkpoints"], done["ok"], done["errors"]) == (7, 5, {"CheckpointNotFound": 1, "InvalidReference": 1})
    rows, tensors = table(tmp_path / "out"), table(tmp_path / "out", "tensors")
    assert rows["asked"].tolist() == [str(each) for each in asked] and rows["line"].tolist() == list(range(1, 8))
    assert rows["status"].tolist() == ["ok"] * 4 + ["error", "ok", "error"]
    assert "is not a model id" in rows["message"][4] and "no built-in sample" in rows["message"][6]
    for position in (0, 1, 2, 3, 5):
        row, report = rows.loc[position], exact(asked[position])
        stored = rounded(str(row["report"]))
        expected = steady(report)
        assert stored == expected and row["id"] == report.id
        assert (row["ref"], row["commit"], row["mode"]) == (report.checkpoint.ref, report.checkpoint.commit, "exact")
        assert (row["lineage"], row["training"]) == (report.lineage.verdict, report.training.verdict)
        assert row["abs_max"] == report.extremes.abs_max and row["fp16_overflow"] == report.counts.fp16_overflow
        mine = tensors[tensors["position"] == position]
        assert mine["name"].tolist() == [tensor.name for tensor in report.tensors]
        assert mine["norm"].tolist() == [tensor.norm for tensor in report.tensors]
        assert mine["lineage"].tolist() == [tensor.lineage.verdict for tensor in report.tensors]
        assert mine["shape"].tolist() == ["x".join(map(str, tensor.shape)) for tensor in report.tensors]
    assert set(tensors["position"]) == {0, 1, 2, 3, 5}


def test_a_finished_scan_does_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = write_list(tmp_path / "list", [*ALL_SAMPLES[:2], "bad id"])
    out = tmp_path / "deep" / "out"
    assert scan(capsys, listed, "--out", out)["scanned"] == 2
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    again = scan(capsys, listed, "--out", out)
    assert (again["scanned"], again["done_before"]) == (0, 2)
    assert main(["scan", str(listed), "--out", str(out)]) == 0
    assert "Nothing to do: 2 checkpoints done before" in capsys.readouterr().out
    (out / "tensors.parquet").unlink()
    scan(capsys, listed, "--out", out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_changed_list_is_followed_and_changed_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed, out = tmp_path / "list", tmp_path / "out"
    write_list(listed, ALL_SAMPLES[:2])
    scan(capsys, listed, "--out", out)
    write_list(listed, [ALL_SAMPLES[2], ALL_SAMPLES[0]])
    assert scan(capsys, listed, "--out", out)["scanned"] == 1
    assert table(out)["asked"].tolist() == [ALL_SAMPLES[2], ALL_SAMPLES[0]]
    for options in (["--exact"], ["--budget", "1MB"], ["--include", "mlp"], ["--exclude", "mlp"], ["--seed", "1"]):
        assert "other options" in refused(capsys, listed, "--out", out, *options)
    lines = (out / "outcomes.jsonl").read_text().splitlines()
    (out / "outcomes.jsonl").write_text("\n".join([*lines[:-1], lines[-1].replace('{"analyzer"', '{"analyzer')]) + "\n")
    assert f'line of "{ALL_SAMPLES[2]}" in outcomes.jsonl is damaged' in refused(capsys, listed, "--out", out)


def test_options_reach_each_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--budget", "50KB", "--include", "mlp", "--exclude", "down", "--seed", "3"]
    scan(capsys, write_list(tmp_path / "list", ALL_SAMPLES[:3]), "--out", tmp_path / "out", "--jobs", "2", *options)
    rows = table(tmp_path / "out")
    expected = [inspect(name, budget=50_000, include="mlp", exclude="down", seed=3) for name in ALL_SAMPLES[:3]]
    assert [rounded(text) for text in rows["report"]] == [steady(report) for report in expected]


@pytest.mark.parametrize("options", [["--exact", "--budget", "1MB"], ["--jobs", "65"], ["--exclude", "a{99999}{99}"], ["--device", "cuda"]])
def test_bad_options_before_any_work(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, write_list(tmp_path / "list", ALL_SAMPLES), "--out", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("source", ["/no/list", "", "\x1b[31m", "org:name"])
def test_bad_lists(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, source, "--out", tmp_path / "new" / "out")
    (tmp_path / "old").mkdir()
    refused(capsys, source, "--out", tmp_path / "old")
    assert list(tmp_path.rglob("*")) == [tmp_path / "old"], "a list that cannot be read leaves nothing behind"


def test_from_the_hub(hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Passing errors are tried again, others are not."""
    for name in ("org/a", "org/b"):
        hub.add(name, {"model.safetensors": WEIGHTS, "config.json": b"{}"})
    hub.add("org/gated", {"model.safetensors": WEIGHTS}, gated="auto")
    hub.add("org/empty", {"README.md": b""})
    hub.fault(Fault("^/api/models/org/b", times=None, status=500))
    out, listed = tmp_path / "out", write_list(tmp_path / "list", ["org/a", "org/b", "org/gated", "org/empty"])
    done = scan(capsys, listed, "--out", out)
    assert done["errors"] == {"AccessDenied": 1, "HubUnreachable": 1, "NoWeights": 1} and (done["ok"], done["transient"]) == (1, 1)
    hub.clear_faults()
    hub.requests.clear()
    done = scan(capsys, listed, "--out", out)
    assert (done["scanned"], done["ok"], done["checkpoints"]) == (1, 2, 4) and _asked(hub) == {"org/b"}


def test_an_unexpected_error_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("/secret/path")

    listed, out = write_list(tmp_path / "list", ALL_SAMPLES[:1]), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("analyzers.scan.one_checkpoint.Inspection", fail)
        assert scan(capsys, listed, "--out", out)["errors"] == {"Unexpected": 1}
    assert "ZeroDivisionError" in table(out)["message"][0] and "secret" not in table(out)["message"][0]
    assert scan(capsys, listed, "--out", out)["ok"] == 1


@pytest.mark.parametrize(("number", "status", "word"), few([(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")], {1}))
def test_interrupted(
    number: signal.Signals, status: int, word: str, hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signal while the Hub keeps one checkpoint waiting: at once, and the finished one is kept."""
    hub.add("org/fast", {"model.safetensors": WEIGHTS, "config.json": b"{}"})
    hub.add("org/slow", {"model.safetensors": WEIGHTS, "config.json": b"{}"})
    fault = hub.fault(Fault("slow", times=None, delay=200))
    out = tmp_path / "out"
    arguments = command(str(write_list(tmp_path / "list", ["org/fast", "org/slow"])), "--out", str(out))
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: fault.hits > 0 and "org/fast" in finished(out))
        process.send_signal(number)
        said, errors = process.communicate(timeout=150)  # before the Hub answers
    assert (process.returncode, said) == (status, "")
    last = errors.splitlines(keepends=True)[-1]
    assert last.startswith(f"{word}: what was finished is kept") and only_progress(errors.removesuffix(last))
    hub.clear_faults()
    hub.requests.clear()
    done = scan(capsys, tmp_path / "list", "--out", out)
    assert (done["ok"], done["done_before"]) == (2, 1) and not any("fast" in request.path for request in hub.requests)


def test_killed_at_any_point(hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGKILL again and again: nothing finished is asked for again, and the tables are those of a scan that was left alone."""
    names = [f"org/m{number:02}" for number in range(6)]
    for name in names:
        hub.add(name, {"model.safetensors": WEIGHTS, "config.json": b"{}"})
    listed, out = write_list(tmp_path / "list", names), tmp_path / "out"
    hub.delay = 0.1
    kills, status = 0, -1
    while status != 0:
        hub.requests.clear()
        done_before = finished(out) if kills else set()
        with subprocess.Popen(command(str(listed), "--out", str(out), "--jobs", "2"), cwd=ROOT, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and len(_asked(hub)) < 1 + kills:
                time.sleep(0.005)
            if kills < 3:
                time.sleep(0.1 * kills)
                process.kill()
            status = process.wait(timeout=100)
        assert not _asked(hub) & done_before
        assert status in (0, -signal.SIGKILL)
        kills += status != 0
    assert kills >= 2
    assert list(table(out)["asked"]) == names and set(table(out)["status"]) == {"ok"}
    hub.delay = 0
    scan(capsys, listed, "--out", tmp_path / "whole")
    assert sums(out) == sums(tmp_path / "whole")


def _asked(hub: LocalHub) -> set[str]:
    """The models that the Hub was asked about."""
    paths = [request.path for request in hub.requests if request.path.startswith("/api/models/")]
    return {"/".join(path.split("/")[3:5]) for path in paths}


def test_two_scans_do_not_share_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], hub: LocalHub) -> None:
    hub.add("org/slow", {"model.safetensors": WEIGHTS, "config.json": b"{}"})
    fault = hub.fault(Fault("slow", times=None, delay=200))
    listed, out = write_list(tmp_path / "list", ["org/slow"]), tmp_path / "out"
    with subprocess.Popen(command(str(listed), "--out", str(out)), cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: fault.hits > 0)
        assert "Another scan" in refused(capsys, listed, "--out", out)
        process.kill()
