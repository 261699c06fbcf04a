"""Training of the built-in samples: a tiny Llama on the built-in text, with known arithmetic for each run.

Three regimes, all with AdamW and a learning rate that warms up and decays to zero:

* ``fp32``: weights, operands, gradients and optimizer states in float32.
* ``bf16``: pure bf16. Weights, activations, gradients and both AdamW moments are bf16, and every update is rounded to the nearest bf16 when
  stored: there is no higher-precision copy.
* ``fp16-mixed``: float32 master weights. Operations that autocast runs in fp16 (linear layers and attention) get operands rounded to fp16,
  accumulate in float32 and round the result to fp16; gradients are rounded to fp16 at the same points of the backward pass. Loss scaling is
  dynamic: non-finite gradients skip the update and halve the scale. This is emulated in float32, since fp16 arithmetic is some twenty times
  slower on a CPU.

The norms inside the layers start at a gain of `NORM_GAIN`, and the matrices after them are smaller by that factor, as are their learning
rates: the same function, with the small weights that large models have and tiny ones lack. Only weights below 2^-18 can reveal whether a
bf16 value has passed through fp16. In pure bf16 those gains never change: the learning rate is less than half the spacing of bf16 at
`NORM_GAIN`.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Regime = Literal["fp32", "bf16", "fp16-mixed"]
Batch = tuple[torch.Tensor, torch.Tensor]  # token ids and labels, both (pairs, length); labels are IGNORED at positions without a loss

IGNORED = -100
FIRST_LOSS_SCALE = 2.0**16
GROWTH_INTERVAL = 50
NORM_GAIN = 4.0  # initial gain of the norms inside the layers
DTYPES: dict[Regime, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16-mixed": torch.float32}


class _RoundToHalf(torch.autograd.Function):
    """x -> fp16(x), stored in float32; the gradient is rounded in the same way in the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return values.half().float()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0].half().float()


def _rounded(values: torch.Tensor) -> torch.Tensor:
    rounded: torch.Tensor = _RoundToHalf.apply(values)  # type: ignore[no-untyped-call]
    return rounded


class HalfPrecisionOperands(TorchFunctionMode):
    """Context in which linear layers and attention round operands and results, forward and backward, to fp16 (see the module)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (functional.linear, functional.scaled_dot_product_attention):
            return func(*args, **(kwargs or {}))
        rounded = [_rounded(value) if isinstance(value, torch.Tensor) else value for value in args]
        return _rounded(func(*rounded, **(kwargs or {})))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run: mean loss per token (nats) before and after, updates made, and updates skipped by loss scaling."""

    loss_before: float
    loss_after: float
    updates: int
    skipped: int


def loss_of(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy (nats) over the labelled tokens of a batch, computed in float32 from the model's logits.

    No attention mask: padding is on the right, where causal attention hides it from every labelled token.
    """
    token_ids, labels = batch
    logits = model(input_ids=token_ids, use_cache=False).logits[:, :-1].float()
    return functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)


@torch.no_grad()
def mean_loss(model: torch.nn.Module, batches: list[Batch]) -> float:
    """Mean cross-entropy (nats) over all labelled tokens of ``batches``."""
    tokens = [int((labels[:, 1:] != IGNORED).sum()) for _, labels in batches]
    total = sum(float(loss_of(model, batch)) * count for batch, count in zip(batches, tokens, strict=True))
    return total / sum(tokens)


def train(
    model: torch.nn.Module,
    batches: list[Batch],
    regime: Regime,
    *,
    updates: int,
    peak: float,
    after: Callable[[int], None] = lambda update: None,
) -> Outcome:
    """Train ``model`` in place, in ``regime``, for ``updates`` steps of one batch each, in a fixed random order of batches.

    peak: the maximum learning rate, reached after a tenth of the updates, followed by cosine decay to zero.
    after: called after each update with the number of updates done (1, 2, ...).
    """
    before = mean_loss(model, batches)
    optimizer = torch.optim.AdamW(_groups(model), betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
    scale, good, skipped = (FIRST_LOSS_SCALE if regime == "fp16-mixed" else 1.0), 0, 0
    order = _order(len(batches))
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = group["share"] * _learning_rate(update, updates, peak)
        with HalfPrecisionOperands() if regime == "fp16-mixed" else nullcontext():
            loss = loss_of(model, batches[next(order)])
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        for gradient in gradients:
            gradient.div_(scale)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            optimizer.step()
            good += 1
            if regime == "fp16-mixed" and good % GROWTH_INTERVAL == 0:
                scale *= 2
        else:
            skipped += 1
            good = 0
            scale /= 2
        optimizer.zero_grad()
        after(update + 1)
    return Outcome(before, mean_loss(model, batches), updates - skipped, skipped)


def _groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    inner = [parameter for name, parameter in model.named_parameters() if ".layers." in name and parameter.dim() == 2]
    outer = [parameter for name, parameter in model.named_parameters() if ".layers." not in name or parameter.dim() != 2]
    return [{"params": inner, "share": 1 / NORM_GAIN}, {"params": outer, "share": 1.0}]


def _learning_rate(update: int, updates: int, peak: float) -> float:
    warmup = max(1, updates // 10)
    if update < warmup:
        return peak * (update + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (update - warmup) / (updates - warmup)))


def _order(batches: int) -> Iterator[int]:
    generator = torch.Generator().manual_seed(0)
    while True:
        yield from torch.randperm(batches, generator=generator).tolist()
