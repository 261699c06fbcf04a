"""What units, FFNs and samples are called on the page; plain text."""

from itertools import takewhile
from typing import TYPE_CHECKING

from components.text.names import source_name
from components.text.plain_text import shown

if TYPE_CHECKING:
    from analyzers.gradient_conflict.report import ConflictReport
    from analyzers.gradient_conflict.summaries import Measurement, NeuronCosines, NeuronRow

TOPK, ORIGINAL = "top-k FFN", "original FFN"
_EXCERPT = 64
_OURS = {"builtin": "the built-in text", "pairs": "pairs given"}


def data_name(report: "ConflictReport", pinned: bool = False) -> str:
    """Where the samples are from, ``pinned`` with the commit."""
    return source_name(report.data.source, _OURS, report.data.commit if pinned else None)


def unit(report: "ConflictReport") -> str:
    """A unit, in the singular."""
    return "neuron" if report.ffn.unit == "ffn" else "row of an attention projection"


def units(report: "ConflictReport") -> str:
    """Units, in the plural."""
    return "neurons" if report.ffn.unit == "ffn" else "rows of attention projections"


def unit_name(row: "NeuronRow | NeuronCosines") -> str:
    """One unit, by where it is: layer, expert or projection, and number."""
    within = f", expert {row.expert}" if row.expert is not None else f", {row.block}" if row.block is not None else ""
    return f"Layer {row.layer}{within}, {'neuron' if row.block is None else 'row'} {row.neuron}"


def sides(report: "ConflictReport") -> "list[tuple[str, Measurement]]":
    """The measurements, each with its name: top-k and original, or without top-k the only one, named after its units."""
    if report.original is None:
        return [(units(report), report)]
    return [(TOPK, report), (ORIGINAL, report.original)]


def excerpts(report: "ConflictReport", longest: int = _EXCERPT) -> list[str]:
    """The beginning of each sample's text, without the words that all of them begin with."""
    texts = [sample.text for sample in report.samples]
    ends = zip(min(texts), max(texts), strict=False)  # a prefix of the first and last in sorted order is one of all
    common = min(texts)[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends))] if len({*texts}) > 1 else ""
    start = max(common.rfind(" "), common.rfind("\n")) + 1
    left = [text[start:].strip() for text in texts]
    return [shown(text if len(text) <= longest else text[: longest - 1] + "…", longest) for text in left]
