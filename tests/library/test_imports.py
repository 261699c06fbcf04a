"""``mantissa library import DIR``: what scan found on the local Hub is in the library once, as it was recorded, and nothing else is."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas
import pytest
import torch
from safetensors.torch import save

from analyzers.__main__ import main as analyzers
from analyzers.core import limits
from analyzers.core.untrusted_json import parse_model
from analyzers.dtype import DtypeReport
from components.library import Library, open_library
from components.store import key_of
from mantissa.__main__ import main
from tests.dtype.checkpoints import normal
from tests.hub import LocalHub

FILES = {"model.safetensors": save({"model.layers.0.mlp.up_proj.weight": normal(64, 64).to(torch.bfloat16)}), "config.json": b"{}"}
DATASET, TOKEN = "org/library", "hf_" + "canaryCANARY" * 3


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


@pytest.fixture
def scanned(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a scan of two public models, one that only its token may read, a sample, a local folder, and nothing at all."""
    for name in ("org/one", "org/two"):
        hub.add(name, FILES)
    hub.add("org/gated", FILES, gated="auto")
    hub.user(TOKEN, "ann", ["org/gated"], writes=[DATASET])
    local = tmp_path / "local"
    local.mkdir()
    for name, content in FILES.items():
        (local / name).write_bytes(content)
    listed = tmp_path / "list"
    listed.write_text(f"org/one\norg/two\norg/gated\nsample:tiny-bf16\n{local}\norg/none\n", encoding="utf-8")
    with monkeypatch.context() as operator:
        operator.setenv("HF_TOKEN", TOKEN)
        assert analyzers(["scan", str(listed), "--out", str(tmp_path / "scan")]) == 0
    monkeypatch.setenv("MANTISSA_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("MANTISSA_DATASET", raising=False)
    return tmp_path / "scan"


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[Path], Ended]:
    """Runs the command in this process."""

    def run(folder: Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["mantissa", "library", "import", str(folder)])
        capsys.readouterr()
        return Ended(main(), *capsys.readouterr())

    return run


def results(library: Library) -> dict[str, Any]:
    return {row.models[0]: row for row in library.results()}


def outcomes(folder: Path) -> dict[str, dict[str, Any]]:
    """The lines of a scan's outcomes, by checkpoint."""
    lines = map(json.loads, (folder / "outcomes.jsonl").read_text(encoding="utf-8").splitlines())
    return {line["key"]: line for line in lines if "key" in line}


