"""Templates: whatever is put in is text, unless it is HTML of another template."""

import pytest
from jinja2 import UndefinedError

from components.text.render import macros, render

HOSTILE = '<script>alert("1")</script>\'\u202e'


class ClaimsToBeHtml(str):
    """What templates take for HTML."""

    def __html__(self) -> str:
        return self


@pytest.mark.parametrize("claims", [False, True])
def test_text_is_escaped_even_where_it_claims_to_be_html(claims: bool) -> None:
    pieces = macros("text/templates/pieces.html")
    text = ClaimsToBeHtml(HOSTILE) if claims else HOSTILE
    badge = render("site/templates/badge.svg", width="1", height=1, said=text, boxes=[])
    for html in (pieces.tag("fact", text), pieces.table([text], [[text]], (), text, (), True, False), pieces.notes([text]), badge):
        assert "<script" not in html and "\u202e" not in html and "alert(&#34;1&#34;)" in html


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("running/templates/meter.html", note="reading")
