"""Passports for reading: a built-in sample, and small checkpoints of known history."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from analyzers.checkpoints import Access
from analyzers.core.errors import MantissaError
from analyzers.core.report import Report
from analyzers.dtype import DtypeReport, DtypeRequest, analyze
from tests.dtype.checkpoints import from_fp8, normal, through, write
from tests.dtype.quantized import integers, weights
from tests.sparsity.adapters import base, factors, write_adapter
from tests.words.hostile import HOSTILE, refusal

BF16, F16, F32, F8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
WEIGHT = "model.layers.0.mlp.up_proj.weight"


def reports() -> dict[str, Report | MantissaError]:
    """Make the reports; the names say what is special about each."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            "an upcast sample": _of("sample:tiny-bf16-as-fp32"),
            "a downcast sample": _of("sample:tiny-bf16-as-fp16"),
            "a sample in fp16": _of("sample:tiny-fp16-mixed"),
            "a sample with an overflow": _of("sample:tiny-overflow"),
            "a sample in bf16": _of("sample:tiny-bf16"),
            "the norms of a sample": _of("sample:tiny-bf16", include="layernorm"),
            **_written(Path(folder)),
        }


def _written(folder: Path) -> dict[str, Report | MantissaError]:
    on_grid = torch.from_numpy(integers(weights(256, 512), 4, 128, False, F32).astype(np.float32)).to(BF16)
    moved = torch.where(torch.from_numpy(np.random.default_rng(0).random((256, 512)) < 0.01), normal(256, 512).to(BF16), on_grid)
    native, upcast, other = normal(256, 512), through(normal(128, 512, seed=1), BF16, F32), normal(128, 512, seed=2)
    of_rows = torch.cat([through(normal(16, 512, seed=5), BF16, F32), other])
    made: dict[str, tuple[dict[str, torch.Tensor], dict[str, Any]]] = {
        "native weights, sampled": ({WEIGHT: native, "model.norm.weight": torch.ones(512)}, {"mode": "quick", "budget": 40_000}),
        "upcast weights, some excluded": ({WEIGHT: upcast, "lm_head.weight": other}, {"exclude": "lm_head"}),
        "upcast and native weights": ({WEIGHT: upcast, "model.embed_tokens.weight": other}, {}),
        "rows that were never updated": ({WEIGHT: of_rows}, {}),
        "weights that were fp8": ({WEIGHT: from_fp8(normal(256, 512), F8, BF16)}, {"quantize": ("fp8", "int4")}),
        "codes of fp8 whose scale was lost": ({WEIGHT: (normal(256, 512) * 5000).clamp(-448, 448).to(F8).to(BF16)}, {}),
        "weights on int4": ({WEIGHT: on_grid}, {}),
        "weights on int4, partly trained since": ({WEIGHT: moved}, {}),
        "stored as fp8": ({WEIGHT: normal(64, 64).to(F8)}, {}),
        "one constant": ({"model.norm.weight": torch.full((64, 64), 0.37)}, {}),
        "tiny weights": ({WEIGHT: normal(256, 512, scale=1e-5).to(BF16)}, {}),
        "hostile names, with NaN": ({HOSTILE: torch.full((64, 64), float("nan")), WEIGHT: native}, {"quantize": ("int4",)}),
    }
    found: dict[str, Report | MantissaError] = {}
    for number, (title, (tensors, asked)) in enumerate(made.items()):
        report = _of(str(write(folder / str(number), tensors, {"torch_dtype": "float32"})), **asked)
        found[title] = _named(report, HOSTILE if HOSTILE in tensors else "./checkpoint")
    path, tensors = base(folder)
    adapter = write_adapter(folder / "adapter", factors(tensors, 0.01, "q_proj", "up_proj"))
    found["an adapter merged into its base"] = _named(_of(f"{path}+{adapter}"), "./base+./adapter")
    found["a filter that matches nothing"] = refusal(lambda: _of("sample:tiny-bf16", include="nothing"))
    return found


def _of(model: str, **asked: Any) -> DtypeReport:
    *_, report = analyze(DtypeRequest(model=model, **{"mode": "exact", **asked}), Access(local=True))
    assert isinstance(report, DtypeReport)
    return report


def _named(report: DtypeReport, ref: str) -> DtypeReport:
    """Return the same report on another folder than a temporary one."""
    notes = tuple(note for note in report.notes if "path" not in note.values and "base" not in note.values)
    account = report.coverage[0].model_copy(update={"ref": ref})
    return report.model_copy(
        update={"checkpoint": report.checkpoint.model_copy(update={"ref": ref}), "notes": notes, "coverage": (account,)}
    )
