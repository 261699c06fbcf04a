"""What the monitor says the optimizer intended and rounding lost: against a float64 shadow of all weights, written here in plain formulas."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Adamax, AdamW, Optimizer, RMSprop

from analyzers.errors import InvalidRequest
from mantissa.training import Look, UpdateMonitor
from mantissa.training.parts import BLOCK
from tests.mantissa.test_monitor import tiny

STEPS = 3


def batches(steps: int = STEPS) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randint(0, 512, (2, 16), generator=generator)


def backward(model: nn.Module, token_ids: Tensor) -> Tensor:
    loss: Tensor = cast(Any, model)(input_ids=token_ids, labels=token_ids).loss
    torch.autograd.backward(loss)
    return loss


def adamw(rate: float, weight: Tensor, grad: Tensor, state: dict[str, Tensor], step: int) -> Tensor:
    state["m"] = 0.9 * state.get("m", torch.zeros_like(weight)) + 0.1 * grad
    state["v"] = 0.999 * state.get("v", torch.zeros_like(weight)) + 0.001 * grad**2
    return weight - rate * 0.01 * weight - rate * (state["m"] / (1 - 0.9**step)) / ((state["v"] / (1 - 0.999**step)).sqrt() + 1e-8)


def sgd(rate: float, weight: Tensor, grad: Tensor, state: dict[str, Tensor], step: int) -> Tensor:
    state["m"] = grad if step == 1 else 0.9 * state["m"] + grad
    return weight - rate * state["m"]


OPTIMIZERS: dict[str, tuple[Callable[..., Optimizer], Callable[..., Tensor]]] = {
    "adamw": (AdamW, adamw),
    "fused": (lambda parameters, lr: AdamW(parameters, lr, fused=True), adamw),
    "foreach": (lambda parameters, lr: AdamW(parameters, lr, foreach=True), adamw),
    "sgd": (lambda parameters, lr: SGD(parameters, lr, momentum=0.9), sgd),
    "sgd-fused": (lambda parameters, lr: SGD(parameters, lr, momentum=0.9, fused=True), sgd),
}


def followed(name: str, rate: float, **options: Any) -> tuple[Look, list[dict[str, Tensor]]]:
    """The look after some steps of the tiny model in bf16 since a look after the first, and for each tensor the float64 shadow's truth."""
    model = tiny(torch.bfloat16)
    create, update = OPTIMIZERS[name]
    optimizer = create(model.parameters(), lr=rate)
    weights = [each.detach().clone().double() for each in model.parameters()]
    begin, states = weights, [dict[str, Tensor]() for _ in weights]
    with UpdateMonitor(model, optimizer, **options) as monitor:
        for step, token_ids in enumerate(batches(), 1):
            backward(model, token_ids)
            rows = zip(weights, model.parameters(), states, strict=True)
            stepped = [update(rate, weight, cast(Tensor, each.grad).double(), state, step) for weight, each, state in rows]
            optimizer.step()
            optimizer.zero_grad()
            weights = stepped
            if step == 1:
                monitor.look(1)
                stored, before = [each.detach().clone() for each in model.parameters()], weights
        look = monitor.look(STEPS)
    truth = [
        {"intended": w - b, "taken": p.detach().double() - s.double(), "drift": p.detach().double() - w, "moved": w - v}
        for w, b, p, s, v in zip(weights, before, model.parameters(), stored, begin, strict=True)
    ]
    return look, truth


def norm(truth: Sequence[dict[str, Tensor]], of: Callable[[dict[str, Tensor]], Tensor]) -> float:
    return float(sum(of(each).square().sum() for each in truth)) ** 0.5


@pytest.mark.parametrize("rate", [1e-4, 1e-5, 1e-6, 1e-7, 1e-8])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_are_those_of_a_float64_shadow(name: str, rate: float) -> None:
    look, truth = followed(name, rate, mode="exact")
    intended = [each["intended"] != 0 for each in truth]
    lost = [each & (row["taken"] == 0) for each, row in zip(intended, truth, strict=True)]
    total = look.total
    assert total.followed == total.values and total.intended == sum(int(each.sum()) for each in intended)
    assert total.lost_share == pytest.approx(sum(int(each.sum()) for each in lost) / cast(int, total.intended), abs=1e-9)
    assert total.lost_norm == pytest.approx(norm(truth, lambda t: t["intended"] - t["taken"]) / norm(truth, lambda t: t["intended"]), rel=1e-6)
    assert total.drift == pytest.approx(norm(truth, lambda t: t["drift"]) / norm(truth, lambda t: t["moved"]), rel=1e-6)
    assert sum(cast(int, row.intended) for row in look.roles.values()) == total.intended

    sampled, _ = followed(name, rate, share=0.25)
    assert sampled.sampled and sampled.total.values < total.values / 2
    variance = 0.0
    for each, nonzero in zip(lost, intended, strict=True):  # of a ratio, by blocks
        blocks = (each.double() - cast(float, total.lost_share) * nonzero.double()).flatten()
        if each.ndim > 1 and each.numel() > 4096:
            means = blocks[: each.numel() // BLOCK * BLOCK].view(-1, BLOCK).mean(1)
            variance += (each.numel() / cast(int, total.intended)) ** 2 * float(means.var()) / (0.25 * means.numel())
    assert abs(cast(float, sampled.total.lost_share) - cast(float, total.lost_share)) <= 4 * variance**0.5 + 1e-9
