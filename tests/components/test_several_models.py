"""Several models: the table, its links, and what a visitor takes along."""

import csv
import io
import json
import zipfile
from urllib.parse import parse_qsl

from analyzers.dtype_detection import DtypeReport, DtypeRequest
from components.dtype.comparison import Batch, command, permalink
from components.dtype.form import filled, requests
from components.dtype.several_models import Outcome, comparison
from components.site.identity import Client
from tests.components.dtype_reports import HOSTILE, hostile_report, report


def test_each_model_is_asked_with_the_same_options() -> None:
    asked = requests({"model": "a/b, c/d", "mode": "exact", "include": "mlp"})
    assert asked == [DtypeRequest(model=name, mode="exact", include="mlp") for name in ("a/b", "c/d")]


def _outcomes() -> list[Outcome]:
    return [
        Outcome("sample:tiny-bf16-as-fp32", report()),
        Outcome("no/such", error="There is no such model."),
        Outcome("org/b", report("org/b")),
    ]


def test_the_link_of_several_leads_back_to_them() -> None:
    request = DtypeRequest(model="org/b", budget=5_000_000, include="a|b", seed=3)
    query = parse_qsl(permalink(_outcomes(), request).removeprefix("?"))
    commit = report().checkpoint.commit
    names = ["sample:tiny-bf16-as-fp32", "no/such", f"org/b@{commit}"]
    assert requests(filled(query)) == [request.model_copy(update={"model": name}) for name in names]
    line = command(_outcomes(), request)
    assert line == f"mantissa dtype {' '.join(names)} --budget=5000000 '--include=a|b' --seed=3"


def test_a_revision_belongs_to_one_model_only() -> None:
    assert filled([("model", "a/b"), ("revision", "r")])["model"] == "a/b@r"
    assert filled([("model", "a/b"), ("model", "c/d"), ("revision", "r")])["model"] == "a/b, c/d"


def test_names_and_errors_stay_text() -> None:
    html = comparison([HOSTILE, HOSTILE, HOSTILE], [Outcome(HOSTILE, hostile_report()), Outcome(HOSTILE, error=HOSTILE)])
    assert "<img" not in html
    assert html.count("&lt;img") >= 5


def test_several_are_light_and_their_files_hold_all_of_them() -> None:
    batch = Batch([DtypeRequest(model=name) for name in ("a/a", "no/such", "org/b")])
    batch.add(report())
    batch.fail("=gone")
    batch.add(report("org/b"))
    assert [outcome.report.tensors for outcome in batch.outcomes if outcome.report] == [(), ()]
    listed = json.loads(batch.file("json", Client("", "")).content)
    assert DtypeReport.model_validate(listed[0]) == report()
    assert listed[1] == {"model": "no/such", "error": "=gone"}
    archive = zipfile.ZipFile(io.BytesIO(batch.file("zip", Client("", "")).content))
    summary = list(csv.DictReader(io.StringIO(archive.read("summary.csv").decode())))
    assert [row["model"] for row in summary] == ["sample:tiny-bf16-as-fp32", "org/b"]
    tensors = list(csv.DictReader(io.StringIO(archive.read("tensors.csv").decode())))
    assert {row["model"] for row in tensors} == {"sample:tiny-bf16-as-fp32", "org/b"}
    assert archive.read("errors.csv").decode().splitlines()[1] == "no/such,'=gone"
    page = batch.file("html", Client("", ""))
    assert page.name == "a-a-and-2-more-dtype.html" and b"org/b" in page.content
