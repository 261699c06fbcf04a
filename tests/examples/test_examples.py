"""The finished example of each page: of the page's own first example, of the present analysis, and marked as an example."""

import re

import pytest

from analyzers import ANALYZERS, with_pages
from components.examples.finished import finished_example, stored
from components.forms.form import as_read
from tests.components.html_text import text_of

from .build import computed, example_request

NAMES = [analyzer.name for analyzer in with_pages() if not analyzer.home]
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_example_is_current(name: str) -> None:
    report = stored(name)
    assert not report.outdated, f"the analysis has changed: python -m tests.examples.build {name}"
    assert as_read(report) == example_request(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_begins_with_its_example_and_at_least_three_ids_to_try(name: str) -> None:
    page, report = ANALYZERS[name].component("page").PAGE, stored(name)
    assert page.below is None, "the stored example is the default"
    below = finished_example(name)
    said = text_of(below)
    assert said.startswith("Example A finished result on small built-in models.") and 'aria-label="A finished example"' in below
    assert " ".join(report.headline.split()) in said.replace("\u00a0", " ")
    form = page.form
    address = page.result.permalink(report.request)
    assert f'href="{name}{address.replace("&", "&amp;")}"' in below
    assert form.request(next(iter(page.examples.values()))) == report.request
    named = {str(typed.get("models") or typed.get("model")) for typed in page.examples.values()}
    assert len(named) >= 3


def _numbers(sentences: str) -> list[float]:
    return [float(number.replace(",", "")) for number in _NUMBER.findall(sentences)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_the_stored_example_is_what_is_computed_now(name: str) -> None:
    """The answer in the same words, and its figures within what other machines round differently."""
    old, new = (report.headline for report in (stored(name), computed(name)))
    assert _NUMBER.sub("#", new) == _NUMBER.sub("#", old), f"python -m tests.examples.build {name}"
    assert _numbers(new) == pytest.approx(_numbers(old), rel=0.05, abs=0.002)
