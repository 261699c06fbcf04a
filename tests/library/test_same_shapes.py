"""Which passports have the same fingerprint of shapes."""

from typing import Any

from components.library.same_shapes import fingerprint
from tests.library.reports import report

LAYERS: list[dict[str, Any]] = [row.model_dump() for row in report("org/name").layers]


def test_what_makes_a_difference() -> None:
    known = fingerprint(LAYERS)
    assert len(known) == 32 and fingerprint([]) == ""
    resized = [row | {"parameters": 7} if row["role"] in ("embedding", "head") else row for row in LAYERS]
    same = [LAYERS[::-1], resized, [row for row in LAYERS if row["role"] != "head"], [row | {"abs_max": 9.0} for row in LAYERS]]
    assert {fingerprint(layers) for layers in same} == {known}
    index, changed = next((index, row) for index, row in enumerate(LAYERS) if row["role"] not in ("embedding", "head"))
    others = [changed | other for other in ({"tensors": changed["tensors"] + 1}, {"parameters": 1}, {"layer": 99}, {"role": "other"})]
    prints = {fingerprint([*LAYERS[:index], other, *LAYERS[index + 1 :]]) for other in others}
    assert len(prints | {known}) == len(others) + 1
