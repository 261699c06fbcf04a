"""Draws badges: a model's precision as a small SVG for a README, from stored facts; nothing is computed.

Three parts: the training precision (a label takes precedence over an inference), what its values passed through, and whether they fit fp16.
On request: the result of the newest check of the upload, and its commit; and whether activations fit fp16 on the texts of the newest run.
"""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from analyzers.dtype import words
from components.text import numbers, render, shown

if TYPE_CHECKING:
    from analyzers.check import CheckReport
    from analyzers.precision import PrecisionReport
    from components.library import ModelRow

UNKNOWN = "unknown"
TRAINED, PASSED, FP16, CHECKED, RAN = "trained", "passed", "fp16", "checked", "activations"
KINDS = (TRAINED, PASSED, FP16, CHECKED, RAN)
PRECISION = (TRAINED, PASSED, FP16)
_LONGEST = 48
_HEIGHT = 20
_PADDING = 6
# Backgrounds on which white text has a contrast of at least 4.5:1.
_GREY, _NAME = "#62656d", "#3c3f46"
_LABEL, _PROOF, _INFERRED, _BAD = "#2f4ac0", "#0b7a55", "#855600", "#b42318"
_RISKS = {"fits": _PROOF, "caution": _INFERRED, "overflow": _BAD, "broken": _BAD}
_VERDICTS = {"safe": _PROOF, "at_risk": _INFERRED, "overflows": _BAD}
_NOT_PROVEN = words.NOTHING_PROVEN | {"undecided": UNKNOWN, "": UNKNOWN}


class Part(NamedTuple):
    """A part of a badge: a question, its answer, and the answer's colour. Plain text of any kind."""

    name: str
    value: str
    colour: str = _GREY


def parts(
    row: "ModelRow | None", kinds: Sequence[str] = PRECISION, check: "CheckReport | None" = None, run: "PrecisionReport | None" = None
) -> list[Part]:
    """Return the parts of ``kinds``, from the newest stored passport and the labels, a ``check``, and a ``run``; "unknown" without them."""
    made = {TRAINED: _trained(row), PASSED: _passed(row), FP16: _fp16(row), CHECKED: _checked(check), RAN: _ran(run)}
    return [made[kind] for kind in KINDS if kind in kinds]


def svg(badge: Sequence[Part], about: str) -> str:
    """Draw the badge. about: the model, for screen readers. All texts are escaped."""
    boxes, left = [], 0.0
    for part in badge:
        for text, colour in ((part.name, _NAME), (part.value, part.colour)):
            line = shown(text, _LONGEST)
            wide = _width(line)
            at, widths = (f"{left:.0f}", f"{left + _PADDING:.0f}"), (f"{wide + 2 * _PADDING:.0f}", f"{wide:.0f}")
            boxes.append({"left": at[0], "width": widths[0], "colour": colour, "text_left": at[1], "text_width": widths[1], "line": line})
            left += wide + 2 * _PADDING
    said = f"{about}: " + ", ".join(f"{part.name} {part.value}" for part in badge)
    return render("result/templates/badge.svg", width=f"{left:.0f}", height=_HEIGHT, said=said, boxes=boxes)


def etag(drawing: str) -> str:
    """Return the entity tag of a drawing, in quotes."""
    return f'"{hashlib.sha256(drawing.encode()).hexdigest()[:20]}"'


def _trained(row: "ModelRow | None") -> Part:
    if row is not None and row.precision:
        said = ("disputed",) * row.disputed + ("own label",) * row.own
        return Part("trained in", ", ".join((row.precision, *said)), _LABEL)
    if row is not None and row.disputed:
        return Part("trained in", "labels disagree", _INFERRED)
    trained = row.trained_in if row is not None else ""
    if row is not None and row.model.startswith("sample:"):  # trained for this project, so the precision is known
        return Part("trained in", trained, _LABEL)
    if trained in ("", "undecided"):
        return Part("trained in", UNKNOWN)
    return Part("trained in", f"{trained}, inferred", _INFERRED)


def _passed(row: "ModelRow | None") -> Part:
    through = row.passed_through if row is not None else ""
    if through in _NOT_PROVEN:
        return Part("passed through", _NOT_PROVEN[through] + (_reach(row) if through == "native" else ""), _GREY)
    formats = through.removeprefix("mixed ").replace("_", " ") + " in part" * through.startswith("mixed ")
    return Part("passed through", formats + _reach(row), _INFERRED if _reach(row) else _PROOF)


def _fp16(row: "ModelRow | None") -> Part:
    level = row.fp16_risk if row is not None else ""
    value, colour = (words.FP16[level], _RISKS[level]) if level in _RISKS else (UNKNOWN, _GREY)
    return Part("fp16", f"{value}{_reach(row)}", _INFERRED if _reach(row) and colour == _PROOF else colour)


def _reach(row: "ModelRow | None") -> str:
    """Say what the newest passport covers, if that is not the whole model."""
    return f", {row.reach}" if row is not None and row.reach else ""


def _checked(check: "CheckReport | None") -> Part:
    if check is None:
        return Part("checked", UNKNOWN)
    errors, warnings = check.count("error"), check.count("warning")
    found = numbers.plural(errors, "error") if errors else numbers.plural(warnings, "warning") if warnings else "nothing wrong"
    of = "" if check.checkpoint.ref.startswith("sample:") else shown(check.checkpoint.short_commit(7))
    reach = check.short_reach()
    said = f"{found}{f' in {of}' if of else ''}{f', {reach}' if reach else ''}"
    return Part("checked", said, _BAD if errors else _INFERRED if warnings or reach else _PROOF)


def _ran(run: "PrecisionReport | None") -> Part:
    """Say whether the values of the model's own weights fit fp16."""
    fits = run.fp16.verdict if run is not None and run.reference.weights == "pretrained" else None
    if run is None or fits is None:
        return Part("run in fp16", UNKNOWN)
    return Part("run in fp16", f"{fits.replace('_', ' ')} on {numbers.plural(run.inputs.predicted, 'token')}", _VERDICTS[fits])


def _width(text: str) -> float:
    """Estimate the width of ``text`` in pixels, in Verdana of 11 pixels; the drawn text is fitted to it."""
    return sum(4.0 if c in "iljtf.,: '|-" else 9.5 if c in "mwMW—…" else 6.9 for c in text)
