"""Measures one step of each head on random tokens: ``python -m tests.benchmarks.exit_ways VOCABULARY [cuda]`` prints seconds and bytes.

``naive`` has the logits of all tokens at once and torch's own backward pass. On a CPU, each head runs in a forked process in float32; on a
GPU, in bfloat16. bytes: peak memory beyond that before the first step, as counted by the kernel or torch. chunk: bytes of a chunk of
logits; inputs: bytes of h, of its gradient and of that of W.
"""

import ctypes
import json
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection

import torch
from torch.nn.functional import cross_entropy, linear

from analyzers.exit_feedback.heads import HEADS, HeadSettings

from .memory import peak_memory

TOKENS, WIDTH, CHUNK = 384, 128, 128
GPU_TOKENS, GPU_WIDTH, GPU_CHUNK = 4096, 2048, 512
ROUNDS = 3
# mallopt's M_MMAP_THRESHOLD: the size from which freed memory returns to the kernel at once. By default it rises with freed sizes, so the
# peak would include memory that is no longer in use; a low value costs time for mapping the same pages repeatedly.
_THRESHOLD = -3


def measure(way: str, vocabulary: int, report: Connection) -> None:
    """Measure the memory of one step, then the time of ROUNDS others, and send the results."""
    torch.set_num_threads(1)  # several threads would wait for one another, and on a busy machine for other programs
    libc = ctypes.CDLL(None)
    random = torch.Generator().manual_seed(0)
    h = torch.randn(TOKENS, WIDTH, generator=random).requires_grad_()
    weight = torch.randn(vocabulary, WIDTH, generator=random).mul_(WIDTH**-0.5)
    targets = torch.randint(vocabulary, (TOKENS,), generator=random)
    head = HEADS["exact" if way == "naive" else way](weight, None, HeadSettings(rank=64, rank_exact=16))

    def step() -> None:
        loss = cross_entropy(linear(h, head.weight), targets) if way == "naive" else head.loss(h, targets, chunk=CHUNK)
        torch.autograd.backward(loss)
        h.grad = head.weight.grad = None

    head.loss(h[:2], targets[:2])  # load and set up everything before the measurement
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


def measure_on_gpu(way: str, vocabulary: int) -> dict[str, float]:
    """Measure as in `measure`, with the median of more rounds."""
    random = torch.Generator("cuda").manual_seed(0)
    h = torch.randn(GPU_TOKENS, GPU_WIDTH, generator=random, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(vocabulary, GPU_WIDTH, generator=random, device="cuda").mul_(GPU_WIDTH**-0.5).bfloat16()
    targets = torch.randint(vocabulary, (GPU_TOKENS,), generator=random, device="cuda")
    head = HEADS["exact" if way == "naive" else way](weight, None, HeadSettings(rank=128, rank_exact=32))

    def step() -> float:
        start = time.perf_counter()
        loss = cross_entropy(linear(h, head.weight).float(), targets) if way == "naive" else head.loss(h, targets, chunk=GPU_CHUNK)
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


def main(vocabulary: int, device: str = "cpu") -> None:
    """Measure all ways, one after the other."""
    if device == "cuda":
        print(json.dumps({"ways": {way: measure_on_gpu(way, vocabulary) for way in ("naive", *HEADS)}}))
        return
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
    main(int(sys.argv[1]), *sys.argv[2:])
