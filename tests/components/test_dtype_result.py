"""The passport on the page: what the library knows, text from outside, and a page that asks for nothing."""

import re

from components.dtype.result import RESULT
from components.dtype.tiles import tiles
from components.library import Identity, Library
from components.results.html_documents import document
from tests.components.dtype_reports import hostile_report, report


def test_a_label_of_the_library_outranks_what_is_inferred(library: Library) -> None:
    found = report("org/name")

    def trained() -> tuple[str, str]:
        (tile,) = (each for each in tiles(found) if each.label == "Trained in")
        return tile.value, tile.kind

    assert trained() == ("bf16, likely", "inference")
    library.add_label("org/name", "fp32", "https://example.org/paper", Identity.login("ann"))
    assert trained() == ("fp32", "label") and "fp32" in RESULT.headline(found, True)
    library.add_label("org/name", "bf16", "https://example.org/paper", Identity.login("bob"))
    assert trained() == ("labels disagree", "warning")


def test_exported_page_asks_for_nothing_and_keeps_text_as_text() -> None:
    html = document([report(), hostile_report()])
    own = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert "<img" not in own
    assert not re.search(r"""(src|href|@import|url)\s*[=(]\s*["']?(?!https://example\.org)(https?:)?//""", own)
    assert "connect-src 'none'" in own
    assert own.count('type="application/json"') == 9  # three figures each, and three of both models
    for data in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', html, flags=re.DOTALL):
        assert not set("<>&") & set(data)
    assert "prefers-color-scheme: dark" in own
