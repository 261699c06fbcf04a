"""What models, units, FFNs and samples are called on the page; plain text."""

from itertools import takewhile
from typing import TYPE_CHECKING

from components.plain_text import shown

if TYPE_CHECKING:
    from analyzers.gradient_conflict.report import ConflictReport, Measurement

TOPK, ORIGINAL = "top-k FFN", "original FFN"
_EXCERPT = 64


def model_name(report: "ConflictReport") -> str:
    """The model as asked for, with its revision."""
    return shown(report.request.model)


def commit(report: "ConflictReport") -> str:
    """The beginning of the commit; nothing for a sample, which has none."""
    return "" if report.checkpoint.ref.startswith("sample:") else shown(report.checkpoint.commit[:7])


def data_name(report: "ConflictReport") -> str:
    """Where the samples are from."""
    return {"builtin": "the built-in text", "pairs": "pairs given"}.get(report.data.source, shown(report.data.source))


def unit(report: "ConflictReport") -> str:
    """One of what was measured."""
    return "neuron" if report.ffn.unit == "ffn" else "row of an attention projection"


def units(report: "ConflictReport") -> str:
    """What was measured, in the plural."""
    return "neurons" if report.ffn.unit == "ffn" else "rows of attention projections"


def sides(report: "ConflictReport") -> "list[tuple[str, Measurement]]":
    """What was measured, the FFN asked for first, each with its name; without top-k it is one, and the name is what was measured."""
    if report.original is None:
        return [(units(report), report)]
    return [(TOPK, report), (ORIGINAL, report.original)]


def excerpts(report: "ConflictReport", longest: int = _EXCERPT) -> list[str]:
    """The beginning of each sample's text, without the words with which all of them begin."""
    texts = [sample.text for sample in report.samples]
    ends = zip(min(texts), max(texts), strict=False)  # what the first and the last in order have in common all have
    common = min(texts)[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends))] if len({*texts}) > 1 else ""
    start = max(common.rfind(" "), common.rfind("\n")) + 1
    left = [text[start:].strip() for text in texts]
    return [shown(text if len(text) <= longest else text[: longest - 1] + "…", longest) for text in left]
