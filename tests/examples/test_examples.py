"""The finished example of each page: of the page's own first example, and of the present analysis."""

import re
from typing import Any

import pytest

from analyzers import with_pages
from components import store
from components.result.links import as_read

from .build import computed, example_request

NAMES = [analyzer.name for analyzer in with_pages()]
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def stored(name: str) -> Any:
    report = store.example(name)
    assert report is not None, f"python -m tests.examples.build {name}"
    return report


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_example_is_current(name: str) -> None:
    report = stored(name)
    assert not report.outdated, f"the analysis has changed: python -m tests.examples.build {name}"
    assert as_read(report) == report.request == example_request(name)


def _numbers(sentences: str) -> list[float]:
    return [float(number.replace(",", "")) for number in _NUMBER.findall(sentences)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_the_stored_example_is_what_is_computed_now(name: str) -> None:
    """The answer in the same words, and its figures within what other machines round differently."""
    old, new = (report.headline for report in (stored(name), computed(name)))
    assert _NUMBER.sub("#", new) == _NUMBER.sub("#", old), f"python -m tests.examples.build {name}"
    assert _numbers(new) == pytest.approx(_numbers(old), rel=0.05, abs=0.002)
