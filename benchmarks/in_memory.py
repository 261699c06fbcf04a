"""Our answers about models in memory, and the training monitor: ``python -m benchmarks.in_memory WAY ARGUMENTS`` prints one as JSON.

``seconds`` are those after loading; of a training step and of a look at it, on a CPU, the processor's.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from .naive import loaded
from .timed import timed


def dtype(folder: str, device: str) -> dict[str, Any]:
    """Ask exact `dtype` about a model on a device."""
    import mantissa

    model = loaded(folder, device)
    report, taken = timed(lambda: mantissa.dtype(model, mode="exact", device=device), device)
    return {**taken, "abs_min": report.extremes.abs_min, "abs_max": report.extremes.abs_max}


def sparsity(base: str, tuned: str, device: str) -> dict[str, Any]:
    """Ask exact `sparsity` about a model and its fine-tune on a device."""
    import mantissa

    models = [loaded(folder, device) for folder in (base, tuned)]
    report, taken = timed(lambda: mantissa.sparsity(*models, mode="exact", device=device), device)
    return {**taken, "num_changed": report.num_changed, "total_parameters": report.total_parameters}


def step(folder: str, device: str) -> dict[str, Any]:
    """Take training steps with 32 samples of 128 tokens."""
    return timed(_training(folder, device)[1], device, clock=_clock(device))[1]


def look(folder: str, device: str) -> dict[str, Any]:
    """Take a training step, and look at 1% of the weights."""
    from mantissa.training import UpdateMonitor

    model, train = _training(folder, device)
    with UpdateMonitor(model) as monitor:
        monitor.look()
        train()
        return timed(monitor.look, device, clock=_clock(device))[1]


def head(way: str, tokens: str, width: str, vocabulary: str, device: str) -> dict[str, Any]:
    """Take a step through an LM head in bf16: one of `exit`'s, with its loss in pieces; or ``naive``, with all logits at once."""
    import torch
    from torch.nn.functional import cross_entropy, linear

    from analyzers.exit.heads import HEADS, HeadSettings

    generator = torch.Generator(device).manual_seed(0)
    hidden = torch.randn(int(tokens), int(width), generator=generator, device=device).bfloat16().requires_grad_()
    weight = torch.randn(int(vocabulary), int(width), generator=generator, device=device).mul_(int(width) ** -0.5).bfloat16()
    targets = torch.randint(int(vocabulary), (int(tokens),), generator=generator, device=device)
    of_exit = HEADS["exact" if way == "naive" else way](weight, None, HeadSettings(rank=128, rank_exact=32))

    def compute() -> float:
        if way == "naive":
            loss = cross_entropy(linear(hidden, of_exit.weight).float(), targets)
        else:
            loss = of_exit.loss(hidden, targets, chunk=512)
        torch.autograd.backward(loss)
        hidden.grad = of_exit.weight.grad = None
        return loss.item()

    loss, taken = timed(compute, device)
    return {**taken, "loss": loss}


def _training(folder: str, device: str) -> tuple[Any, Any]:
    """Return a model and a function that trains it for a step."""
    import torch

    torch.manual_seed(0)
    model = loaded(folder, device, "float32" if device == "cpu" else "bfloat16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    token_ids = torch.randint(0, model.config.vocab_size, (32, 128), device=device)

    def train() -> None:
        model(input_ids=token_ids, labels=token_ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, train


def _clock(device: str) -> Callable[[], float]:
    """Return the processor's clock on a CPU, where other programs run too."""
    return time.process_time if device == "cpu" else time.perf_counter


WAYS: dict[str, Callable[..., dict[str, Any]]] = {way.__name__: way for way in (dtype, sparsity, step, look, head)}

if __name__ == "__main__":
    print(json.dumps(WAYS[sys.argv[1]](*sys.argv[2:])))
