"""The comparison of reports notices what it must, and nothing else."""

from typing import Any

import pytest

from tests.comparison.differences import differences

REPORT = {"id": "a", "share": 0.25, "layers": [{"layer": 0, "rate": 1.0}], "verdict": "native", "note": "all is well", "missing": None}


def _found(**changes: Any) -> list[str]:
    return list(differences(REPORT, REPORT | changes, 1e-9))


@pytest.mark.parametrize(
    "changes",
    [
        {"share": 0.2500001},
        {"share": None},
        {"missing": 0.0},
        {"verdict": "mixed"},
        {"layers": []},
        {"layers": [{"layer": 0}]},
        {"note": None},
    ],
)
def test_a_changed_value_is_named(changes: dict[str, Any]) -> None:
    (line,) = _found(**changes)
    assert next(iter(changes)) in line


@pytest.mark.parametrize("changes", [{"share": 0.25 + 1e-12}, {"id": "b"}, {"note": "everything is fine"}, {"added": 1}])
def test_rounding_sentences_and_new_fields_are_allowed(changes: dict[str, Any]) -> None:
    assert _found(**changes) == []
