"""The page of an organisation and the gallery of the first page, on the results of a real library."""

import re
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from analyzers.check import CheckReport, CheckRequest
from analyzers.check import analyze as analyze_check
from analyzers.dtype_detection import DtypeReport, DtypeRequest, analyze
from components.library import Library
from components.library_page.gallery import gallery
from components.server.routes import routes
from tests.components.sparsity_reports import sparsity_report

SAMPLES = {"one": "tiny-bf16-as-fp32", "two": "tiny-bf16", "over": "tiny-overflow"}


@pytest.fixture(scope="module")
def passports() -> dict[str, DtypeReport]:
    """Of each of SAMPLES, as of a public model."""
    found = {}
    for name, sample in SAMPLES.items():
        *_, made = analyze(DtypeRequest(model=f"sample:{sample}"))
        assert isinstance(made, DtypeReport)
        found[name] = made
    return found


@pytest.fixture
def shown(library: Library, passports: dict[str, DtypeReport]) -> dict[str, DtypeReport]:
    """The library has them, as those of Acme, and one model of Acme2."""
    models = {name: f"Acme/{name}" for name in SAMPLES} | {"other": "Acme2/one"}
    for number, (name, ref) in enumerate(models.items()):
        _add(library, number, passports.get(name, passports["one"]), ref)
    return passports


def _add(library: Library, number: int, made: DtypeReport, ref: str) -> None:
    facts = made.checkpoint.model_copy(update={"ref": ref, "commit": f"{number:040x}"})
    assert library.add_result(made.model_copy(update={"id": f"{number:064x}", "checkpoint": facts}), public=True)


def _get(path: str) -> Any:
    app = Starlette(routes=routes())
    with TestClient(app, base_url="https://mantissa.example") as client:
        return client.get(path)


def _column(page: str, title: str) -> list[str]:
    cells = re.findall(rf'<td data-title="{title}"><span>(.*?)</span></td>', page)
    return [re.sub("<[^>]*>", "", cell) for cell in cells]


def test_what_its_models_store_and_waste(library: Library, shown: dict[str, DtypeReport]) -> None:
    answer = _get("/org/acme")
    page = answer.text
    assert answer.status_code == 200 and "frame-ancestors *" in answer.headers["content-security-policy"]
    assert _column(page, "Model") == ["one", "over", "two"]  # the most wasteful first, then by name
    nbytes = shown["one"].checkpoint.bytes
    values = sum(row.parameters for row in shown["one"].tensors)
    assert nbytes == pytest.approx(4 * values, rel=0.02)
    assert _column(page, "Could be saved") == [f"{2 * values / 1e3:.0f} kB", "nothing", "nothing"]
    assert f"{2 * values / 1e3:.0f} kB of that could be saved" in page and "3 models in the library" in page
    assert _column(page, "Passed through") == ["bf16", "nothing narrower", "nothing narrower"]
    assert '<meta property="og:title" content="Acme: 3 models">' in page
    assert '<meta property="og:image" content="https://mantissa.example/card/org/Acme.png">' in page
    assert _get("/card/org/Acme.png").content.startswith(b"\x89PNG")
    assert _column(_get("/org/Acme2").text, "Model") == ["one"]


@pytest.mark.parametrize("name", ["nobody", "%3Cscript%3Ealert(1)%3C%2Fscript%3E", "%25", "a" * 500, "Acme%2Fone", "%2e%2e", "Acme%00"])
def test_an_organisation_without_models(library: Library, shown: dict[str, DtypeReport], name: str) -> None:
    answer = _get(f"/org/{name}")
    assert answer.status_code == 404 and "<script>alert" not in answer.text
    assert _get(f"/card/org/{name}.png").status_code == 404


def test_a_check_says_what_is_wasted(library: Library, shown: dict[str, DtypeReport]) -> None:
    *_, made = analyze_check(CheckRequest(model="sample:tiny-bf16-as-fp32"))
    assert isinstance(made, CheckReport)
    facts = made.checkpoint.model_copy(update={"ref": "Acme/one", "commit": "c" * 40})
    assert library.add_result(made.model_copy(update={"id": "c" * 64, "checkpoint": facts, "saving_bytes": 123_000}), public=True)
    assert _column(_get("/org/Acme").text, "Could be saved")[0] == "123 kB"


def test_the_gallery_chooses_by_rule(library: Library, passports: dict[str, DtypeReport]) -> None:
    assert "Try a built-in sample" in gallery() and gallery().count("<li>") == 3
    _add(library, 1, passports["one"], "org/small")
    assert "From the library" in gallery()
    large = passports["one"].tensors[0].model_copy(update={"parameters": 10**9})
    _add(library, 2, passports["one"].model_copy(update={"tensors": (large,)}), "org/large")
    _add(library, 3, passports["over"], "org/over")
    _add(library, 4, passports["two"], "facebook/opt-13b")  # whose label says fp16
    library.add_result(sparsity_report(id="f" * 64), public=True)
    cards = re.findall(r'<small>(.*?)</small><a href="(.*?)">(.*?)</a>', gallery())
    assert cards == [
        ("Its label says otherwise", f"result/{4:064x}", "facebook/opt-13b"),
        ("Overflows in fp16", f"result/{3:064x}", "org/over"),
        ("Could be stored in far fewer bytes", f"result/{2:064x}", "org/large"),
        ("What fine-tuning changed", f"result/{'f' * 64}", "org/tuned from org/base"),
    ]
    assert re.findall(r">org/(\w+)</a> <span>([^,]+), 20\d\d-\d\d-\d\d</span>", gallery())[-1] == ("small", "Precision passport")
    assert f'<img src="card/{2:064x}.png" alt=""' in gallery()
