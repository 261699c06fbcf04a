"""What the monitor says where weights, gradients or states are written outside the optimizer's step, and where nothing was intended."""

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from mantissa.training import Look, UpdateMonitor
from tests.mantissa.test_monitor_losses import assert_nothing_lost, loss_of, small

NOT_MEASURED = (
    "What the optimizer intended is not measured: since the last look the optimizer took no step, or weights or states were written"
)
UNMEASURED = ("intended", "lost_share", "lost_norm", "drift")


def steps(model: nn.Module, optimizer: Optimizer, count: int, after: Callable[[int], object] = lambda step: None) -> None:
    for step in range(count):
        torch.autograd.backward(loss_of(model))
        optimizer.step()
        after(step)
        optimizer.zero_grad()


def assert_not_measured(look: Look) -> None:
    assert all(getattr(look.total, name) is None and f"mantissa/{name}" not in look.metrics() for name in UNMEASURED)


def replaced(weight: nn.Parameter) -> None:
    weight.data = weight.data * 0.99


@pytest.mark.parametrize(
    "write", [lambda w: w.data.mul_(0.99), lambda w: w.data.copy_(w.data * 0.99), replaced, lambda w: w.detach().mul_(0.99)]
)
def test_weights_written_between_steps_are_no_rounding_loss(write: Callable[[nn.Parameter], object]) -> None:
    model = small()
    optimizer = AdamW(model.parameters(), lr=1e-3)

    def written(step: int) -> None:
        for each in model.parameters():
            write(each)

    with UpdateMonitor(model, optimizer) as monitor:
        steps(model, optimizer, 2, written)
        look = monitor.look(2)
        assert_not_measured(look)
        assert any(message.startswith(NOT_MEASURED) for message in look.messages)
        assert any(message.startswith("6 tensors joined") and "measured from then on" in message for message in look.messages)
        steps(model, optimizer, 2)
        assert_nothing_lost(monitor.look(4))


def test_hooks_that_free_gradients_and_writes_that_change_nothing_are_followed() -> None:
    model = small()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    optimizer.register_step_post_hook(lambda *_: optimizer.zero_grad())

    def clamped(step: int) -> None:
        with torch.no_grad():
            for each in model.parameters():
                each.clamp_(-9, 9)

    with UpdateMonitor(model, optimizer) as monitor:
        steps(model, optimizer, 3, clamped)
        look = monitor.look(3)
    assert_nothing_lost(look)
    assert look.messages == ()


@pytest.mark.parametrize("write", [lambda state: state["exp_avg"].zero_(), lambda state: state.clear()])
def test_a_written_or_replaced_state_begins_anew(write: Callable[[dict[str, Tensor]], object]) -> None:
    model = small()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    with UpdateMonitor(model, optimizer) as monitor:
        steps(model, optimizer, 2)
        for state in optimizer.state.values():
            write(state)
        steps(model, optimizer, 1)
        look = monitor.look(3)
    assert_nothing_lost(look)
    assert any(message.startswith("6 tensors joined") for message in look.messages)


def test_a_nan_is_not_measured() -> None:
    model = nn.Linear(8, 8)
    optimizer = SGD(model.parameters(), lr=0.1)
    with UpdateMonitor(model, optimizer) as monitor:
        torch.autograd.backward(model(torch.full((1, 8), float("nan"))).sum())
        cast(Tensor, model.bias.grad).fill_(float("nan"))
        optimizer.step()
        look = monitor.look(1)
    assert_not_measured(look)
    assert look.messages == ("The weights or their last update are not finite, or all 0: figures that need their norms are null.",)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("why", ["rate", "gradient"])
def test_where_nothing_was_intended_the_format_is_not_blamed(why: str, dtype: torch.dtype) -> None:
    model = small(dtype)
    idle = nn.ModuleDict({"used": model, "idle_norm": nn.LayerNorm(8).to(dtype)})
    optimizer = AdamW(idle.parameters(), lr=0.0 if why == "rate" else 0.1)
    with UpdateMonitor(idle, optimizer) as monitor:
        steps(model, optimizer, 12)
        look = monitor.look(12)
    unmoved = "nothing was intended: no gradient reaches them, or their learning rate is 0."
    assert f'2 of 2 norms have not moved in 12 steps, "idle_norm.weight" first: {unmoved}' in look.messages
    assert not any("rounds away" in message or "represent" in message for message in look.messages)
    assert look.roles["norm"].intended == 0 and look.metrics()["mantissa/intended"] == look.total.intended


@pytest.mark.parametrize("part", ["whole", "half"])
@pytest.mark.parametrize("change", [lambda part: part.bfloat16(), lambda part: setattr(part[0].weight, "data", torch.ones(2, 128))])
def test_a_change_of_dtype_or_size_does_not_end_the_training(change: Callable[[nn.Module], object], part: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 96), nn.Linear(96, 96)).float()
    optimizer = SGD(model.parameters(), lr=1e-3)
    with UpdateMonitor(model, optimizer, share=0.1) as monitor:
        for step in range(3):
            for each in model.parameters():
                each.grad = torch.ones_like(each)
            optimizer.step()
            optimizer.zero_grad()
            if step == 1:
                change(model if part == "whole" else model[:1])
            look = monitor.look(step + 1)
    (message,) = (message for message in look.messages if "changed size" in message)
    assert message.endswith('came or went away since the monitor was attached, "0.weight" first: attach a new one.')
