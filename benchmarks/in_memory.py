"""Our answers about models in memory, and the training monitor: ``python -m benchmarks.in_memory WAY ARGUMENTS`` prints one as JSON.

``seconds`` are those after loading; where a model runs on a CPU, the processor's.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .naive import loaded
from .timed import clock, timed, timed_passes


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


def precision(folder: str, device: str) -> dict[str, Any]:
    """Run the fp32 reference and three variants in bf16, on 4 sequences of 256 tokens."""
    import mantissa

    model, variants = loaded(folder, device, "float32"), ("bf16", "bf16_fp32_lm_head", "bf16_fp32_residual")
    report, taken = _asked(
        lambda token_ids: mantissa.precision(model, token_ids=token_ids, variants=variants, device=device), model, [256] * 4
    )
    return {**taken, "loss": report.reference.loss, "token_ids": report.inputs.token_ids, "variants": variants}


def conflict(folder: str, device: str) -> dict[str, Any]:
    """Compare the gradients of 8 samples of 60 to 235 tokens."""
    import mantissa

    model = loaded(folder, device, "float32")
    lengths = range(60, 240, 25)
    report, taken = _asked(
        lambda token_ids: mantissa.conflict(model, token_ids=token_ids, weights=False, dtype="float32", device=device), model, lengths
    )
    samples = [{"token_ids": each.token_ids, "answer_start": each.answer_start} for each in report.samples]
    return {**taken, "conflict_rate": report.model.conflict_rate, "samples": samples}


def _asked(question: Callable[[list[list[int]]], Any], model: Any, lengths: Sequence[int]) -> tuple[Any, dict[str, float]]:
    """Ask about random samples of these lengths, after a question about few tokens, which imports libraries."""
    import torch

    torch.manual_seed(0)
    samples = [torch.randint(0, model.config.vocab_size, (length,)).tolist() for length in lengths]
    question([sample[:4] for sample in samples[:2]])
    return timed_passes(lambda: question(samples), model.device.type)


def step(folder: str, device: str) -> dict[str, Any]:
    """Take training steps with 32 samples of 128 tokens."""
    return timed(_training(folder, device)[1], device, clock=clock(device))[1]


def look(folder: str, device: str) -> dict[str, Any]:
    """Take a training step, and look at 1% of the weights."""
    from mantissa.training import UpdateMonitor

    model, train = _training(folder, device)
    with UpdateMonitor(model) as monitor:
        monitor.look()
        train()
        return timed(monitor.look, device, clock=clock(device))[1]


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


WAYS: dict[str, Callable[..., dict[str, Any]]] = {way.__name__: way for way in (dtype, sparsity, precision, conflict, step, look, head)}

if __name__ == "__main__":
    print(json.dumps(WAYS[sys.argv[1]](*sys.argv[2:])))
