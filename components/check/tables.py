"""Renders the lists below check's headline: the findings, and what every rule looked for."""

from analyzers.check.report import RULES, CheckReport, Level
from components.check.text import outcome
from components.text.markup import table, tag
from components.text.render import macros

_FINDINGS = macros("check/templates/findings.html")
_KINDS: dict[Level, str] = {"error": "warning", "warning": "inference", "info": "fact"}


def findings(report: CheckReport) -> str:
    """Render a block per finding, the gravest first, each with what to do about it."""
    return str(_FINDINGS.findings([(each, tag(_KINDS[each.level], each.level)) for each in report.findings]))


def rules(report: CheckReport) -> str:
    """Render a table with a row per rule."""
    return table(("Rule", "Looks for", "Here"), [(rule, said, outcome(report, rule)) for rule, said in RULES.items()], stacked=True)
