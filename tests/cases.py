"""Chooses the cases of a test that `make test` runs; `make test-all` runs all."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], kept: Collection[int], ids: Collection[str] | None = None) -> list[Any]:
    """Return parameters of a test, of which all but those numbered in ``kept`` are exhaustive. A tuple is several parameters of a case."""
    names = list(ids) if ids else None
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            id=names[number] if names else None,
            marks=() if number in kept else pytest.mark.exhaustive,
        )
        for number, case in enumerate(cases)
    ]