def add(folder: Path, *lines: dict[str, Any]) -> None:
    """Append lines of outcomes."""
    with (folder / "outcomes.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)


def test_results_are_there_once_and_as_recorded(scanned: Path, imported: Callable[[Path], Ended], hub: LocalHub) -> None:
    assert imported(scanned) == (0, "2 imported, 0 known, 4 skipped, 0 refused.\n", "")
    table = pandas.read_parquet(scanned / "checkpoints.parquet").set_index("ref")
    with open_library(background=False) as library:
        found = results(library)
        assert found.keys() == {"org/one", "org/two"}
        for ref, row in found.items():
            stored = json.loads(library.result(row.id) or b"")
            assert stored.pop("environment") == {"python": "", "machine": "", "device": "", "libraries": {}}
            line = outcomes(scanned)[ref]
            assert stored.pop("timing")["seconds"] == line["seconds"]
            assert stored == json.loads(str(table.loc[ref, "report"]))
            assert row.created == line["finished"].replace("+00:00", ".000000Z")
            assert (row.commits, row.analysis_version) == ((table.loc[ref, "commit"],), stored["analysis_version"])
        before = {ref: library.result(row.id) for ref, row in found.items()}
        for row in found.values():
            assert library.find(key_of(parse_model(DtypeReport, library.result(row.id) or b""))) == (row,)
    assert imported(scanned) == (0, "0 imported, 2 known, 4 skipped, 0 refused.\n", "")
    with open_library(background=False) as library:
        assert {ref: library.result(row.id) for ref, row in results(library).items()} == before
    assert b"org/gated" not in b"".join(path.read_bytes() for path in (scanned.parent / "data").rglob("*") if path.is_file())


def test_a_model_that_is_gone_is_skipped_and_a_new_version_answers_no_old_request(
    scanned: Path, imported: Callable[[Path], Ended], hub: LocalHub
) -> None:
    hub.add("org/two", FILES, private=True)
    one = outcomes(scanned)["org/one"]
    add(scanned, one | {"report": one["report"] | {"analysis_version": 1}})
    assert imported(scanned) == (0, "1 imported, 0 known, 5 skipped, 0 refused.\n", "")
    with open_library(background=False) as library:
        (row,) = results(library).values()
        assert (row.models, row.analysis_version, row.key) == (("org/one",), 1, "")


def _about(report: Any, **facts: Any) -> Any:
    return report | {"checkpoint": report["checkpoint"] | facts}


REPORTS: list[Callable[[Any], Any]] = [
    lambda report: _about(report, ref="/etc/passwd"),
    lambda report: _about(report, ref="org/one@main"),
    lambda report: _about(report, commit="main"),
    lambda report: report | {"id": "../" * 20},
    lambda report: report | {"analysis_version": 10**9},
    lambda report: report | {"bytes_read": float("nan")},
    lambda report: report | {"analyzer": "parents"},
    lambda report: report | {"config_dtype": "hf_" + "a" * 30},
    lambda report: report | {"more": 1},
    lambda report: [report],
]
FIELDS: list[tuple[str, object]] = [
    ("report", 7),
    ("report", {}),
    ("finished", "2999-01-01T00:00:00+00:00"),
    ("finished", "9999-12-31T23:59:59-12:00"),
    ("finished", "yesterday"),
    ("finished", 7),
    ("seconds", "long"),
    ("more", 1),
]


def test_invalid_lines_are_refused_and_the_others_are_imported(scanned: Path, imported: Callable[[Path], Ended]) -> None:
    one = outcomes(scanned)["org/one"]
    reports = [change(one["report"] | {"id": f"{number:064x}"}) for number, change in enumerate(REPORTS)]
    lines = [one | {"report": report} for report in reports]
    for number, (name, value) in enumerate(FIELDS, start=len(REPORTS)):
        line = one | {"report": one["report"] | {"id": f"{number:064x}"}} | {name: value}
        lines.append({key: line[key] for key in (*sorted(line.keys() - {"report", "complete"}), "report", "complete")})
    add(scanned, *(line | {"key": f"line/{number}"} for number, line in enumerate(lines)))
    long = one | {"key": "line/long", "report": one["report"] | {"id": "f" * 64, "config_dtype": "x" * limits.RESULT_BYTES}}
    add(scanned, long, one | {"key": "after/it", "error": "NoWeights"})  # no more than the length of a result is read of a line
    ended = imported(scanned)
    assert [line.split(":")[1] for line in ended.err.splitlines()] == [f' "line/{number}"' for number in range(len(lines))]
    assert ended[:2] == (2, f"2 imported, 0 known, 5 skipped, {len(lines)} refused.\n")
    with open_library(background=False) as library:
        assert results(library).keys() == {"org/one", "org/two"}


def test_a_folder_that_is_not_of_a_scan_is_refused(tmp_path: Path, scanned: Path, imported: Callable[[Path], Ended]) -> None:
    for folder in (tmp_path, tmp_path / "none", scanned / "outcomes.jsonl", Path("x" * 5000)):
        ended = imported(folder)
        assert (ended.status, ended.out) == (2, "") and "is not the folder of a scan" in ended.err and ended.err.count("\n") == 1
    (scanned / "outcomes.jsonl").write_bytes(b"x" * 1000)
    assert imported(scanned) == (0, "0 imported, 0 known, 0 skipped, 0 refused.\n", "")
