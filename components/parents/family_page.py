"""Renders the page of a model's family on the server, without Gradio: its descendants and ancestors, according to stored results."""

from functools import lru_cache
from typing import NamedTuple

from analyzers.formatting import day
from analyzers.parents.facts import related
from analyzers.parents.report import ParentsReport
from components.appearance.navigation import navigation
from components.library import Library
from components.parents.ancestors import Ancestor, ancestors
from components.results.self_contained_page import Page
from components.site import addresses, link_previews, stored_results
from components.text import macros, numbers

_RESULTS = 200  # Newest results of parents that the page of a family shows, since it reads their reports.
_PARTS = macros("parents/templates/parents.html")
_RESULT = macros("site/templates/result.html")
_KINDS = {
    "same-weights": "the same weights",
    "quantized-copy": "a quantized copy",
    "derived": "derived",
    "merge": "a merge",
    "stack": "a stack of layers",
}


class Relative(NamedTuple):
    """A row of the page. name: the relative; kind: of descent; result: address of the stored report; made: its day; family: address."""

    name: str
    kind: str
    weight: str
    equal: str
    proven: bool
    result: str
    made: str
    family: str


class Family(NamedTuple):
    """The relatives of a model, by their newest results. others: models that were compared with it and do not come from it."""

    parents: list[Relative]
    children: list[Relative]
    others: list[Relative]


def family_of(library: Library, model: str) -> Family:
    """Collect the relatives of ``model`` from its newest report, and from the newest `_RESULTS` results in which it is a candidate."""
    family = Family([], [], [])
    seen = set[str]()
    for identifier in library.naming("parents", model, _RESULTS):
        report, made = _load(library, identifier)
        if report is None or (child := report.checkpoint.ref.lower()) in seen:
            continue
        seen.add(child)
        of = next((each for each in ancestors(report) if each.row.ref.lower() == model.lower()), None)
        if of is not None:
            family.children.append(_relative(report.checkpoint.ref, report, of, made))
        else:
            row = next(each for each in report.candidates if each.ref.lower() == model.lower())
            other = _relative(report.checkpoint.ref, report, Ancestor(row, None, False), made)
            family.others.append(other._replace(kind="related" if related(row) else ""))
    newest = stored_results.newest("parents", model)
    if isinstance(newest, ParentsReport):
        row_of_newest = library.result_row(newest.id)
        made = row_of_newest.result.created if row_of_newest is not None else ""
        family.parents.extend(_relative(each.row.ref, newest, each, made) for each in ancestors(newest))
    return family


def _load(library: Library, identifier: str) -> tuple[ParentsReport | None, str]:
    """Return a stored report and its time; None if another version of Mantissa stored it."""
    row = library.result_row(identifier)
    report = stored_results.load(library, row.result) if row is not None else None
    return report if isinstance(report, ParentsReport) else None, row.result.created if row is not None else ""


def _relative(name: str, report: ParentsReport, of: Ancestor, made: str) -> Relative:
    kind, equal = _KINDS.get(report.verdict, report.verdict), numbers.share(of.row.equal_share)
    if not report.whole:
        kind = f"{kind} ({report.short_reach()})"
    return Relative(
        name,
        kind,
        "" if of.weight is None else f"{of.weight:.3f}",
        equal,
        of.proven,
        addresses.stored(report.id),
        day(made),
        addresses.family(name),
    )


def family_page(library: Library, model: str, origin: str) -> str:
    """Render the page about ``model``. origin: the address of the app."""
    row = library.model(model)
    return _page(library, row.model if row is not None else model, library.version(), origin)


@lru_cache(64)
def _page(library: Library, model: str, version: str, origin: str) -> str:
    family = family_of(library, model)
    home = "../" * (2 + model.count("/"))
    heading = f"Family of {model}"
    about = "Which models its weights come from, and which come from it, as the results stored here prove or infer it"
    summary = f"{numbers.plural(len(family.children), 'descendant')} and {numbers.plural(len(family.parents), 'parent')}. {about}."
    body = _PARTS.family(model, family, f"{about}.", home, addresses.results_of(model), len(family.children) >= _RESULTS)
    head = link_previews.tags(link_previews.Preview(heading, summary, "card/library.png"), origin) + _RESULT.style()
    return Page(heading, "Mantissa", "").served("", head, navigation(home, "Library") + Page(heading, "", body).titled())
