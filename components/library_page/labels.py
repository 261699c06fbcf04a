"""Labels in HTML: their evidence, who gave them, and all that is said of one model, so that disagreement can be judged by its evidence."""

from collections.abc import Sequence
from typing import Any

from analyzers.formatting import day
from components.library import Consensus, Label, LabelRow, Library
from components.site import addresses
from components.text import numbers
from components.text.markup import cited, head, tag
from components.text.plain_text import html

_QUOTE = 2_000
_SHORT = 90


def evidence(label: Label, short: bool = False) -> str:
    """What a label rests on: a link that shows its host, a quote, or both."""
    quoted = f"“{html(label.evidence_quote, _SHORT if short else _QUOTE)}”" if label.evidence_quote else ""
    linked = cited(label.evidence_link, "") if label.evidence_link else ""
    return " ".join(filter(None, (linked, quoted)))


def contributor(label: Label) -> str:
    """Who gave a label, and how that is known."""
    name = html(label.contributor)
    if label.provenance == "local":
        return f"{name} {tag('undecided', 'no login')}"
    if label.provenance == "seed":
        return f"{name} {tag('fact', 'reference')}"
    return f"{name} {tag('proof', 'of the organisation')}" if label.author else name


def state(row: Any) -> str:
    """Where a contribution is by now."""
    published = f" <small>@&nbsp;{html(row.commit[:7])}</small>" if row.state == "published" and row.commit else ""
    return f"{html(row.state)}{published}"


def model_labels(library: Library, model: str) -> str:
    """Everything that is said of ``model``: what most say, whether that is disputed, each label with its evidence, and those replaced."""
    found = library.consensus(model)
    row = library.model(model)
    name = row.model if row is not None else found.model
    newest = f' <a href="{addresses.stored(row.result)}">Stored passport</a>' if row is not None and row.result else ""
    links = f'<a href="./{addresses.passport(name)}">Passport</a>{newest}'
    replaced = [each for each in library.history(model) if not each.current]
    older = ""
    if replaced:
        title = f"{numbers.plural(len(replaced), 'label')} replaced since"
        older = f'<details class="m-older"><summary>{title}</summary>{_rows(replaced, False)}</details>'
    return (
        f'<section class="m-card" aria-label="Labels of {html(name)}">{head(html(name), "")}'
        f'<p class="m-say">{_verdict(found)} <span class="m-links">{links} '
        f'<img src="{html(addresses.badge(name), 500)}" alt="Badge of {html(name)}" height="20"></span></p>'
        f"{_rows(found.labels, True) if found.labels else ''}{older}</section>"
    )


def _verdict(found: Consensus) -> str:
    if not found.labels:
        return "Nobody has labelled this model yet: add what you know below."
    mark = tag("warning", "labels disagree") if found.disputed else tag("label", "label")
    said = f"{found.sentence[:1].upper()}{found.sentence[1:]}."
    why = " Judge by the evidence; a label that does not say what its evidence says can be flagged." if found.disputed else ""
    return f"{mark} <b>{html(said, 300)}</b>{why}"


def _rows(rows: Sequence[LabelRow], flags: bool) -> str:
    titles = ("Trained in", "Evidence", "Contributor", "Added", "State", *(("Doubts",) if flags else ()))
    top = "".join(f'<th scope="col">{title}</th>' for title in titles)
    body = []
    for row in rows:
        cells = [html(row.label.precision), evidence(row.label), contributor(row.label), html(day(row.label.created)), state(row)]
        if flags:
            doubts = f"{tag('warning', numbers.plural(row.flags, 'flag'))} " if row.flags else ""
            name = html(f"Flag the label {row.label.precision} by {row.label.contributor}", 300)
            cells.append(f'{doubts}<button type="button" class="m-flag" data-flag="{row.label.id}" aria-label="{name}">Flag</button>')
        body.append("<tr>" + "".join(f'<td data-title="{t}"><span>{c}</span></td>' for t, c in zip(titles, cells, strict=True)) + "</tr>")
    return (
        f'<div class="m-scroll"><table class="m-table m-stacked"><thead><tr>{top}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )
