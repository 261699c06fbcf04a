"""Explicit dtype reports, for tests of how they are drawn."""

import math
from typing import Any, TypeVar

from analyzers.core.notes import Note
from analyzers.core.report import Environment, Report, Timing
from analyzers.dtype_detection import DtypeReport, DtypeRequest
from analyzers.dtype_detection.answers import advice, answer
from analyzers.dtype_detection.report import ANALYSIS_VERSION, Facts

COMMIT = "1f2e3d4c5b6a79881f2e3d4c5b6a79881f2e3d4c"
_Report = TypeVar("_Report", bound=Report)
HOSTILE = "<img src=x onerror=alert(1)>\"'&"


def of_model(ref: str, found: _Report) -> _Report:
    """Copy the report under another model's name."""
    facts = found.checkpoint.model_copy(update={"ref": ref, "commit": COMMIT})  # type: ignore[attr-defined]
    request = found.request.model_copy(update={"model": ref})  # type: ignore[attr-defined]
    return found.model_copy(update={"checkpoint": facts, "request": request})


def _evidence(proven: bool, **changes: Any) -> dict[str, Any]:
    evidence = {
        "test": "bf16_exact",
        "format": "bf16",
        "stored": "F32",
        "tested": 1_234_567,
        "distinct": 15_000,
        "exceptions": 0 if proven else 1_234_000,
        "log10_chance": -72_000.0,
        "result": "proven" if proven else "refuted",
    }
    return evidence | changes


def _tensor(name: str, layer: int | None, role: str) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": "F32",
        "shape": (64, 32),
        "parameters": 2048,
        "values_read": 2048,
        "role": role,
        "layer": layer,
        "abs_min": 0.0,
        "abs_min_nonzero": 3e-7,
        "abs_max": 1.5,
        "norm": 12.25,
        "zero": 1,
        "nan": 0,
        "inf": 0,
        "fp16_overflow": 0,
        "fp16_underflow": 0,
        "fp16_subnormal": 2,
        "fp16_inexact_subnormal": 1,
        "representable": {"fp16": 0.99, "bf16": 1.0, "tf32": 1.0, "fp8_e4m3": 0.07, "fp8_e5m2": 0.03},
        "lineage": {"verdict": "upcast-from-bf16", "passed_through": ("bf16",), "evidence": (_evidence(True),)},
        "fossil_rows": 0,
    }


