"""The methods page says what the code does: every setting, every test, the figures of the classifier and of the rule."""

import re
from html import unescape
from pathlib import Path

import pytest
from sklearn.metrics import accuracy_score, log_loss  # type: ignore[import-untyped]

from analyzers import ANALYZERS
from analyzers.core.limits import SETTINGS
from analyzers.dtype_detection.classifier import fitted
from components.site.methods_page import GENERAL, content, methods_page

FOUND = fitted().evaluation.out_of_fold
TRUTH = [row.precision for row in FOUND]
DEPLOY = Path(__file__).parents[2] / "docs" / "deploy.md"


def _html() -> str:
    return "".join(map(content, [GENERAL, *ANALYZERS]))


def _rows() -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", _html(), flags=re.DOTALL)
    return [[unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.DOTALL)] for row in rows]


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
