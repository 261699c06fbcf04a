"""Sentences that answer a check, and the advice that follows."""

from typing import TYPE_CHECKING

from analyzers.base import NextStep
from analyzers.check.report import LEVELS
from analyzers.formatting import plural, size

if TYPE_CHECKING:
    from analyzers.check.report import CheckReport

_WORDS = {"error": "error", "warning": "warning", "info": "remark"}


def headline(report: "CheckReport") -> str:
    """Count the findings of each level, and say how many bytes could be saved and how far the answer reaches."""
    reach, unread = report.reach(), report.unread()
    if report.findings == unread and reach:
        done = "compared" if report.coverage[0].read_as_a_whole else "read"  # the first account is the model's
        return f"Nothing found in what was {done}, which is not all. {reach}"
    if report.findings == unread:
        fit = "whether it fits its base" if report.adapter else "how transformers loads it"
        limit = "" if report.loading_judged else f"; {fit} was not judged in full"
        what = f"{plural(report.checkpoint.tensors, 'tensor')}{' of an adapter' if report.adapter else ''}{limit}."
        if not unread:
            return f"Nothing found in {what}"
        others = plural(len(unread[0].tensors), "other file that may hold weights was", "other files that may hold weights were")
        return f"Nothing found in what was read, {what} {others} not judged."
    found = ", ".join(plural(report.count(level), _WORDS[level]) for level in LEVELS[::-1] if report.count(level))
    saved = f" {report.saving_bytes:,} of {report.checkpoint.bytes:,} bytes could be saved." if report.saving_bytes else ""
    return f"{found}{' in an adapter' if report.adapter else ''}.{saved}{f' {reach}' if reach else ''}"


def next_step(report: "CheckReport") -> NextStep:
    """Advise on the gravest findings, and link to the model's passport."""
    upcast = [each for each in report.findings if each.rule == "upcast"]
    if report.count("error"):
        advice = "Fix the errors before anyone loads this checkpoint; each finding says how."
    elif upcast:
        advice = f"Save it with mantissa shrink: {size(upcast[0].saving_bytes)} less, and no value changes."
    elif report.count("warning"):
        advice = "Each warning says what to change before you publish it."
    elif not report.loading_judged:
        about = "its base" if report.adapter else "loading"
        advice = f"Load it before you rely on it: a note says what was not judged about {about}."
    elif not report.whole:
        advice = "Look at what was left out before you rely on it: nothing needs to change in the rest."
    elif report.unread():
        advice = "Nothing needs to change in what was read; other files that may hold weights were not judged."
    else:
        advice = "Nothing needs to change."
    return NextStep(advice, "dtype", report.checkpoint.ref)
