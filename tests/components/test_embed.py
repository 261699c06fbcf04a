"""What embeds a result elsewhere: it leads to it, and no name breaks out of it."""

from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

from components.library import Library
from components.site import stored_results
from components.site.embed import HERE, badge, element, frame
from tests.components.dtype_reports import HOSTILE, report
from tests.components.sparsity_reports import sparsity_report


class _Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def _address(code: str) -> str:
    ((_, attributes),) = _Elements(code).found
    address = attributes["src"] or ""
    assert address.startswith(HERE)
    return address.removeprefix(HERE)


def test_a_stored_result_is_framed_as_it_is_stored(library: Library) -> None:
    made = report("org/name")
    stored_results.store(made)
    assert _address(frame(made, stored_results.is_stored(made))) == f"result/{made.id}?embed=1"


def test_one_that_is_not_stored_is_framed_as_the_page_that_makes_it() -> None:
    asked = parse_qs(urlsplit(_address(frame(report("org/name"), False))).query)
    assert (asked["model"], asked["embed"]) == (["org/name"], ["1"])
    assert _address(frame(sparsity_report(), False)).startswith("sparsity?base=")


def test_a_hostile_name_stays_inside_its_attribute() -> None:
    made = report(HOSTILE)
    assert [tag for tag, _ in _Elements(frame(made, False)).found] == ["iframe"]
    (script, _), (app, attributes) = _Elements(element(made)).found
    assert (script, app) == ("script", "gradio-app")
    assert parse_qs((attributes["data-query"] or "").removeprefix("?"))["model"] == [HOSTILE]


def test_a_badge_leads_to_the_passport() -> None:
    assert badge("dtype", "org/name") == f"[![Mantissa: precision]({HERE}badge/org/name.svg)]({HERE}?model=org%2Fname)"
    page = f"{HERE}check?model=org%2Fname"
    assert badge("check", "org/name") == f"[![Mantissa: checked]({HERE}badge/org/name.svg?show=checked)]({page})"
    page = f"{HERE}precision?model=org%2Fname"
    assert badge("precision", "org/name") == f"[![Mantissa: fp16]({HERE}badge/org/name.svg?show=activations)]({page})"
    assert badge("conflict", "org/name") == ""
    assert "](" not in badge("dtype", "a](x)/b").split("](", 1)[0]