def report(model: str = "sample:tiny-bf16-as-fp32", **changes: Any) -> DtypeReport:
    """Make the report of a small fp32 checkpoint upcast from bf16; ``changes`` replaces whole fields."""
    exponents = [{"exponent": e, "count": round(4e5 * math.exp(-((e + 6) ** 2) / 14)) + 1} for e in range(-23, 3)]
    roles = (("attention", 0.4), ("mlp", 0.7), ("norm", 1.2))
    layers = [
        {"layer": i, "role": role, "tensors": 3, "parameters": 9000, "abs_min_nonzero": 1e-8, "abs_max": top * (1 + i / 5), "rms": top / 20}
        for i in range(6)
        for role, top in roles
    ]
    layers += [
        {"layer": None, "role": r, "tensors": 1, "parameters": 9000, "abs_min_nonzero": 1e-8, "abs_max": 0.9, "rms": 0.02}
        for r in ("embedding", "head")
    ]
    fields: dict[str, Any] = {
        "analysis_version": ANALYSIS_VERSION,
        "id": "0" * 64,
        "timing": Timing(seconds=0.31, reading_seconds=0.31, bytes_per_second=2.1e7),
        "environment": Environment(python="3.11.2", machine="Linux x86_64", device="cpu", libraries={"numpy": "2.4.6"}),
        "request": DtypeRequest(model=model),
        "checkpoint": {
            "ref": model,
            "commit": "1f2e3d4c5b6a79881f2e3d4c5b6a79881f2e3d4c",
            "parameters": 1_700_000,
            "bytes": 6_800_000,
            "files": 1,
            "tensors": 39,
            "public": True,
            "quantization": None,
        },
        "mode": "quick",
        "bytes_read": 6_800_000,
        "values_read": 1_700_000,
        "requests": 12,
        "selected_tensors": 39,
        "selected_parameters": 1_700_000,
        "storage": [{"dtype": "F32", "tensors": 39, "parameters": 1_700_000, "bytes": 6_800_000}],
        "config_dtype": "float32",
        "quantization_config": None,
        "extremes": {"abs_min": 0.0, "abs_min_nonzero": 2.9e-8, "abs_max": 2.4, "norm_min": 0.4, "norm_max": 37.5, "exact": False},
        "counts": {
            "zero": 12,
            "nan": 0,
            "inf": 0,
            "fp16_overflow": 0,
            "fp16_underflow": 5,
            "fp16_subnormal": 1530,
            "fp16_inexact_subnormal": 700,
        },
        "representable": {"fp16": 0.99, "bf16": 1.0, "tf32": 1.0, "fp8_e4m3": 0.07, "fp8_e5m2": 0.03},
        "intervals": {"representable.fp16": {"estimate": 0.99, "low": 0.985, "high": 0.993}},
        "lineage": {
            "stored": "F32",
            "passed_through": ("bf16",),
            "verdict": "upcast-from-bf16",
            "evidence": (_evidence(True), _evidence(False, test="fp16_exact", format="fp16")),
            "parts": ({"verdict": "upcast-from-bf16", "tensors": 39, "parameters": 1_700_000},),
            "fossil_rows": 0,
            "telling": 1.0,
        },
        "training": {
            "verdict": "bf16",
            "probabilities": {"bf16": 0.9, "fp16": 0.06, "fp32": 0.04},
            "basis": "family",
            "nearest": "org/labelled",
            "nearest_precision": "bf16",
        },
        "fp16_risk": {"level": "fits", "reasons": ("underflow", "subnormal")},
        "exponents": exponents,
        "layers": layers,
        "tensors": [_tensor(f"model.layers.{i}.mlp.up_proj.weight", i, "mlp") for i in range(6)],
        "buffers": [],
        "notes": (),
    }
    fields |= changes
    facts = Facts.model_validate({name: fields[name] for name in fields.keys() & Facts.model_fields.keys()})
    others = {name: fields[name] for name in fields.keys() - Facts.model_fields.keys()}
    ref = str(others["checkpoint"]["ref"])
    words: dict[str, Any] = {"answer": answer(facts), "advice": advice(facts, ref, others.get("coverage", ()))}
    return DtypeReport.model_validate(dict(facts) | words | others)


def hostile_report() -> DtypeReport:
    """Make a report in which every text that can come from outside contains HTML."""
    plain = report()
    lineage = plain.lineage.model_dump() | {"stored": HOSTILE, "passed_through": (HOSTILE,)}
    return report(
        model=HOSTILE,
        checkpoint=plain.checkpoint.model_dump() | {"ref": HOSTILE, "commit": HOSTILE, "quantization": HOSTILE},
        request={"model": HOSTILE, "subfolder": HOSTILE, "include": HOSTILE},
        storage=[
            {"dtype": HOSTILE, "tensors": 1, "parameters": 1, "bytes": 1},
            {"dtype": "F32", "tensors": 1, "parameters": 1, "bytes": 1},
        ],
        config_dtype=HOSTILE,
        lineage=lineage,
        training={
            "verdict": HOSTILE,
            "probabilities": {HOSTILE: 0.95, "fp16": 0.05},
            "basis": "family",
            "source": f"https://example.org/{HOSTILE}",
            "nearest": HOSTILE,
            "nearest_precision": HOSTILE,
        },
        fp16_risk={"level": "overflow", "reasons": ("overflow",)},
        intervals={HOSTILE: {"estimate": 0.5, "low": 0.4, "high": 0.6}},
        layers=[{"layer": 0, "role": HOSTILE, "tensors": 1, "parameters": 1, "abs_min_nonzero": 1.0, "abs_max": 1.0, "rms": 1.0}],
        tensors=[_tensor(f"={HOSTILE}", 0, HOSTILE)],
        buffers=[{"name": HOSTILE, "dtype": HOSTILE, "shape": (1,)}],
        notes=(Note(code="unreadable-json", values={"file": HOSTILE}, text=HOSTILE),),
    )
