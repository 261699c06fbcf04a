"""Decides whether the library may store a report, and what it stores about it: nothing that is not public leaves a trace."""

import re
from collections.abc import Iterator
from typing import Any

from analyzers.checkpoints.reference import HUB_TOKEN, summands
from analyzers.core import limits
from analyzers.core.coverage import Coverage
from analyzers.core.errors import MantissaError
from analyzers.core.formatting import share
from analyzers.core.report import Report
from analyzers.core.terminal import printable_json
from analyzers.core.untrusted_json import parse_json
from components.library.schema import Result

# Errors of `storable_result`, and of validating a row, for what is not as an analysis writes it; pydantic's is a ValueError.
MALFORMED = (MantissaError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
_BUILT_IN = ("", "builtin", "random")
_MAGNITUDES = ("abs_min", "abs_max", "norm_min", "norm_max")


def storable_result(text: str, *, key: str, created: str, contributor: str) -> Result | None:
    """Extract from a report's JSON what the library keeps; None if it must not be kept or is not a report.

    Not kept: checkpoints that are local or not public; a visitor's own text or data; reports that contain an access token; more than
    RESULT_BYTES. Raises ValueError (pydantic's too) and MantissaError for anything but a report in JSON, without NaN and Infinity.
    """
    size = len(text.encode())
    if size > limits.RESULT_BYTES or HUB_TOKEN.search(text):
        return None
    report = parse_json(text)
    checkpoints = list(_checkpoints(report))
    if not checkpoints or not all(_public(each) for each in checkpoints) or _given(report.get("request")):
        return None
    return Result(
        id=report["id"],
        key=key,
        analyzer=report["analyzer"],
        analysis_version=report["analysis_version"],
        models=tuple(each["ref"] for each in checkpoints),
        commits=tuple(each["commit"] for each in checkpoints),
        created=created,
        contributor=contributor,
        size=size,
        **(_dtype_facts(report) if report["analyzer"] == "dtype" else {}),
    )


def storable(report: Report, *, key: str, created: str, contributor: str) -> tuple[Result, str] | None:
    """Return what the library keeps of a report, and its JSON; None if it must not be kept, or names more than the library holds."""
    text = printable_json(report.model_dump_json())
    try:
        result = storable_result(text, key=key, created=created, contributor=contributor)
    except MALFORMED:
        return None
    return None if result is None else (result, text)


def data_is_built_in(text: str) -> bool:
    """Return whether a report's JSON is on built-in text and data only."""
    request = parse_json(text).get("request", {})
    return request.get("data", "") in _BUILT_IN and not _given(request)


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


def adapters_of(report: Any, base: str) -> list[str]:
    """Return the adapters of ``base`` (lower case) that a report's JSON is about: a comparison with them, or the check of one."""
    if report.get("analyzer") == "compare":
        report = report.get("sparsity") or {}
    if not report.get("adapter") or (report.get("base") or {}).get("ref", "").lower() != base:
        return []
    sides = [report["checkpoint"]] if "checkpoint" in report else report["tuned"]
    names = [part.text for side in reversed(sides) for part in summands(side["ref"], local=False)]
    return [name for name in names if name.lower() != base]


def _public(checkpoint: Any) -> bool:
    """Return whether anybody can read the checkpoint, according to the report. `Result` refuses paths."""
    return checkpoint.get("public") is True


def _given(request: Any) -> bool:
    """Return whether the request contains a visitor's own text or file; a dataset of the Hub does not count."""
    if not isinstance(request, dict) or request.get("pairs") or request.get("text") or request.get("logprobs"):
        return True
    data = request.get("data", "")
    return not isinstance(data, str) or (data not in _BUILT_IN and not re.fullmatch(r"(?:datasets/)?[\w-][\w.-]*/[\w.-]+(?:@.+)?", data))


def _dtype_facts(report: Any) -> dict[str, Any]:
    whole = not any(report["request"].get(name) for name in ("include", "exclude", "subfolder"))
    facts: dict[str, Any] = {"mode": report["mode"], "whole": whole}
    facts["storage"] = " ".join(each["dtype"] for each in report["storage"])[:200]
    # Without a proven ancestor, the verdict distinguishes "native" (there is none) from "undecided". Of "mixed", only parts have ancestors.
    verdict, ancestors = report["lineage"]["verdict"], report["lineage"]["passed_through"]
    facts["passed_through"] = " ".join(ancestors if ancestors and verdict != "mixed" else [verdict, *ancestors])
    facts["trained_in"] = report["training"]["verdict"]
    facts["fp16_risk"] = report["fp16_risk"]["level"]
    facts["reach"] = _reach(report)
    if report["mode"] == "exact" and whole and len(report["tensors"]) < limits.REPORT_TENSORS:
        facts |= _base_magnitudes(report["tensors"])
    return facts


def _reach(report: Any) -> str:
    """Say how much a report covers and, for a sample, the share of all blocks that may be of a kind that the sample did not show."""
    said = [short for each in report.get("coverage", ()) if (short := Coverage.model_validate(each).short())][:1]
    if not report["extremes"]["exact"]:
        said.append(f"sampled: {share(report['unseen'])} may differ" if report.get("unseen") else "sampled")
    return ", ".join(said)


def _base_magnitudes(tensors: Any) -> dict[str, float]:
    """Return the extremes that the classifier uses, over the base model without the LM head; empty if there are none."""
    base = [each for each in tensors if each["role"] != "head" and each["abs_max"] is not None]
    norms = [each["norm"] for each in base if each["norm"]]
    if not norms:
        return {}
    found = (min(each["abs_min"] for each in base), max(each["abs_max"] for each in base), min(norms), max(norms))
    return dict(zip(_MAGNITUDES, found, strict=True))
