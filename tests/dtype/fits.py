"""Compares two fits: equal texts and counts, and numbers that agree up to the solver's accuracy."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel


def assert_same_fit(found: BaseModel, expected: BaseModel) -> None:
    """Assert that everything is equal except ``versions``, with numbers within 1e-6.

    The solver stops once no component of the gradient exceeds 1e-10. The penalised mean loss has a curvature of at least 0.0014 in every
    fold, so two solutions are within 2 sqrt(5) 1e-10 / 0.0014 = 4e-7 of each other, whatever the order of the sums.
    """
    one, other = (dict(_leaves(each.model_dump(mode="json"))) for each in (found, expected))
    assert one.keys() == other.keys()
    for path, value in other.items():
        if not path.startswith("/versions/"):
            assert one[path] == (pytest.approx(value, rel=1e-6, abs=1e-9) if isinstance(value, float) else value), path


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number and text of a JSON value with its path."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from _leaves(inner, f"{path}/{key}")
    else:
        yield path, value
