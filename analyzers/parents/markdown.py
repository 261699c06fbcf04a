"""Writes the proof of descent as GitHub Markdown, for an issue about a conversion."""

from analyzers import markdown as md
from analyzers.formatting import count, plural, share
from analyzers.parents.conversion_text import damage_first, damaged, faithful_sentence, layer_runs, relation
from analyzers.parents.report import ParentsReport

_ROWS = 200
# GitHub refuses issues and comments of more than 65,536 characters.
_CHARACTERS = 60_000


def markdown(report: ParentsReport) -> list[str]:
    """Return verdict, statement, the commits of all sides, coverage, and the origin of each tensor, damaged ones first.

    Names from the checkpoints are untrusted: they cannot contain markup or links, or notify anybody.
    """
    side = report.checkpoint
    lines = [f"### Where the weights of {md.plain(side.ref)} come from", "", f"**{report.verdict}**: {md.plain(report.headline())}", ""]
    rows = [("model", side.ref, side.commit, "")]
    named = [each for each in report.candidates if each.ref in report.parents] or report.candidates[:1]
    rows += [("parent" if each.ref in report.parents else "candidate", each.ref, each.commit, share(each.equal_share)) for each in named]
    lines += md.table(("", "checkpoint", "commit", "equal in bf16"), rows, frozenset({3}))
    read = "Every value was read." if report.unseen is None else "A sample was read, at the same places on all sides."
    lines += ["", f"{read} Report `{report.id}`.", *_coverage(report)]
    if report.verdict == "stack":
        lines += ["", *(f"* {md.plain(run.text)}" for run in layer_runs(report.layer_map)[:_ROWS])]
    if report.conversion:
        lines += ["", f"**How each tensor got here**: {md.plain(faithful_sentence(report.conversion))}", ""]
    return [*lines, *_conversion(report, _CHARACTERS - len("\n".join(lines)))]


def _coverage(report: ParentsReport) -> list[str]:
    lines = [f"* {md.plain(said)}" for each in report.accounts() if (said := each.suffix(each.ref))]
    return ["", *(lines or ["Everything stored was compared."])]


def _conversion(report: ParentsReport, room: int) -> list[str]:
    """Return as many rows of the table as fit into ``room`` characters, and the number of the others."""
    rows = [
        (
            row.name,
            ", ".join(row.sources),
            row.form,
            f"{relation(row)}{' (damaged)' if damaged(row) else ''}",
            f"{count(row.exceptions)} of {count(row.values)}",
            row.note,
        )
        for row in damage_first(report.conversion)[:_ROWS]
    ]
    head = ("tensor", "source", "form", "relation", "exceptions", "note")
    lines = md.table(head, rows, frozenset({4}))
    while len("\n".join(lines)) > room and len(lines) > 2:
        lines.pop()
    left = len(report.conversion) - max(0, len(lines) - 2)
    return [*lines, *(["", f"{plural(left, 'more tensor')} in the report."] if left > 0 else [])]
