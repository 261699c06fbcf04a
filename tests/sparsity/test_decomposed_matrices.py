"""Which matrices are decomposed: all that are small enough, or some of every kind."""

from pathlib import Path

import pytest
import torch

from analyzers.checkpoints import Access, open_checkpoint
from analyzers.checkpoints import align as aligned
from analyzers.comparison.sparsity.matrices import chosen as chosen_of
from analyzers.core import limits
from tests.dtype.checkpoints import normal
from tests.sparsity.checkpoints import BF16, Tensors, cast, pair
from tests.sparsity.oracle_comparison import compare


def layered(layers: int) -> Tensors:
    tensors = {"model.embed_tokens.weight": normal(30, 8)}
    for layer in range(layers):
        start = f"model.layers.{layer}."
        tensors |= {f"{start}mlp.{name}_proj.weight": normal(12, 8, seed=layer) for name in ("up", "down")}
        tensors |= {f"{start}self_attn.q_proj.weight": normal(8, 8, seed=layer), f"{start}input_layernorm.weight": normal(8)}
    return cast(tensors, BF16)


def chosen(folders: tuple[Path, Path]) -> tuple[list[str], int]:
    sides = [open_checkpoint(str(folder), Access(local=True)) for folder in folders]
    try:
        pairs = [(base, tuned) for group in aligned(sides[0], sides[1:]).groups if (base := group.sides[0]) and (tuned := group.sides[1])]
        matrices = [pair for pair in pairs if len(pair[0].shape) == 2 and pair[0].elements]
        found = chosen_of(matrices, limits.SPECTRAL_MATRICES)
        return [base.name for base, _ in found], len(matrices) - len(found)
    finally:
        for side in sides:
            side.close()


@pytest.mark.parametrize("most", [1, 3, 4, 9, 13])
def test_some_of_every_kind_spread_over_the_layers(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPECTRAL_MATRICES", most)
    base = layered(10)
    names, left_out = chosen(pair(tmp_path, base, base))
    assert len(names) == len(set(names)) == most and left_out == 31 - most
    if most >= 4:
        for kind in ("up_proj", "down_proj", "q_proj"):
            layers = sorted(int(name.split(".")[2]) for name in names if kind in name)
            assert len(layers) >= (most - 1) // 3 and (len(layers) < 3 or layers[-1] - layers[0] >= 5)


def test_large_ones_are_left_out_and_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPECTRAL_ELEMENTS", 96)
    monkeypatch.setattr(limits, "SPECTRAL_SIDE", 8)
    base = layered(1) | {"model.layers.0.mlp.gate_proj.weight": normal(9, 9).to(BF16), "lm_head.weight": torch.zeros(0, 8)}
    names, left_out = chosen(pair(tmp_path, base, base))
    assert left_out == 2 and not {"model.embed_tokens.weight", "model.layers.0.mlp.gate_proj.weight", "lm_head.weight"} & set(names)
    report = compare(tmp_path / "base", tmp_path / "tuned", spectral=True)
    assert len(report.spectral) == 3 and report.notes[-1].values["matrices"] == 2
