"""Finds where two JSON documents differ by more than rounding."""

import math
from collections.abc import Iterator
from typing import Any

# Fields of the run rather than the answer. Ids change with the version of the analysis.
_OF_THE_RUN = {"id", "analysis_version", "timing", "environment", "seconds", "peak_bytes", "work"}


def differences(before: Any, after: Any, tolerance: float, path: str = "") -> Iterator[str]:
    """Yield a line for each value that differs. Numbers may differ by ``tolerance``, relative or absolute; new fields are allowed.

    Sentences (any text with a space) are not compared, since their wording may improve.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in _OF_THE_RUN:
                continue
            if key not in after:
                yield f"{path}.{key}: missing"
            else:
                yield from differences(value, after[key], tolerance, f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{path}: {len(before)} items, then {len(after)}"
        for index, (left, right) in enumerate(zip(before, after, strict=False)):
            yield from differences(left, right, tolerance, f"{path}[{index}]")
    elif _is_number(before) and _is_number(after):
        if not math.isclose(before, after, rel_tol=tolerance, abs_tol=tolerance):
            yield f"{path}: {before!r}, then {after!r}"
    elif before != after and not (_is_sentence(before) and _is_sentence(after)):
        yield f"{path}: {str(before)[:150]!r}, then {str(after)[:150]!r}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_sentence(value: Any) -> bool:
    return isinstance(value, str) and " " in value
