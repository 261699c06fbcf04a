"""The tables of check: findings, and what every rule looked for."""

from analyzers.check.report import CheckReport
from analyzers.check.text import names
from components.check.text import RULES, outcome
from components.text.markup import table
from components.text.plain_text import powers, shown


def findings(report: CheckReport) -> str:
    """A row per finding, the gravest first."""
    rows = [
        (
            each.level,
            each.title,
            shown(powers(each.detail), 1_000),
            f"{each.saving_bytes:,}" if each.saving_bytes else "–",
            shown(names(each), 1_000),
        )
        for each in report.findings
    ]
    titles = ("Level", "Finding", "What it is, and what to do", "Bytes to save", "Tensors")
    return table(titles, rows, frozenset({3}), stacked=True) if rows else ""


def rules(report: CheckReport) -> str:
    """A row per rule."""
    return table(("Rule", "Looks for", "Here"), [(rule, said, outcome(report, rule)) for rule, said in RULES.items()], stacked=True)
