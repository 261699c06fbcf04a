"""What embeds a result elsewhere: no name breaks out of it."""

from html.parser import HTMLParser
from urllib.parse import parse_qs

from components.site.embed import element, frame
from tests.components.dtype_reports import HOSTILE, report


class _Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_hostile_name_stays_inside_its_attribute() -> None:
    made = report(HOSTILE)
    assert [tag for tag, _ in _Elements(frame(made, False)).found] == ["iframe"]
    (script, _), (app, attributes) = _Elements(element(made)).found
    assert (script, app) == ("script", "gradio-app")
    assert parse_qs((attributes["data-query"] or "").removeprefix("?"))["model"] == [HOSTILE]
