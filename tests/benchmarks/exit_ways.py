"""``python -m tests.benchmarks.exit_ways VOCABULARY``: one step of each head on random tokens; prints seconds and bytes of each, and sizes.

Compared with ``naive``: logits of all tokens at once and torch's own backward pass. Each runs in a forked process. bytes: the kernel's
count of peak memory, beyond that before the first step. chunk: bytes of a chunk of logits; inputs: of h, of its gradient and of that of W.
"""

import ctypes
import json
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection

import torch
from torch.nn.functional import cross_entropy, linear

from analyzers.exit_feedback.heads import HEADS, HeadSettings, build_head

from .memory import peak_memory

TOKENS, WIDTH, CHUNK = 384, 128, 128
ROUNDS = 3
# mallopt's M_MMAP_THRESHOLD: from how many bytes on memory is the kernel's again as soon as it is freed. Left alone it rises with what is
# freed, so that the count would be of what had been in use; where it stays low, time goes into fetching the same pages again and again.
_THRESHOLD = -3


def measure(way: str, vocabulary: int, report: Connection) -> None:
    """Memory of one step, then the time of so many more. Sends them."""
    torch.set_num_threads(1)  # threads wait for one another after each operation, and on a busy machine for other programs
    libc = ctypes.CDLL(None)
    random = torch.Generator().manual_seed(0)
    h = torch.randn(TOKENS, WIDTH, generator=random).requires_grad_()
    weight = torch.randn(vocabulary, WIDTH, generator=random).mul_(WIDTH**-0.5)
    targets = torch.randint(vocabulary, (TOKENS,), generator=random)
    head = build_head("exact" if way == "naive" else way, weight, None, HeadSettings(rank=64, rank_exact=16))

    def step() -> None:
        loss = cross_entropy(linear(h, head.weight), targets) if way == "naive" else head.loss(h, targets, chunk=CHUNK)
        torch.autograd.backward(loss)
        h.grad = head.weight.grad = None

    head.loss(h[:2], targets[:2])  # what is loaded and set up once
    libc.mallopt(_THRESHOLD, 1 << 18)
    with peak_memory("cpu") as peak:
        step()
        peak_bytes = peak()
    libc.mallopt(_THRESHOLD, 1 << 25)
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    report.send({"seconds": sorted(seconds)[ROUNDS // 2], "least": min(seconds), "bytes": peak_bytes})


def main(vocabulary: int) -> None:
    """All ways, one after the other."""
    found: dict[str, dict[str, float]] = {}
    processes = multiprocessing.get_context("fork")
    for way in ("naive", *HEADS):
        here, there = processes.Pipe(duplex=False)
        process = processes.Process(target=measure, args=(way, vocabulary, there))
        process.start()
        there.close()
        try:
            found[way] = here.recv()
        except EOFError:
            raise SystemExit(f"{way} ended without a result") from None
        finally:
            here.close()
            process.join()
    sizes = {"chunk": 4 * CHUNK * vocabulary, "inputs": 4 * (2 * TOKENS * WIDTH + vocabulary * WIDTH)}
    print(json.dumps({"ways": found, **sizes}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
