"""A sample of a matrix that one side stores turned: tiles, whose values are those at their places, within budget and requests."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from analyzers.checkpoints import Access, open_checkpoint, stream
from analyzers.checkpoints.elements import read_bytes
from analyzers.checkpoints.matching.align import align
from analyzers.checkpoints.reading.read_plan import Plan
from tests.parents import quantized_files as files

NAME, ROWS, COLUMNS = "model.layers.0.mlp.up_proj.weight", 1024, 768
REQUESTS = 60


def decoded(folder: str, layout: str) -> torch.Tensor:
    """Compute the values (out, in) from the published formulas."""
    stored = load_file(f"{folder}/model.safetensors")
    module = NAME.removesuffix("weight")
    shifts, order = torch.arange(8) * 4, [0, 4, 1, 5, 2, 6, 3, 7] if layout == "awq" else list(range(8))
    words, zeros = ((stored[module + part].unsqueeze(-1) >> shifts & 15) for part in ("qweight", "qzeros"))
    zero = (zeros[..., order].flatten(1) + (layout == "gptq")).repeat_interleave(64, 0)
    code = words.permute(0, 2, 1).reshape(COLUMNS, ROWS) if layout == "gptq" else words[..., order].flatten(1)
    return ((code - zero) * stored[module + "scales"].float().repeat_interleave(64, 0)).T.contiguous()


@pytest.mark.parametrize("source_first", [False, True])
@pytest.mark.parametrize("layout", ["gptq", "awq"])
def test_values_of_tiles_are_those_at_their_places(layout: str, source_first: bool, tmp_path: Path) -> None:
    weight = 0.02 * torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))
    copy = (
        files.gptq(tmp_path / "copy", {NAME: weight}, calibrated=False)
        if layout == "gptq"
        else files.awq(tmp_path / "copy", {NAME: weight})
    )
    expected = decoded(copy, layout)
    (tmp_path / "source").mkdir()
    save_file({NAME: expected}, tmp_path / "source" / "model.safetensors")
    sides = [open_checkpoint(str(path), Access(local=True)) for path in (copy, tmp_path / "source")][:: -1 if source_first else 1]
    for budget in (80_000, 160_000):
        plan = Plan.sampled(align(sides[0], sides[1:]).sides, budget, REQUESTS, seed=3)
        assert len(plan.spans) > 2 and plan.population.tolist() == [ROWS * COLUMNS] and not plan.exact
        for side in range(2):
            tensors = [span.sides[side] for span in plan.spans]
            assert sum(read_bytes(each, 0, each.elements) for each in tensors if each is not None) <= budget
            assert sum(1 if each is None or each.stored is None else each.stored.reads for each in tensors) <= REQUESTS
        steps = stream(sides, plan.spans, lambda _, chunks: [[codes.view(np.float32).copy() for codes in chunk.sides] for chunk in chunks])
        for step in steps:
            if step.span is None or step.result is None:
                continue
            (values,), (height, width), column = step.result, step.span.tensor.shape, step.span.column
            assert height * width == 256
            plain = step.span.sides[not source_first]
            assert plain is not None
            first = (plain.offset - sides[not source_first].tensors[0].offset) // 4
            assert first % COLUMNS == column
            wanted = expected[first // COLUMNS :, column:][:height, :width].reshape(-1).numpy()
            assert np.array_equal(values[0], wanted) and np.array_equal(values[1], wanted)
    for checkpoint in sides:
        checkpoint.close()
