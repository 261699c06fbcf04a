"""The methods page says what the code does: every limit, every test, the figures of the rule."""

import re
from html import escape, unescape

from analyzers.dtype_detection.evidence import TESTS
from analyzers.limits import LIMITS
from components.pages.methods import methods_html


def _rows() -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", methods_html(), flags=re.DOTALL)
    return [[unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.DOTALL)] for row in rows]


def test_every_limit_is_on_the_page_and_nothing_else() -> None:
    listed = [row for row in _rows() if len(row) == 5 and row[4].startswith("MANTISSA_")]
    assert listed == [[limit.name, f"{limit.value:,}", limit.unit, limit.why, limit.variable] for limit in LIMITS]


def test_every_question_is_on_the_page() -> None:
    rows = _rows()
    for dtype, tests in TESTS.items():
        for test in tests:
            assert any(row[:2] == [dtype, test.question] for row in rows)


def test_the_rule_is_shown_with_its_figures() -> None:
    text = " ".join(methods_html().split())
    assert "right for 24 of 29 in sample, and for 22 of 29 out of sample" in text
    assert escape("95 % interval") in text
