"""The functions that lay checkpoints out anew, against what transformers does."""

import torch

from tests.layouts.architectures import HEADS, KEY_HEADS, values
from tests.layouts.relayouts import fuse_qkv, rotary_rows


def test_rotary_rows_are_those_that_transformers_reorders() -> None:
    """``permute`` of its script convert_llama_weights_to_hf makes Meta's rows those of transformers."""
    for heads in (HEADS, KEY_HEADS):
        rows = values("rotary", (heads * 8, 32), torch.float32)
        meta = rotary_rows(rows, heads)
        assert not torch.equal(meta, rows)
        assert torch.equal(meta.view(heads, 4, 2, 32).transpose(1, 2).reshape(heads * 8, 32), rows)


def test_a_fused_qkv_by_head_is_the_one_that_transformers_reads() -> None:
    """GPTNeoXAttention views it as [heads, 3 x size], and cuts the last axis into query, key and value."""
    query, key, value = (values(part, (HEADS * 8, 32), torch.float32) for part in "qkv")
    state = {f"layers.0.attention.{part}_proj.weight": tensor for part, tensor in zip("qkv", (query, key, value), strict=True)}
    (fused,) = fuse_qkv(state, "heads", HEADS).values()
    parts = fused.view(HEADS, 3 * 8, 32).chunk(3, dim=1)
    assert all(torch.equal(part.reshape(-1, 32), tensor) for part, tensor in zip(parts, (query, key, value), strict=True))
