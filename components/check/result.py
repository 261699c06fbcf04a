"""Lays out the result of check: the headline with its tiles, and the tabs below."""

from analyzers.check.report import CheckReport, Level
from analyzers.check.text import markdown
from components.check import tables
from components.forms.form import command, permalink
from components.results.copy_offer import CopyOffer, on_hub
from components.results.coverage_tab import COVERAGE
from components.results.layout import Caption, Layout, Piece, Tab
from components.text import model_name, notes, numbers, shown
from components.text.headline import FACT, about_sample, answer, answered, card, model_head, tiles

_LEVELS: dict[Level, str] = {"error": "Errors", "warning": "Warnings", "info": "For information"}
_NONE: dict[Level, str] = {
    "error": "Nothing that makes it unusable or a different model from what it claims to be.",
    "warning": "Nothing that wastes bytes or would surprise anyone who loads it.",
    "info": "Nothing else worth knowing.",
}


def headline(report: CheckReport, links: bool = True) -> str:
    """Render the head, the answer and the tiles. links: include those that work only on the app's pages."""
    side = report.checkpoint
    against = f", compared with {shown(report.base.ref)}" if report.base else ""
    facts = (
        f"{numbers.plural(side.tensors, 'tensor')}, {numbers.size(side.bytes)}{against}. "
        f"{'Read all of it in' if report.whole else 'Took'} {numbers.duration(report.timing.seconds)}"
    )
    return card(
        "Check",
        model_head(model_name(report), side, facts),
        answered(report, report.headline(), links),
        about_sample(side.ref, shows=True),
        tiles(
            report,
            links,
            ("check-bytes", _saving(report)),
            *(("check", _level(report, level, name)) for level, name in _LEVELS.items()),
        ),
        notes(report.notes),
    )


def _saving(report: CheckReport) -> str:
    of = f"Of {report.checkpoint.bytes:,} bytes of tensors"
    if not report.saving_bytes:
        none = "none" if report.whole else "none that was read"
        return answer("Could be saved", "0 B", FACT, f"{of} {none} is wasted, as far as the rules can tell.")
    share = numbers.share(report.saving_bytes / report.checkpoint.bytes)
    return answer("Could be saved", numbers.size(report.saving_bytes), FACT, f"{of}, {report.saving_bytes:,} ({share}), changing no value.")


def _level(report: CheckReport, level: Level, name: str) -> str:
    titles = [each.title for each in report.findings if each.level == level]
    none = _NONE[level] if report.whole else f"{_NONE[level].removesuffix('.')}, in what was read."
    return answer(name, f"{len(titles)}", FACT, f"{'; '.join(titles)}." if titles else none)


def copy_offer(report: CheckReport) -> CopyOffer | None:
    """Offer what a finding proves: tensors whose values all fit a narrower format."""
    upcast = next((each for each in report.findings if each.rule == "upcast"), None)
    if upcast is None or not on_hub(report.checkpoint):
        return None
    after = report.checkpoint.bytes - upcast.saving_bytes
    return CopyOffer(report.checkpoint, after, f"Every value was read: {upcast.detail.partition('.')[0]}, and the rest keeps its format.")


RESULT: Layout[CheckReport] = Layout(
    "Check of an upload",
    model_name,
    headline,
    permalink,
    command,
    (
        Tab(
            "Findings",
            [Piece(tables.findings), Caption("What was looked for. The rules about a base need one to compare with."), Piece(tables.rules)],
        ),
        COVERAGE,
    ),
    markdown=markdown,
    copy=copy_offer,
)
