"""Renders the lists below check's headline: the findings, and what every rule looked for."""

from analyzers.check.report import RULES, WITH_BASE, CheckReport, Level, Rule
from components.text import macros, table, tag

_FINDINGS = macros("check/templates/findings.html")
_KINDS: dict[Level, str] = {"error": "warning", "warning": "inference", "info": "fact"}


def findings(report: CheckReport) -> str:
    """Render a block per finding, the gravest first, each with what to do about it."""
    return _FINDINGS.findings([(each, tag(_KINDS[each.level], each.level)) for each in report.findings])


def rules(report: CheckReport) -> str:
    """Render a table with a row per rule."""
    return table(("Rule", "Looks for", "Here"), [(rule, said, outcome(report, rule)) for rule, said in RULES.items()], stacked=True)


def outcome(report: CheckReport, rule: Rule) -> str:
    """Return what a rule found, in a word or two."""
    if rule in report.not_applied:
        return "not applied"
    if rule in WITH_BASE and report.base is None:
        return "no base"
    levels = [each.level for each in report.findings if each.rule == rule]
    return levels[0] if levels else "nothing" if report.whole else "nothing in what was read"
