"""Made checkpoints against the oracle: every way in which two sides may differ, and every kind of value."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.sparsity.checkpoints import BF16, F16, F32, F64, Tensors, cast, model, pair, updated
from tests.sparsity.oracle import together
from tests.sparsity.oracle_comparison import agree, compare

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def compared(folder: Path, base: Tensors, tuned: Tensors, eta: float = 1e-3) -> None:
    """The report on a pair agrees with the oracle."""
    agree(compare(*pair(folder, base, tuned), eta=eta), together(base, tuned, eta))


@pytest.mark.parametrize("dtypes", list(itertools.combinations_with_replacement((BF16, F16, F32, F64, E4M3, E5M2), 2)), ids=str)
def test_every_two_dtypes(dtypes: tuple[torch.dtype, torch.dtype], tmp_path: Path) -> None:
    base = model(F64, layers=1)
    compared(tmp_path, cast(base, dtypes[0]), cast(updated(base), dtypes[1]))


def test_hostile_values(tmp_path: Path) -> None:
    """Each of these with each: signed zeros, subnormals, infinities, NaN payloads, ends of ranges, ties of the rounding."""
    patterns = np.array(
        [0, 1, 2, 0x7F, 0x80, 0x81, 0x3F80, 0x3F81, 0x3F7F, 0x7F7E, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF, 0x0400, 0x1234, 0x4237],
        np.uint16,
    )
    narrow = np.concatenate([patterns, patterns | 0x8000])
    base, tuned = (each.ravel() for each in np.meshgrid(narrow, narrow))
    compared(tmp_path / "bf16", {"a": _bits(base, BF16)}, {"a": _bits(tuned, BF16)})
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)  # below, at and above the middle between two bf16 values
    wide = np.array([high << 16 | bits for high in narrow.tolist() for bits in low.tolist()], np.uint32)
    base, tuned = (each.ravel() for each in np.meshgrid(wide, wide))
    compared(tmp_path / "fp32", {"a": _bits(base, F32)}, {"a": _bits(tuned, F32)})


def _bits(patterns: "np.ndarray[tuple[int, ...], np.dtype[np.unsignedinteger]]", dtype: torch.dtype) -> torch.Tensor:
    signed = patterns.astype(patterns.dtype.str.replace("u", "i"))
    return torch.from_numpy(signed).view(dtype)


def test_what_is_not_compared_is_told(tmp_path: Path) -> None:
    base = model()
    tuned = updated(base)
    lost, new = "model.layers.1.mlp.up_proj.weight", "model.layers.2.mlp.up_proj.weight"
    odd, turned = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"
    other = {name: tensor for name, tensor in tuned.items() if name != lost} | {new: torch.zeros(5, 7, dtype=BF16)}
    other |= {odd: torch.zeros(40, 48, dtype=BF16), turned: tuned[turned].t()}
    report = compare(*pair(tmp_path, base, other))
    left = [name for name in base if name not in (lost, odd)]
    agree(report, together({name: base[name] for name in left}, tuned))
    found = report.unmatched
    assert [each.name for each in found.missing] == [lost] and found.missing_parameters == base[lost].numel()
    assert [each.name for each in found.extra] == [new] and found.extra_parameters == 35
    assert [(each.name, each.tuned_shape) for each in found.misshapen] == [(odd, (40, 48))]
    assert [(each.name, each.form, each.agree) for each in found.relaid] == [(turned, "transposed", True)]
    assert found.counts == {
        "missing": 1, "extra": 1, "misshapen": 1, "renamed": 0, "resized": 0, "relaid": 1, "integers": 0, "tied": 0,
    }  # fmt: skip
    assert report.coverage[0].share == report.total_parameters / sum(tensor.numel() for tensor in base.values())


@pytest.mark.parametrize("rows", [64, 130])
def test_a_resized_embedding(rows: int, tmp_path: Path) -> None:
    base, name = model(), "model.embed_tokens.weight"
    tuned = updated(base)
    both = min(rows, 96)
    resized = torch.zeros(rows, 48, dtype=BF16)
    resized[:both] = tuned[name][:both]
    report = compare(*pair(tmp_path, base, tuned | {name: resized}))
    agree(report, together(base | {name: base[name][:both]}, tuned | {name: tuned[name][:both]}))
    assert [(each.name, each.shape, each.tuned_shape, each.rows) for each in report.unmatched.resized] == [
        (name, (96, 48), (rows, 48), both)
    ]
    (row,) = (row for row in report.tensors if row.name == name)
    assert (row.shape, row.parameters) == ((both, 48), both * 48)
    assert [each.whole for each in report.coverage] == [both == 96, both == rows]


@pytest.mark.parametrize("config", [{"model_type": "llama", "tie_word_embeddings": True}, {"model_type": "llama"}, None])
@pytest.mark.parametrize("left_out", [None, "base", "tuned"])
def test_a_tied_head_counts_once(config: dict[str, Any] | None, left_out: str | None, tmp_path: Path) -> None:
    """Where the configuration says so, and where nobody tells but the values: stored on both sides or on one."""
    base = model()
    base["lm_head.weight"] = base["model.embed_tokens.weight"].clone()
    tuned = updated(base)
    tuned["lm_head.weight"] = tuned["model.embed_tokens.weight"].clone()
    left = {name: tensor for name, tensor in base.items() if name != "lm_head.weight"}
    if left_out:
        del (base if left_out == "base" else tuned)["lm_head.weight"]
    report = compare(*pair(tmp_path, base, tuned, base_config=config, tuned_config=config))
    agree(report, together(left, tuned))
    assert [each.name for each in report.unmatched.tied] == ["lm_head.weight"] and "head" not in report.roles
