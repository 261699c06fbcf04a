"""Decides whether the library may store a report, and what its row says about it: nothing that is not public leaves a trace."""

import re
from collections.abc import Iterator
from typing import Any

from analyzers.checkpoints.reference import HUB_TOKEN
from analyzers.core import limits
from analyzers.core.errors import MantissaError
from analyzers.core.report import Report
from analyzers.core.terminal import printable, printable_json
from analyzers.core.untrusted_json import parse_json
from components.library.items import ResultRow
from components.library.same_shapes import fingerprint

_BUILT_IN = ("", "builtin", "random")
_DATASET = re.compile(r"(?:datasets/)?[\w-][\w.-]*/[\w.-]+(?:@.+)?")
_NARROW = ("bf16", "fp16")


def storable(report: Report, key: str, created: str) -> tuple[ResultRow, str] | None:
    """Return the row of a report and its JSON; None if it must not be stored.

    Not stored: checkpoints that are local or not public; a visitor's own text or data; reports that contain an access token; more than
    RESULT_BYTES.
    """
    text = printable_json(report.model_dump_json())
    if len(text) > limits.RESULT_BYTES or HUB_TOKEN.search(text):
        return None
    content = parse_json(text)
    checkpoints = list(_checkpoints(content))
    if not checkpoints or not all(each.get("public") is True for each in checkpoints) or _given(content.get("request")):
        return None
    try:
        row = ResultRow(
            id=report.id,
            key=key,
            analyzer=report.analyzer,
            analysis_version=report.analysis_version,
            models=tuple(each["ref"] for each in checkpoints),
            commits=tuple(each["commit"] for each in checkpoints),
            created=created,
            answer=printable(report.answer.text)[:500],
            reach=report.short_reach(),
            **(_passport_facts(content) if report.analyzer == "dtype" else {}),
            **_saving(content),
        )
    except (MantissaError, ValueError):  # a path, or more checkpoints than a row holds
        return None
    return row, text


def is_report_of(row: ResultRow, text: bytes) -> bool:
    """Return whether JSON from the dataset may be the report of ``row``: without a token, and with its id."""
    try:
        return not HUB_TOKEN.search(text.decode()) and parse_json(text)["id"] == row.id
    except (ValueError, LookupError, TypeError):
        return False


def _checkpoints(report: Any) -> Iterator[dict[str, Any]]:
    """Yield the checkpoints, the subject first. In a comparison, the last tuned checkpoint is the subject, and the base comes last."""
    if "checkpoint" in report:
        yield report["checkpoint"]
        yield from report.get("candidates", ())
    if report.get("analyzer") == "compare":  # the report of parents in it names all of them, the descendant first
        yield from _checkpoints(report["parents"])
    yield from reversed(report.get("tuned", ()) if report.get("analyzer") == "sparsity" else ())
    if report.get("base"):
        yield report["base"]


def _given(request: Any) -> bool:
    """Return whether the request contains a visitor's own text or file; a dataset of the Hub does not count."""
    if not isinstance(request, dict) or request.get("text") or request.get("logprobs"):
        return True
    data = request.get("data", "")
    return not isinstance(data, str) or (data not in _BUILT_IN and not _DATASET.fullmatch(data))


def _passport_facts(report: Any) -> dict[str, Any]:
    whole = not any(report["request"].get(name) for name in ("include", "exclude", "subfolder"))
    # Without a proven ancestor, the verdict distinguishes "native" (there is none) from "undecided". Of "mixed", only parts have ancestors.
    verdict, ancestors = report["lineage"]["verdict"], report["lineage"]["passed_through"]
    facts: dict[str, Any] = {
        "mode": report["mode"],
        "whole": whole,
        "storage": " ".join(each["dtype"] for each in report["storage"])[:200],
        "passed_through": " ".join(ancestors if ancestors and verdict != "mixed" else [verdict, *ancestors])[:200],
        "trained_in": report["training"]["verdict"],
        "fp16_risk": report["fp16_risk"]["level"],
        "shapes": fingerprint(report["layers"]) if whole else "",
    }
    if report["mode"] == "exact" and whole and len(report["tensors"]) < limits.REPORT_TENSORS:
        facts |= _base_magnitudes(report["tensors"])
    return facts


def _base_magnitudes(tensors: Any) -> dict[str, float]:
    """Return the extremes that the classifier uses, over the base model without the LM head; empty if there are none."""
    base = [each for each in tensors if each["role"] != "head" and each["abs_max"] is not None]
    norms = [each["norm"] for each in base if each["norm"]]
    if not norms:
        return {}
    smallest, largest = min(each["abs_min"] for each in base), max(each["abs_max"] for each in base)
    return {"abs_min": smallest, "abs_max": largest, "norm_min": min(norms), "norm_max": max(norms)}


def _saving(report: Any) -> dict[str, Any]:
    """Return the bytes of a model's files, and how many fewer they need for the same values, of a check or a passport.

    A passport counts float32 tensors whose values all fit a 16-bit format.
    """
    if report["analyzer"] == "check":
        return {"bytes": report["checkpoint"]["bytes"], "wasted": report["saving_bytes"]}
    if report["analyzer"] != "dtype" or any(report["request"].get(name) for name in ("include", "exclude", "subfolder")):
        return {}
    narrow = [row for row in report["tensors"] if row["dtype"] == "F32" and 1 in (row["representable"][name] for name in _NARROW)]
    return {"bytes": report["checkpoint"]["bytes"], "wasted": sum(2 * row["parameters"] for row in narrow)}
