"""How often a fused loss waits for the device: once for the tokens that count, however many chunks there are."""

from collections import Counter

import pytest
import torch

from analyzers.exit.heads import HEADS, HeadSettings
from tests.numerics.readbacks import readbacks


@pytest.mark.parametrize("way", [way for way in HEADS if way != "span"])  # whose anchors are drawn among tokens with a gradient
def test_readbacks_do_not_depend_on_the_number_of_chunks(way: str) -> None:
    random = torch.Generator().manual_seed(0)
    weight, targets = torch.randn(50, 16, generator=random), torch.randint(50, (32,), generator=random)

    def waits(chunk: int) -> Counter[str]:
        h = torch.randn(32, 16, generator=random).requires_grad_()
        head = HEADS[way](weight, None, HeadSettings(rank=8, rank_exact=4))
        head.loss(h[:2], targets[:2])  # sets up
        with readbacks() as found:
            torch.autograd.backward(head.loss(h, targets, chunk=chunk))
        return found

    assert waits(4) == waits(32)
