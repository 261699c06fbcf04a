"""Checkpoints with tensors on several grids, as quantizers leave them: the answer says which roles are on which, and what is left out."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from analyzers.grids import describe
from tests.dtype.checkpoints import write
from tests.dtype.reports import exact
from tests.grids.definitions import weights
from tests.grids.formats import FORMATS, dequantized

FORMS = {form.name: form for form in FORMATS}
ATTENTION, MLP = "model.layers.0.self_attn.{}_proj.weight", "model.layers.0.mlp.{}_proj.weight"


def made(name: str, seed: int) -> torch.Tensor:
    return dequantized(FORMS[name], "bf16", "gaussian", seed, 128, 512)


def native(seed: int) -> torch.Tensor:
    return weights("gaussian", 128, 512, seed).bfloat16()


def mixed_gguf() -> dict[str, torch.Tensor]:
    """As Q4_0 with finer matrices where it matters."""
    fine = {ATTENTION.format("v"): made("gguf Q8_0", 0), MLP.format("down"): made("gguf Q8_0", 1), "lm_head.weight": made("gguf Q8_0", 2)}
    coarse = [ATTENTION.format("q"), ATTENTION.format("k"), MLP.format("up"), "model.embed_tokens.weight"]
    return fine | {name: made("gguf Q4_0", 3 + i) for i, name in enumerate(coarse)}


def with_ignored_layers() -> dict[str, torch.Tensor]:
    """As llm-compressor, whose recipe ignores the head and one matrix."""
    ignored = {"lm_head.weight": native(0), "model.embed_tokens.weight": native(1), MLP.format("down"): native(2)}
    return ignored | {name: made("compressed-tensors int4 group 128", 3) for name in (ATTENTION.format("q"), MLP.format("up"))}


def experts_only() -> dict[str, torch.Tensor]:
    """As gpt-oss."""
    stack = torch.stack([made("gpt-oss mxfp4", i) for i in range(2)])
    others = (ATTENTION.format("q"), "model.layers.0.mlp.router.weight", "lm_head.weight")
    return {"model.layers.0.mlp.experts.down_proj": stack} | {name: native(i) for i, name in enumerate(others)}


SETS = [
    (
        mixed_gguf,
        {
            "int4 in groups of 32": ("embedding", "attention", "mlp"),
            "int8 in groups of 32": ("attention", "mlp", "head"),
        },
    ),
    (with_ignored_layers, {"int4 in groups of 128": ("attention", "mlp")}),
    (experts_only, {"mxfp4 in groups of 32": ("expert",)}),
]


@pytest.mark.parametrize(("kind", "grids"), SETS, ids=[kind.__name__ for kind, *_ in SETS])
def test_each_grid_is_named_with_its_roles(
    kind: Callable[[], dict[str, torch.Tensor]], grids: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    report = exact(write(tmp_path, kind()))
    assert {describe(grid): grid.roles for grid in report.grids} == grids
    assert all(grid.proven and grid.groups_on == grid.groups_tested for grid in report.grids)
