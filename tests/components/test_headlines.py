"""One headline per result: the same sentence on the card, in documents, in link previews and on the command line, and what to do now."""

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from analyzers import ANALYZERS, dtype_detection, update_sparsity
from analyzers.dtype_detection import DtypeReport, DtypeRequest
from analyzers.update_sparsity import SparsityReport, SparsityRequest
from components.results.html_documents import document
from components.site import addresses
from components.site.methods_page import content
from components.site.result_page import result_page
from tests.components.html_text import text_of


def passport(sample: str) -> DtypeReport:
    """The passport of a built-in sample."""
    *_, last = dtype_detection.analyze(DtypeRequest(model=f"sample:{sample}"))
    assert isinstance(last, DtypeReport)
    return last


def difference(base: str, tuned: str) -> SparsityReport:
    """What changed between two built-in samples."""
    *_, last = update_sparsity.analyze(SparsityRequest(base=f"sample:{base}", tuned=(f"sample:{tuned}",)))
    assert isinstance(last, SparsityReport)
    return last


CASES: dict[str, Callable[[], Any]] = {
    "dtype": lambda: passport("tiny-bf16-as-fp32"),
    "sparsity": lambda: difference("tiny-bf16", "tiny-tuned"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_headline_is_the_same_everywhere(name: str) -> None:
    report = CASES[name]()
    said, step = report.headline, report.advice
    assert re.search(r"[A-Z0-9].*\.$", said) and len(said) <= 300 and step is not None
    layout = addresses.layout(name)
    sections = re.findall(rf'href="methods/{name}#([a-z0-9-]+)"', layout.headline(report, True))
    assert len(sections) == {"sparsity": 0, "dtype": 0}.get(name, 4)
    assert all(f'id="{each}"' in content(name) for each in sections)
    assert "methods/" not in layout.headline(report, False)
    assert layout.summary(report) == said and report.summary.endswith(f": {said}")
    plain = " ".join(said.split())
    for place in (layout.headline(report, True), document([report])):
        assert plain in text_of(place).replace("\u00a0", " ") or plain in unescape(place)
    page = result_page(report, "2026-11-24T00:00:00+00:00", "../plotly.js", embedded=False)
    assert f'property="og:description" content="{said}"' in unescape(page)
    lines = report.text().splitlines()
    assert said in lines and f"What now: {step.text}" in lines


@pytest.mark.parametrize("name", CASES)
def test_what_to_do_now_links_to_the_next_page_of_the_same_model_where_there_are_pages(name: str) -> None:
    report = CASES[name]()
    step = report.advice
    assert step.analyzer in ANALYZERS and step.analyzer != name and step.model in report.subject().values()
    address = addresses.next_page(step)
    on_page, alone = addresses.layout(name).headline(report, True), addresses.layout(name).headline(report, False)
    assert f'href="{address}"' in on_page and f"Next: {ANALYZERS[step.analyzer].title}" in on_page
    assert address.endswith("?model=" + step.model.replace(":", "%3A")) and address not in alone
    assert step.text in unescape(on_page) and step.text in unescape(alone)
