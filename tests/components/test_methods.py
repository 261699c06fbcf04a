"""The methods page says what the code does: every setting, every test, the figures of the classifier and of the rule."""

import re
from html import escape, unescape
from pathlib import Path

import pytest
from sklearn.metrics import accuracy_score, log_loss  # type: ignore[import-untyped]

from analyzers import ANALYZERS
from analyzers.core.limits import SETTINGS
from analyzers.dtype_detection.classifier import fitted
from analyzers.dtype_detection.evidence import TESTS
from analyzers.dtype_detection.report import TEST_WORDS
from components.dtype.plots import reliability
from components.site.methods_page import GENERAL, content, methods_page

FOUND = fitted().evaluation.out_of_fold
TRUTH = [row.precision for row in FOUND]
DEPLOY = Path(__file__).parents[2] / "docs" / "deploy.md"


def _html() -> str:
    return "".join(map(content, [GENERAL, *ANALYZERS]))


def _rows() -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", _html(), flags=re.DOTALL)
    return [[unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.DOTALL)] for row in rows]


def _text() -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", "", _html())).split())


def test_every_setting_is_on_the_page_and_in_the_docs_and_nothing_else() -> None:
    listed = [row for row in _rows() if row and row[0].startswith("MANTISSA_")]
    assert listed == [[each.variable, f"{each.value:,}", each.unit, each.why, each.when] for each in SETTINGS]
    documented = re.findall(
        r"^\| `(MANTISSA_\w+)` \| ([\d,]+) (.+?) \| (.+?) \| (.+?) \|$", DEPLOY.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert [list(row) for row in documented] == listed


@pytest.mark.parametrize("name", [GENERAL, *ANALYZERS])
def test_every_link_within_the_pages_has_its_section(name: str) -> None:
    page = methods_page(name, "plotly.js", "http://here/")
    sections = {each or "": set(re.findall(r' id="([^"]+)"', content(each))) for each in [GENERAL, *ANALYZERS]}
    sections["methods"] = sections[GENERAL]
    links = re.findall(r'href="(?:(?:\.\./|\./)?(?:methods/)?([a-z]*))#([^"]+)"', page)
    assert len(links) >= 2
    assert [link for link in links if link[1] not in sections[link[0] or name]] == []
    assert 'aria-current="page">Methods' in page and ("plotly.js" in page) == (name == "dtype")


def test_methods_open_with_what_each_answer_means_and_end_with_the_folded_limits() -> None:
    general = content(GENERAL)
    headings = re.findall(r'<h2 id="([^"]+)"', general)
    assert headings[0] == "answers" and headings[-1] == "settings"
    for name, analyzer in ANALYZERS.items():
        meaning = re.search(r'^<p class="m-meaning">(.{200,}?)</p>', content(name), flags=re.DOTALL)
        assert meaning and meaning[1] in general and f'<a href="./methods/{name}">{analyzer.title}</a>' in general
    for page in map(content, [GENERAL, *ANALYZERS]):
        shown = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
        assert "MANTISSA_" not in shown and '<td data-title="Meaning">' not in shown


def test_every_question_is_on_the_page() -> None:
    rows = _rows()
    for dtype, tests in TESTS.items():
        for test in tests:
            assert any(row[:2] == [dtype, TEST_WORDS[test.name]] for row in rows)


def test_powers_are_in_print() -> None:
    assert "^" not in _html()


def test_intervals_are_on_the_page() -> None:
    assert escape("95% interval") in _html()


def test_the_scores_are_scikit_learns() -> None:
    classes = sorted({*TRUTH})
    rows = {row[0]: row[1:] for row in _rows() if row}
    likeliest = [max(row.probabilities, key=lambda name: row.probabilities[name]) for row in FOUND]
    right = accuracy_score(TRUTH, likeliest, normalize=False)
    loss = log_loss(TRUTH, [[row.probabilities[name] for name in classes] for row in FOUND], labels=classes)
    assert rows["classifier, its likeliest precision"] == [f"{right:.0f} of 29", f"{loss:.3f}"] == ["23 of 29", "0.811"]
    rule = accuracy_score(TRUTH, [row.rule for row in FOUND], normalize=False)
    assert rows["rule of thumb, thresholds chosen in the same folds"][0] == f"{rule:.0f} of 29" == "22 of 29"
    prior = log_loss(TRUTH, [[row.prior[name] for name in classes] for row in FOUND], labels=classes)
    assert rows["shares of the other families"][1] == f"{prior:.3f}"
    assert rows["the same for each precision"][1] == "1.099"
    assert "As published it is right for 24 of 29 of these models" in _text()


def test_every_labelled_model_is_shown_with_its_family_and_answer() -> None:
    shown = {row[0]: row[1:] for row in _rows() if len(row) == 5 and "/" in row[0]}
    assert shown.keys() >= {row.model for row in FOUND}
    for row in FOUND:
        family, precision, _, rule = shown[row.model]
        assert (family, precision, rule) == (row.family, row.precision, row.rule)


def test_what_it_abstains_on_and_how_it_was_made_is_said() -> None:
    text = _text()
    assert "fp32 is known of 5 models of 2 families" in text and "is never the verdict" in text
    assert "resembles nothing if no labelled model is within 1 standard deviation" in text


def test_the_reliability_plot_has_every_bin() -> None:
    bins = fitted().evaluation.reliability
    figure = reliability(fitted().evaluation)
    diagonal, points = figure.data
    assert list(diagonal.x) == list(diagonal.y)
    assert list(points.x) == pytest.approx([100 * each.mean for each in bins])
    assert list(points.y) == pytest.approx([100 * each.share for each in bins])
    assert list(points.text) == [f"{each.predictions}" for each in bins]
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert not reliability(fitted().evaluation.model_copy(update={"reliability": ()})).data[1].x
