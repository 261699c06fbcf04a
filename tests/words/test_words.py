"""What holds for the words of every analyzer: they are as reviewed, safe, complete, and drawn from facts everywhere alike."""

import json
import re
from typing import Any

import pytest

from analyzers import ANALYZERS
from analyzers.core.report import Report
from tests.words import SNAPSHOTS, converted, reports, snapshot
from tests.words.hostile import PARTS

NAMES = converted()


def made(name: str) -> list[Report]:
    return [report for report in reports(name).values() if isinstance(report, Report)]


@pytest.mark.parametrize("name", NAMES)
def test_words_are_as_reviewed(name: str) -> None:
    assert words(snapshot(name)) == words((SNAPSHOTS / f"{name}.txt").read_text()), (
        f"read the difference, then: python -m tests.words {name}"
    )


def words(text: str) -> str:
    """Replace numbers, which depend on the processor and its libraries, and the spaces that align them."""
    return re.sub(r" +", " ", re.sub(r"[-−]?\d[\d.,e⁻⁰¹²³⁴⁵⁶⁷⁸⁹-]*", "#", text))


@pytest.mark.parametrize("name", NAMES)
def test_each_code_has_a_template_and_each_template_a_report(name: str) -> None:
    used = {each.code for report in made(name) for each in (report.answer, report.advice, *report.notes, *vars(report).get("findings", ()))}
    own = set(ANALYZERS[name].module("words").WORDS.templates)
    assert own - used == set(), "templates that no report of tests/words uses"


@pytest.mark.parametrize("name", NAMES)
def test_a_report_is_plain_json_and_comes_back_equal(name: str) -> None:
    for report in made(name):
        text = report.model_dump_json()
        json.loads(text, parse_constant=pytest.fail)
        assert type(report).model_validate_json(text).model_dump() == report.model_dump()  # the object may hold more rows


@pytest.mark.parametrize("name", NAMES)
def test_a_terminal_gets_the_answer_first_and_briefly(name: str) -> None:
    for report in made(name):
        lines = report.lines()
        assert report.headline in lines
        assert len(lines) <= 40 and sum(len(line) + 1 for line in lines) <= 2_500


@pytest.mark.parametrize("name", NAMES)
def test_text_from_outside_stays_text(name: str) -> None:
    hostile = [report for report in made(name) if all(part in texts(report.model_dump()) for part in PARTS)]
    assert hostile, "one of the reports has hostile names"
    for report in hostile:
        text, page = report.text(), report.to_html()
        assert not any(part in text for part in PARTS[1:])
        assert PARTS[0] not in page and not any(part in page for part in PARTS[1:3])


def texts(value: Any) -> str:
    """Join all texts in plain data."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return " ".join(map(texts, value)) if isinstance(value, list | tuple) else str(value)
