"""The built-in samples have known histories: every verdict on them is right."""

import pytest

from tests.dtype.reports import exact, inspect, parsed

# Name: verdict, ancestors, training, fp16 risk.
KNOWN = {
    "tiny-fp32": ("native", (), "fp32", "fits"),
    "tiny-bf16": ("native", (), "bf16", "fits"),
    "tiny-fp16-mixed": ("native", (), "fp16-mixed", "fits"),
    "tiny-bf16-as-fp32": ("upcast-from-bf16", ("bf16",), "bf16", "fits"),
    "tiny-fp16-as-fp32": ("upcast-from-fp16", ("fp16",), "fp16-mixed", "fits"),
    "tiny-bf16-as-fp16": ("downcast-from-bf16", ("bf16",), "bf16", "fits"),
    "tiny-tuned": ("native", (), "bf16", "fits"),
    "tiny-step-4": ("native", (), "bf16", "fits"),
    "tiny-sharded": ("native", (), "bf16", "fits"),
    "tiny-overflow": ("native", (), "bf16", "overflow"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_histories(name: str) -> None:
    verdict, ancestors, trained, risk = KNOWN[name]
    report = exact(f"sample:{name}")
    assert (report.lineage.verdict, report.lineage.passed_through) == (verdict, ancestors)
    assert {part.verdict for part in report.lineage.parts} <= {verdict, "undecided"}
    assert (report.training.verdict, report.training.basis) == (trained, "label")
    assert report.fp16_risk.level == risk
    assert report.lineage.fossil_rows == 0
    assert report.checkpoint.ref == f"sample:{name}" and report.checkpoint.public
    parsed(report)
    quick = inspect(f"sample:{name}")
    assert quick.lineage == report.lineage and quick.counts == report.counts


def test_what_a_merge_computes_is_stored_nowhere() -> None:
    report = exact("sample:tiny-bf16+sample:tiny-adapter")
    assert [(row.dtype, row.tensors, row.computed) for row in report.storage] == [("BF16", 26, False), ("F32", 12, True)]
