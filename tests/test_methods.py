"""The methods say what the code computes, briefly, and every link to them lands on a section."""

import re
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import pytest
from sklearn.metrics import accuracy_score, log_loss  # type: ignore[import-untyped]

from analyzers import ANALYZERS
from components.methods import INDEX, METHODS, methods_html, names
from components.text.render import anchor
from docs.build import PAGES, built
from tests.words import SNAPSHOTS, converted
from tools.classifier import evaluated

_APP = "http://here/"
_SERVED = {f"{_APP}methods/{name}": name for name in names() if name != INDEX} | {f"{_APP}methods": INDEX}


def _anchors(name: str) -> set[str]:
    html, contents = methods_html(name)
    anchors = set(re.findall(r' id="([^"]+)"', html))
    assert anchors == {anchor for anchor, _ in contents} and len(anchors) == len(contents)
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_computed_is_as_the_code_computes_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert built(text) == text, "run: make docs"


def test_the_methods_are_short() -> None:
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in METHODS.glob("*.md")) < 6_500


@pytest.mark.parametrize("address", _SERVED)
def test_links_lead_to_sections(address: str) -> None:
    """Links between the pages, as a browser resolves them."""
    html, _ = methods_html(_SERVED[address])
    links = [link for link in re.findall(r'href="([^"]+)"', html) if "://" not in link]
    assert links
    for link in links:
        page, anchor = urldefrag(urljoin(address, link))
        assert page in _SERVED and (not anchor or anchor in _anchors(_SERVED[page])), link


@pytest.mark.parametrize("analyzer", converted())
def test_every_tile_has_a_section(analyzer: str) -> None:
    tiles = set(re.findall(r"^\[[^\]]+\] ([^:]+):", (SNAPSHOTS / f"{analyzer}.txt").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert len(tiles) >= 4
    assert {anchor(label) for label in tiles} - _anchors(ANALYZERS[analyzer].shown_by or analyzer) == set()


def test_every_analyzer_has_a_page_and_nothing_else_does() -> None:
    pages = {each.shown_by or each.name for each in ANALYZERS.values()}
    assert {INDEX, *pages} == set(names())
    for name in ("toy", "../deploy"):
        with pytest.raises(KeyError):
            methods_html(name)


def test_the_scores_are_scikit_learns() -> None:
    found = evaluated().evaluation.out_of_fold
    truth, classes = [row.precision for row in found], sorted({row.precision for row in found})
    table = re.findall(r"^\| (.+) \| (.*) \| (.*) \|$", (METHODS / "dtype.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    scores = {name: (right, loss) for name, right, loss in table}
    likeliest = [max(row.probabilities, key=lambda name: row.probabilities[name]) for row in found]
    right = accuracy_score(truth, likeliest, normalize=False)
    loss = log_loss(truth, [[row.probabilities[name] for name in classes] for row in found], labels=classes)
    assert scores["classifier"] == (f"{right:.0f} of 29", f"{loss:.3f}") == ("23 of 29", "0.811")
    rule = accuracy_score(truth, [row.rule for row in found], normalize=False)
    assert scores["rule of thumb"][0] == f"{rule:.0f} of 29" == "22 of 29"
    prior = log_loss(truth, [[row.prior[name] for name in classes] for row in found], labels=classes)
    assert scores["shares of the other families"][1] == f"{prior:.3f}"
    assert scores["equal probabilities"][1] == "1.099"
