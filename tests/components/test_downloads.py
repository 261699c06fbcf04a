"""What a visitor takes along: names, formulas, how much is held and for whom."""

import csv
import gc
import io
import json
import zipfile

import pytest

from analyzers.checkpoints import Access
from analyzers.core.errors import LimitExceeded
from analyzers.dtype_detection import DtypeReport
from components.results.downloads import file_name, file_of, tables_zip
from components.running.open_reports import OpenReport
from components.running.queue_limits import Caller
from components.site.identity import Client
from tests.components.dtype_reports import hostile_report, report


@pytest.mark.parametrize(
    ("ref", "name"),
    [
        ("google-t5/t5-small", "google-t5-t5-small-dtype"),
        ("sample:tiny-bf16", "sample-tiny-bf16-dtype"),
        ("../../etc/passwd", "etc-passwd-dtype"),
        ("/", "report-dtype"),
        ("a" * 500, "a" * 80 + "-dtype"),
        ("\u202eexe\x00\n", "exe-dtype"),
    ],
)
def test_file_names(ref: str, name: str) -> None:
    assert file_name([ref], "dtype") == name


def test_no_cell_is_a_formula() -> None:
    archive = zipfile.ZipFile(io.BytesIO(tables_zip([hostile_report()])))
    assert {"summary.csv", "tensors.csv", "layers.csv"} <= set(archive.namelist())
    tensors = list(csv.DictReader(io.StringIO(archive.read("tensors.csv").decode())))
    assert tensors[0]["name"].startswith("'=<img")
    cells = [cell for name in archive.namelist() for row in csv.reader(io.StringIO(archive.read(name).decode())) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "@", "+"))]


def test_the_files_hold_the_report() -> None:
    files = {ending: file_of(report(), ending) for ending in ("json", "zip", "html")}
    assert [file.name.partition("-dtype")[2] for file in files.values()] == [".json", "-tables.zip", ".html"]
    assert DtypeReport.model_validate(json.loads(files["json"].content)) == report()
    assert "tensors.csv" in zipfile.ZipFile(io.BytesIO(files["zip"].content)).namelist()
    assert b"tiny-bf16-as-fp32" in files["html"].content


def _held(made: DtypeReport, visitor: str = "", token: str | None = None) -> OpenReport:
    return OpenReport(made, Caller(Client(visitor, "address"), "session", Access(token=token)))


def test_what_was_read_with_a_token_is_for_its_visitor_only() -> None:
    held, public = _held(report(), "ann", "hf_x"), _held(report(), "ann")
    assert held.report(Client("ann", "elsewhere")) == public.report(Client("bob", "address")) == report()
    with pytest.raises(LimitExceeded, match=r"^This result is no longer kept here: open its link"):
        held.file("json", Client("bob", "address"))


def test_the_oldest_reports_make_room_and_closed_pages_hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    size = len(_held(report())._content)
    monkeypatch.setattr("components.running.open_reports.RESULTS_MEMORY", 2 * size + size // 2)
    first, second, third = _held(report()), _held(report()), _held(report())
    assert second.report(Client("", "")) == third.report(Client("", "")) == report()
    with pytest.raises(LimitExceeded):
        first.report(Client("", ""))
    del second
    gc.collect()
    fourth = _held(report())
    assert third.report(Client("", "")) == fourth.report(Client("", "")) == report()
