"""Checkpoints with tensors on several grids, as quantizers leave them: the answer says which roles are on which, and what is left out."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.dtype_detection.checkpoints import write
from tests.dtype_detection.reports import exact
from tests.grids.definitions import weights
from tests.grids.formats import FORMATS, dequantized

FORMS = {form.name: form for form in FORMATS}
ATTENTION, MLP = "model.layers.0.self_attn.{}_proj.weight", "model.layers.0.mlp.{}_proj.weight"


def made(name: str, seed: int) -> torch.Tensor:
    return dequantized(FORMS[name], "bf16", "gaussian", seed, 128, 512)


def native(seed: int) -> torch.Tensor:
    return weights("gaussian", 128, 512, seed).bfloat16()


def mixed_gguf() -> dict[str, torch.Tensor]:
    """As Q4_K_M."""
    fine = {ATTENTION.format("v"): made("gguf Q6_K", 0), MLP.format("down"): made("gguf Q6_K", 1), "lm_head.weight": made("gguf Q6_K", 2)}
    coarse = [ATTENTION.format("q"), ATTENTION.format("k"), MLP.format("up"), "model.embed_tokens.weight"]
    return fine | {name: made("gguf Q4_K", 3 + i) for i, name in enumerate(coarse)}


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
        "These bf16 weights are int4 with an offset in groups of 32 (embeddings, attention and mlp) and int6 in groups of 16 (attention, "
        "mlp and heads): 582 kB of 918 kB are redundant.",
    ),
    (
        with_ignored_layers,
        "40% of the weights, stored in bf16, are int4 in groups of 128 (attention and mlp): 195 kB of 655 kB are redundant. No grid is "
        "proven for embeddings, part of mlp and heads.",
    ),
    (
        experts_only,
        "40% of the weights, stored in bf16, are mxfp4 in groups of 32 (experts): 193 kB of 655 kB are redundant. No grid is proven for "
        "attention, routers and heads.",
    ),
]


@pytest.mark.parametrize(("kind", "said"), SETS, ids=[kind.__name__ for kind, _ in SETS])
def test_each_grid_is_named_with_its_roles_and_what_is_left_out(
    kind: Callable[[], dict[str, torch.Tensor]], said: str, tmp_path: Path
) -> None:
    assert on_grids(exact(write(tmp_path, kind()))) == said


def test_more_grids_than_a_sentence_names_are_mentioned(tmp_path: Path) -> None:
    names = ("torchao int8 row", "torchao int4 group 32", "torchao int3 group 64", "bitsandbytes nf4")
    report = exact(write(tmp_path, {f"{i}.weight": made(name, i) for i, name in enumerate(names)}))
    assert len(report.grids) == 4 and on_grids(report).count("(other tensors)") == 3 and " and on other grids: " in on_grids(report)
