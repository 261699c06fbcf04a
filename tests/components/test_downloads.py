"""What a visitor takes along: names, formulas, and how much is kept."""

import csv
import io
import json
import zipfile
from pathlib import Path

import pytest

from analyzers.dtype_detection import DtypeReport
from components.results.downloads import Downloads, file_name, tables_zip
from tests.components.reports import hostile_report, report


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


def test_the_files_hold_the_report_and_only_the_latest_are_kept(tmp_path: Path) -> None:
    downloads = Downloads(tmp_path, keep=2)
    first = downloads.write(report())
    assert DtypeReport.model_validate(json.loads(Path(first[0]).read_text(encoding="utf-8"))) == report()
    later = [downloads.write(hostile_report()), downloads.write(report(model="org/other"))]
    assert not Path(first[0]).exists()
    assert all(Path(path).is_file() and Path(path).is_relative_to(tmp_path) for paths in later for path in paths)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_files_of_a_report_that_was_shown_before_are_there_and_count_as_used(tmp_path: Path) -> None:
    downloads = Downloads(tmp_path, keep=2)
    first = downloads.write(report())
    written = [Path(path).stat().st_mtime_ns for path in first]
    downloads.write(report(model="org/other"))
    assert downloads.write(report()) == first and [Path(path).stat().st_mtime_ns for path in first] == written
    downloads.write(hostile_report())
    assert Path(first.json).is_file()  # the one unused for longest went
    Path(first.csv).unlink()  # as Gradio does with what is old
    again = downloads.write(report())
    assert again != first and all(Path(path).is_file() for path in again)
    assert downloads.write(report(bytes_read=1)) != again
