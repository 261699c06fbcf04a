"""Reports of check for reading: samples, a folder that is read in part, every finding and note, hostile names, and an error."""

import string
import tempfile
from pathlib import Path
from typing import Any

import mantissa
from analyzers.check import CheckReport
from analyzers.check.words import FINDINGS, WORDS, finding
from analyzers.core.errors import MantissaError
from tests.check.test_check import CONFIG, HEALTHY, with_projector
from tests.dtype.checkpoints import normal, write
from tests.words.hostile import HOSTILE, refusal

# A value for each field of the templates.
VALUES: dict[str, Any] = {
    "a": "BF16", "b": "F32", "base": "org/base", "buffers": 2, "bytes": 49_152, "empty": 3, "errors": 1,
    "expected": ("32", "32"), "file": "model-00001-of-00002.safetensors", "files": 2, "form": "transposed", "formats": ("bf16",),
    "factor": 0.5, "found": ("1 error", "2 warnings"), "grids": ("int4 in groups of 32",), "here": 3, "inf": 0, "key": "state_dict",
    "kinds": ("weights missing (1 tensor)", "2 more"), "last": 97, "layer": 5, "layers": 2, "lost": 2, "model": "org/model", "modules": 4,
    "name": "model.layers.0.self_attn.q_proj.weight", "named": "ZorgForCausalLM", "nan": 12, "norms": 8,
    "other": "model-00002-of-00002.safetensors", "pairs": ("2 of 0", "3 of 1"), "parameters": 1, "parents": ("org/base",),
    "path": "config.json", "remarks": 1, "rows": 96, "shape": ("16", "32"), "share": 0.5, "sought": ("model.safetensors",),
    "stated": "float16", "stored": "BF16", "tensors": 3, "unmatched": 2, "values": 12_288, "warnings": 2, "weights": 7,
 "why": "it has another shape", "all": 24, "before": 256, "codes": 20_929, "differ": ("eos_token_id 2 -> 7",), "distinct": 9,
    "dtype": "BF16", "entries": 12, "first": 2, "high": 3e-5, "largest": 448.0, "loaded": "float32", "low": 2.5e-5, "not_finite": 1,
    "number": 505, "offset": -1.0, "older": "float32", "part": "vision", "parts": 4, "promised": 4, "read": 46_128, "seconds": 2.0,
    "subnormal": 1, "token": "eos_token_id 505", "tokens": 2, "zero": 1_408,
    "longest": 500, "most": 10_000, "negative": 2, "wrong": ("qzeros I32 1 x 64 instead of I32 2 x 64",), "made": "4 bits",
}  # fmt: skip
# Fields that are something else in these templates.
OTHERS: dict[str, dict[str, Any]] = {
    "card-names-another-base": {"stated": ("org/other",)},
    "card-names-an-unrelated-base": {"stated": ("org/other",)},
    "mostly-one-value": {"values": ("1",)},
    "file-refused": {"files": ("pytorch_model.bin",)},
    "weights-not-found": {"files": ("model.fp16.safetensors",)},
    "codes-without-scale": {"part": "model.layers.0.self_attn.q_proj.weight_scale"},
    "codes-in-place-of-weights": {"form": "fp8 E4M3"},
    "halves-scaled-apart": {"parts": "gate, up"},
    "settings-against-shapes": {"stated": ("8 bits in groups of 64",), "made": "4 bits in groups of 64"},
    "loaded-in-another-dtype": {"stored": "bfloat16", "stated": ("float32",)},
    "parts-missing": {"promised": "4 experts", "key": "num_experts", "found": '3 experts in "model.layers.0.mlp.experts"'},
    "scales-that-do-not-fit": {"parts": ("codes I32 4 x 64", "qzeros I32 1 x 64")},
    "values-not-readable": {"why": 'The group index of "model.layers.0.mlp.down_proj.weight" is out of range.'},
    "stored-twice": {"name": "lm_head.weight", "other": "model.embed_tokens.weight"},
    "loading-not-judged": {"why": "the weights are GGUF."},
}


def values_of(code: str) -> dict[str, Any]:
    """Values for the fields of a template."""
    fields = {field for _, field, _, _ in string.Formatter().parse(WORDS.templates[code]) if field}
    return {field: OTHERS.get(code, {}).get(field, VALUES[field]) for field in fields}


def reports() -> dict[str, CheckReport | MantissaError]:
    """Return the reports; the names say what is special about each."""
    wide, unread = mantissa.check("sample:tiny-bf16-as-fp32"), with_folder("a folder with other weights")
    notes = [code for code in WORDS.templates if code.endswith(("-judged", "-tried", "-compared", "-instead"))]
    found = tuple(finding("loads", "error", code, ["model.norm.weight"], **values_of(code)) for code in FINDINGS)
    return {
        "stored wider": wide,
        "compared with its base": mantissa.check("sample:tiny-tuned", "sample:tiny-bf16"),
        "nothing found": mantissa.check("sample:tiny-fp32"),
        "an adapter": mantissa.check("sample:tiny-adapter"),
        "files that were not read": unread,
        "a part, in which nothing was found": with_answer(unread, "nothing-in-part", "look-further"),
        "a remark": with_answer(wide, "remarks", "nothing-to-change"),
        "loading was not judged, and every note": with_answer(wide, "nothing-found", "try-loading", *notes),
        "every finding": with_answer(wide, "errors", "fix-errors").model_copy(update={"findings": found}),
        "hostile names": with_folder(HOSTILE),
        "error": refusal(lambda: mantissa.check("./missing")),
    }


def with_answer(report: CheckReport, answer: str, advice: str, *notes: str) -> CheckReport:
    """Return a report without findings, with another answer, another advice and these notes."""
    said = {
        "answer": WORDS.note(answer, **values_of(answer)),
        "advice": WORDS.advice(advice, "dtype", report.checkpoint.ref, **values_of(advice)),
        "notes": tuple(WORDS.note(code, **values_of(code)) for code in notes),
    }
    return report.model_copy(update={"findings": (), "loading_judged": not notes, **said})


def with_folder(name: str) -> CheckReport:
    """Check a folder and a tensor of this name, with weights in another folder beside it."""
    with tempfile.TemporaryDirectory() as path:
        folder = with_projector(Path(path) / "model")
        zeros = {f"{name}.weight": 0 * normal(8, 8)}
        report = mantissa.check(write(folder, HEALTHY | zeros, CONFIG))
    return report.model_copy(update={"checkpoint": report.checkpoint.model_copy(update={"ref": f"./{name}"})})
