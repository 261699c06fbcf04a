"""What the monitor says of intended and lost updates: against a float64 shadow of all weights, written here in plain formulas."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Adamax, AdamW, Optimizer, RMSprop

from mantissa.training import Look, UpdateMonitor
from mantissa.training.watched_values import BLOCK
from tests.cases import few
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
    return float(torch.stack([of(each).square().sum() for each in truth]).sum().sqrt())


@pytest.mark.parametrize("rate", few([1e-4, 1e-5, 1e-6, 1e-7, 1e-8], {0, 4}))
@pytest.mark.parametrize("name", few(["adamw", "fused", "foreach", "sgd", "sgd-fused"], {0, 1, 4}))
def test_losses_are_those_of_a_float64_shadow(name: str, rate: float) -> None:
    look, truth = followed(name, rate, share=1)
    intended = [each["intended"] != 0 for each in truth]
    lost = [each & (row["taken"] == 0) for each, row in zip(intended, truth, strict=True)]
    total = look.total
    assert total.followed == total.values and total.intended == sum(int(each.sum()) for each in intended)
    assert total.lost_share == pytest.approx(sum(int(each.sum()) for each in lost) / total.intended, abs=1e-9)
    assert total.lost_norm == pytest.approx(
        norm(truth, lambda t: t["intended"] - t["taken"]) / norm(truth, lambda t: t["intended"]), rel=1e-6
    )
    assert total.drift == pytest.approx(norm(truth, lambda t: t["drift"]) / norm(truth, lambda t: t["moved"]), rel=1e-6)
    assert sum(cast(int, row.intended) for row in look.roles.values()) == total.intended

    sampled, _ = followed(name, rate, share=0.25)
    assert sampled.sampled and sampled.total.values < total.values / 2
    variance, count = 0.0, total.intended
    for each, nonzero in zip(lost, intended, strict=True):  # of a ratio, by blocks
        blocks = (each.double() - cast(float, total.lost_share) * nonzero.double()).flatten()
        if each.ndim > 1 and each.numel() > 4096:
            means = blocks[: each.numel() // BLOCK * BLOCK].view(-1, BLOCK).mean(1)
            variance += (each.numel() / count) ** 2 * float(means.var()) / (0.25 * means.numel())
    assert abs(cast(float, sampled.total.lost_share) - cast(float, total.lost_share)) <= 4 * variance**0.5 + 1e-9


@pytest.mark.parametrize("name", ["fused", "sgd"])
def test_training_is_the_same_bit_for_bit(name: str) -> None:
    def run(watched: bool) -> tuple[list[Tensor], Tensor]:
        torch.manual_seed(3)
        model = tiny(torch.bfloat16)
        optimizer = OPTIMIZERS[name][0](model.parameters(), lr=1e-5)
        monitor = UpdateMonitor(model, optimizer, every=1) if watched else None
        results = []
        for token_ids in batches():
            results.append(backward(model, token_ids))
            optimizer.step()
            results += [cast(Tensor, each.grad) for each in model.parameters()]
            optimizer.zero_grad()
            if monitor is not None:
                assert monitor.step() is not None
        states = [value for state in optimizer.state.values() for value in state.values()]
        return [*results, *model.parameters(), *states], torch.rand(4)

    (plain, random), (watched, random_watched) = run(False), run(True)
    assert len(plain) == len(watched) and all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert torch.equal(random, random_watched)


def small(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 96), nn.LayerNorm(96), nn.Linear(96, 2)).to(dtype)


def loss_of(model: nn.Module, scale: float = 1.0) -> Tensor:
    """A loss on a fresh batch."""
    inputs = torch.randn(8, 128).to(next(model.parameters()).dtype)
    return cast(Tensor, model(inputs)).square().mean() * scale


def assert_nothing_lost(look: Look) -> None:
    """float64 weights take the update that the shadow intends: what the shadow steps is what torch steps."""
    assert look.total.followed == look.total.values and look.total.intended
    assert look.total.lost_share == 0 and cast(float, look.total.lost_norm) < 1e-9 and cast(float, look.total.drift) < 1e-9


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Adam, {"amsgrad": True, "weight_decay": 0.1}),
        (AdamW, {"maximize": True, "lr": torch.tensor(1e-3)}),
        (AdamW, {"foreach": True, "betas": (0.5, 0.7)}),
        (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (SGD, {"momentum": 0.9, "dampening": 0.5, "maximize": True, "fused": True}),
        (Adamax, {"weight_decay": 0.1}),
        (RMSprop, {"centered": True, "momentum": 0.9}),
    ],
)
def test_a_sample_steps_as_the_whole(kind: Any, options: dict[str, Any]) -> None:
    model = small()
    optimizer = kind(model.parameters(), **{"lr": 1e-3} | options)
    with UpdateMonitor(model, optimizer, share=0.1) as monitor:
        for _ in range(4):
            torch.autograd.backward(loss_of(model))
            optimizer.step()
            optimizer.zero_grad()
        assert_nothing_lost(monitor.look(4))


def test_schedules_groups_accumulation_and_missing_gradients_are_followed() -> None:
    model = small()
    first, norm_layer, last = cast(Any, model)
    optimizer = AdamW([{"params": list(first.parameters()), "lr": 0.1}, {"params": norm_layer.parameters(), "weight_decay": 0.0}])
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    rates = [cast(float, group["lr"]) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    with UpdateMonitor(model, optimizer, share=1) as monitor:
        for step in range(4):
            if step == 1:
                still = monitor.look(1).total
                assert still.intended == 0 and still.lost_share is still.lost_norm is still.drift is None  # the rate was 0
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate
            if step == 2:
                optimizer.add_param_group({"params": last.parameters(), "lr": 1e-2, "initial_lr": 1e-2})
            for _ in range(2):
                torch.autograd.backward(loss_of(model))
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if step == 3:
                norm_layer.weight.grad = None
            optimizer.step()
            optimizer.zero_grad(set_to_none=step != 1)
            schedule.step()
        look = monitor.look(4)
    assert_nothing_lost(look)
    assert look.messages == (
        "2 tensors joined the optimizer, or changed outside its step in weights or state, after the monitor was attached: "
        "what was intended is measured from then on.",
    )


def test_a_closure_computes_the_gradients_within_the_step() -> None:
    model = small()
    optimizer = SGD(model.parameters(), lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = loss_of(model)
        torch.autograd.backward(loss)
        return float(loss.detach())

    with UpdateMonitor(model, optimizer) as monitor:
        for _ in range(3):
            optimizer.step(closure)
        assert_nothing_lost(monitor.look(3))


@pytest.mark.parametrize("fused", [False, True])
def test_scaled_gradients_and_skipped_steps(fused: bool) -> None:
    model = small()
    optimizer = Adam(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with UpdateMonitor(model, optimizer) as monitor:
        for step in range(4):
            torch.autograd.backward(scaler.scale(loss_of(model, float("inf") if step == 1 else 1.0)))
            if step == 2:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if step == 1:
                monitor.look(2)
        assert_nothing_lost(monitor.look(4))


def test_loading_begins_anew() -> None:
    model = small()
    optimizer = AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        torch.autograd.backward(loss_of(model))
        optimizer.step()
        optimizer.zero_grad()

    with UpdateMonitor(model, optimizer) as monitor:
        step()
        saved = {name: each.clone() for name, each in model.state_dict().items()}, optimizer.state_dict()
        step()
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        step()
        look = monitor.look(2)
        assert_nothing_lost(look)
        assert any(
            message.startswith("6 tensors joined the optimizer, or changed outside its step in weights or state")
            for message in look.messages
        )
        with torch.no_grad():
            cast(nn.Linear, model[0]).weight.mul_(2)
        look = monitor.look(2)
        assert look.total.intended is None and look.total.lost_share is None
        step()
        assert_nothing_lost(monitor.look(3))
    with UpdateMonitor(model, optimizer, step=3) as resumed:
        step()
        look = resumed.look(4)
    assert_nothing_lost(look)
    assert not any("joined" in message for message in look.messages)


def test_several_optimizers_are_followed_and_left_alone_at_the_end() -> None:
    model = small(torch.bfloat16)
    optimizers = [SGD(model[0].parameters(), lr=1e-6), AdamW(model[1:].parameters(), lr=1e-6)]
    with UpdateMonitor(model, optimizers) as monitor:
        torch.autograd.backward(loss_of(model))
        for each in optimizers:
            each.step()
        look = monitor.look(1)
    assert look.total.followed == look.total.values and cast(float, look.total.lost_share) > 0.9
    assert look.messages[0].startswith("At this step bf16 lost 9") and look.messages[0].endswith(
        " of the updates: keep fp32 master weights or use stochastic rounding."
    )
    assert not any(each._optimizer_step_pre_hooks or each._optimizer_step_post_hooks for each in optimizers)


class Lion(Optimizer):
    """As libraries have it: whether its step is elementwise cannot be known."""

    def __init__(self, parameters: Any, masters: bool = False) -> None:
        super().__init__(parameters, {"lr": 1e-4, "masters": masters})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for each in self.param_groups[0]["params"]:
            if self.defaults["masters"]:
                master = self.state[each].setdefault("master_param", each.detach().clone().float())
                each.copy_(master.sub_(1e-4 * each.grad.sign()))
            else:
                each.sub_(1e-4 * each.grad.sign())


def test_what_cannot_be_measured_is_null_and_said() -> None:
    model = small(torch.bfloat16)
    for optimizer in (None, Lion(model.parameters()), SGD([torch.zeros(3)], lr=0.1)):
        with UpdateMonitor(model, optimizer) as monitor:
            torch.autograd.backward(loss_of(model))
            if optimizer is not None:
                optimizer.step()
            look = monitor.look(1)
        unmeasured = ("swallowed", "intended", "lost_share", "lost_norm", "drift")
        assert look.total.followed == 0 and all(getattr(look.total, name) is None for name in unmeasured)
        assert not {f"mantissa/{name}" for name in unmeasured} & set(look.metrics())
        assert len(look.messages) == 1


def test_sparse_gradients_are_not_followed() -> None:
    model = nn.Embedding(64, 8, sparse=True).bfloat16()
    optimizer = SGD(model.parameters(), lr=1e-6)
    with UpdateMonitor(model, optimizer) as monitor:
        torch.autograd.backward(model(torch.tensor([1, 2])).sum())
        optimizer.step()
        look = monitor.look(1)
    assert look.total.intended is None
    assert look.messages == ("What the optimizer intended is not measured: the gradients are sparse.",)


@pytest.mark.parametrize("way", ["named", "in order", "in state"])
def test_master_weights_are_watched_in_place_of_the_parameters(way: str) -> None:
    model = small(torch.bfloat16)
    masters = [each.detach().clone().float() for each in model.parameters()]
    optimizer: Optimizer = Lion(model.parameters(), masters=True) if way == "in state" else SGD(masters, lr=1e-4)
    names = [name for name, _ in model.named_parameters()]
    given: dict[str, Any] = {"named": dict(zip(names, masters, strict=True)), "in order": masters}
    with UpdateMonitor(model, optimizer, masters=given.get(way), share=1) as monitor:
        for _ in range(2):
            torch.autograd.backward(loss_of(model))
            if way != "in state":
                for master, each in zip(masters, model.parameters(), strict=True):
                    master.grad = cast(Tensor, each.grad).float()
            optimizer.step()
            with torch.no_grad():
                for master, each in zip(masters, model.parameters(), strict=True):
                    each.copy_(each if way == "in state" else master)
        look = monitor.look(2)
    if way == "in state":
        masters = [state["master_param"] for state in optimizer.state.values()]
    start = [each.detach() for each in small(torch.bfloat16).parameters()]
    pairs = list(zip(masters, start, strict=True))
    assert look.total.changed == sum(int((a.bfloat16() != b).sum()) for a, b in pairs)
    assert look.total.swallowed == sum(int(((a != b.float()) & (a.bfloat16() == b)).sum()) for a, b in pairs) > 0
    assert (look.total.lost_share is None) == (way == "in state")
    assert way == "in state" or cast(float, look.total.lost_share) < 0.2
