"""Renders the parts of the headline card, in HTML: header, main number with its meaning, tiles. All of them escape."""

from analyzers import ANALYZERS
from analyzers.core.report import CheckpointFacts, Report
from analyzers.language_models.samples import SAMPLES
from components.site import addresses
from components.text.display_names import commit
from components.text.markup import head, tag, tile
from components.text.plain_text import html
from components.text.render import macros

_PIECES = macros("text/templates/headline.html")
FACT = tag("fact", "fact")
ESTIMATE = tag("inference", "estimate")


def card(name: str, *parts: str) -> str:
    """Render the card. name: its name for screen readers; parts: HTML."""
    return _PIECES.card(name, parts)


def model_head(name: str, checkpoint: CheckpointFacts, facts: str) -> str:
    """Render the model with its abbreviated commit, and a line of facts."""
    return head(f"{html(name)}{short(checkpoint)}", facts)


def short(checkpoint: CheckpointFacts) -> str:
    """Render the abbreviated commit in small type; empty for a sample."""
    return _PIECES.short(commit(checkpoint))


def about_sample(ref: str, shows: bool = False, more: str = "") -> str:
    """Describe a built-in sample, whose true precision is known; empty for other models. shows: include what it demonstrates."""
    sample = SAMPLES.get(ref.removeprefix("sample:")) if ref.startswith("sample:") else None
    if sample is None:
        return ""
    said = f"{sample.description}{more}." + (f" It shows {sample.shows}." if shows else "")
    return _PIECES.sample(said)


def answered(report: Report, links: bool) -> str:
    """Render the answer, how far it reaches unless it covers everything, and the advice.

    links: include the link to the next page, and the link from an embedded result to its page.
    """
    advice = report.advice
    title, address = (ANALYZERS[advice.analyzer].title, addresses.next_page(advice)) if links else ("", "")
    again = addresses.recompute(report) if links else ""
    return _PIECES.answered(report.answer.text, report.suffix(), advice.text, title, address, again)


def tiles(report: Report, links: bool, *each: tuple[str, str]) -> str:
    """Render a row of tiles, given as (section of the methods page, HTML).

    A tag that all tiles share is shown once, above them. links: include links to the sections.
    """
    common = next((how for how in (FACT, ESTIMATE) if all(how in tile for _, tile in each)), "")
    plain = [(section, tile.replace(common, "", 1)) for section, tile in each]
    return _PIECES.tiles(plain, common, f"methods/{report.analyzer}" if links else "")


def answer(question: str, value: str, how: str, body: str) -> str:
    """Render a tile. how: the tag for the kind of evidence; body: plain text."""
    return tile(question, value, how, _PIECES.paragraph(body))
