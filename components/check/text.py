"""Words for the findings of each rule."""

from analyzers.check.report import WITH_BASE, CheckReport, Rule


def outcome(report: CheckReport, rule: Rule) -> str:
    """Return what a rule found, in a word or two."""
    if rule in report.not_applied:
        return "not applied"
    if rule in WITH_BASE and report.base is None:
        return "no base"
    levels = [each.level for each in report.findings if each.rule == rule]
    return levels[0] if levels else "nothing" if report.whole else "nothing in what was read"
