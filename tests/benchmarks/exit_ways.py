"""Measures one step of each head in bfloat16: ``python -m tests.benchmarks.exit_ways VOCABULARY`` prints seconds and bytes.

``naive`` has the logits of all tokens at once and torch's own backward pass. bytes: peak memory beyond that before the first step.
"""

import json
import sys
import time

import torch
from torch.nn.functional import cross_entropy, linear

from analyzers.exit_feedback.heads import HEADS, HeadSettings

from .memory import peak_memory

TOKENS, WIDTH, CHUNK = 4096, 2048, 512
ROUNDS = 3


def measure(way: str, vocabulary: int) -> dict[str, float]:
    """Measure the memory of one step, then the median time of several others."""
    random = torch.Generator("cuda").manual_seed(0)
    h = torch.randn(TOKENS, WIDTH, generator=random, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(vocabulary, WIDTH, generator=random, device="cuda").mul_(WIDTH**-0.5).bfloat16()
    targets = torch.randint(vocabulary, (TOKENS,), generator=random, device="cuda")
    head = HEADS["exact" if way == "naive" else way](weight, None, HeadSettings(rank=128, rank_exact=32))

    def step() -> float:
        start = time.perf_counter()
        loss = cross_entropy(linear(h, head.weight).float(), targets) if way == "naive" else head.loss(h, targets, chunk=CHUNK)
        torch.autograd.backward(loss)
        h.grad = head.weight.grad = None
        torch.cuda.synchronize()
        return time.perf_counter() - start

    for _ in range(2):  # load and set up everything before the measurement
        step()
    with peak_memory("cuda") as peak:
        step()
        peak_bytes = peak()
    seconds = sorted(step() for _ in range(3 * ROUNDS))
    return {"seconds": seconds[len(seconds) // 2], "least": seconds[0], "bytes": peak_bytes}


def main(vocabulary: int) -> None:
    """Measure all ways, one after the other."""
    print(json.dumps({"ways": {way: measure(way, vocabulary) for way in ("naive", *HEADS)}}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
