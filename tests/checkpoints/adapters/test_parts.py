"""Any part of a merged tensor that is read alone equals that part of the whole, up to roundings of the product B A."""

from pathlib import Path

import numpy as np
import pytest
from peft import LoraConfig

from analyzers.checkpoints import open_checkpoint
from tests.checkpoints.adapters import LOCAL, llama, write

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated", "ignore:Setting `save_embedding_layers` to")


@pytest.mark.parametrize(("rank", "dora"), [(8, False), (8, True), (400, False)])
def test_parts(rank: int, dora: bool, tmp_path: Path) -> None:
    write(llama(), LoraConfig(r=rank, use_dora=dora, target_modules=["q_proj", "down_proj", *(() if dora else ["embed_tokens"])]), tmp_path)
    with open_checkpoint(f"{tmp_path}/base+{tmp_path}/adapter", LOCAL) as checkpoint:
        file = checkpoint.files[-1]
        whole = bytearray(file.size)
        file.read_into(0, memoryview(whole))
        values = np.frombuffer(whole, np.float32)
        random = np.random.default_rng(0)
        for start, length in zip(random.integers(0, file.size, 200).tolist(), random.integers(1, 3000, 200).tolist(), strict=True):
            part = bytearray(min(length, file.size - start))
            file.read_into(start, memoryview(part))
            first, last = -(-start // 4) * 4, (start + len(part)) // 4 * 4  # whole values
            ours, theirs = np.frombuffer(part[first - start : last - start], np.float32), np.frombuffer(whole[first:last], np.float32)
            assert np.allclose(ours, theirs, rtol=0, atol=2**-22 * np.abs(values).max()), (start, length)
