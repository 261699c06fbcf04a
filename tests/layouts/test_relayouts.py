"""The functions that lay checkpoints out anew: they only move values, and undo each other where they should."""

import torch

from tests.layouts.architectures import HEADS, KEY_HEADS, values
from tests.layouts.pairs import Pair, every_pair
from tests.layouts.relayouts import fuse_qkv, rotary_rows


@every_pair
def test_values_only_move(pair: Pair) -> None:
    original = pair.original.state
    relaid = pair.form(pair.original, original)
    for side, origins in ((relaid, pair.origins(to_original=True)), (original, pair.origins(to_original=False))):
        assert origins.keys() == side.keys() and all(origins.values())
    one, other = (torch.cat([state[name].flatten() for name in sorted(pair.weights(state))]).sort().values for state in (original, relaid))
    assert torch.equal(one, other) and len(one) == pair.parameters


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
