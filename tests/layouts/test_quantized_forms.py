"""Quantized weights in any form, on either side, are compared like the same values stored as fp32."""

from pathlib import Path
from typing import Any

import pytest
import torch

from analyzers.comparison.sparsity import SparsityReport
from tests.cases import few
from tests.layouts.architectures import F32, State, architecture
from tests.layouts.file_formats import write
from tests.layouts.pairs import sparsity
from tests.layouts.relayouts import FORMS

BLOCK = (24, 40)  # no parts that a form fuses or splits begin at a multiple of these
CASES = [(form.name, form.architectures[0]) for form in FORMS.values() if "moved" not in form.name]
FEW = [
    number
    for number, (name, _) in enumerate(CASES)
    if name in ("qkv by group", "gate and up fused", "transposed", "rotary rows", "experts stacked, gate and up alternating, inputs first")
]


def quantized(state: State) -> tuple[State, State]:
    """Every matrix as fp8 codes with scales of blocks, and the same values in fp32."""
    stored, plain = dict(state), dict(state)
    for name, tensor in state.items():
        if tensor.dim() not in (2, 3) or not tensor.is_floating_point():
            continue
        rows, columns = tensor.shape[-2:]
        down, across = -(-rows // BLOCK[0]), -(-columns // BLOCK[1])
        scale = torch.exp2(-torch.arange(tensor.shape[:-2].numel() * down * across) % 7 - 6.0).reshape(*tensor.shape[:-2], down, across)
        wide = scale.repeat_interleave(BLOCK[0], -2).repeat_interleave(BLOCK[1], -1)[..., :rows, :columns]
        codes = (tensor.to(F32) / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored |= {name: codes, f"{name}_scale_inv": scale}
        plain[name] = codes.to(F32) * wide
    return stored, plain


def facts(report: SparsityReport) -> dict[str, Any]:
    """What must not depend on how the values are stored."""
    unmatched = report.unmatched
    return {
        "changed": report.num_changed,
        "compared": report.total_parameters,
        "covered": [coverage.covered for coverage in report.coverage],
        "relaid": sorted((each.name, each.tuned_name, each.form) for each in unmatched.relaid),
        "unmatched": [len(each) for each in (unmatched.missing, unmatched.extra, unmatched.misshapen)],
        "changes": {row.name: row.num_changed for row in report.every("tensors")},
    }


@pytest.mark.parametrize(("form", "name"), few(CASES, FEW, [f"{form}, {name}" for form, name in CASES]))
def test_codes_are_compared_like_their_values(form: str, name: str, tmp_path: Path) -> None:
    of = architecture(name)
    stored, plain = quantized(FORMS[form](of, of.state))
    base = write(tmp_path / "base", of.state, of.config)
    codes = write(tmp_path / "codes", stored, of.config | {"quantization_config": {"weight_block_size": list(BLOCK)}})
    values = write(tmp_path / "values", plain, of.config)
    found, expected = facts(sparsity(base, codes, "exact")), facts(sparsity(base, values, "exact"))
    assert found == expected and found["compared"] > 0.9 * sum(tensor.numel() for tensor in of.state.values())
    assert facts(sparsity(codes, base, "exact")) == facts(sparsity(values, base, "exact"))
