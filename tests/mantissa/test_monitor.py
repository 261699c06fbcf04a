"""The training monitor: its figures against brute force and `sparsity`, its cost, and that it changes nothing."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM

import mantissa
from analyzers.core.errors import InvalidRequest
from analyzers.language_models.samples import sample_folder
from mantissa.training import Look, UpdateMonitor
from mantissa.training.update_counts import _AT_ONCE
from tests.numerics.readbacks import readbacks


def tiny(dtype: torch.dtype = torch.float32) -> nn.Module:
    return cast(nn.Module, AutoModelForCausalLM.from_pretrained(sample_folder("tiny-bf16"), dtype=dtype))


def train(model: nn.Module, steps: int, monitor: UpdateMonitor | None = None, rate: float = 1e-4, optimizer: Any = None) -> list[float]:
    """The losses of some steps of AdamW on seeded tokens."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=rate, eps=1e-6)  # 1e-8 is 0 in fp16
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        token_ids = torch.randint(0, 512, (2, 16), generator=generator)
        loss = cast(Any, model)(input_ids=token_ids, labels=token_ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if monitor is not None:
            monitor.step()
    return losses


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_exact_counts_are_those_of_brute_force(dtype: torch.dtype) -> None:
    model = tiny(dtype)
    start = values(model)
    with UpdateMonitor(model, every=100, share=1) as monitor:
        train(model, 2)
        middle = values(model)
        monitor.look(2)
        train(model, 2)
        look = monitor.look(4)
    now = values(model)

    def changed(before: dict[str, torch.Tensor]) -> int:
        return sum(int((now[name].bfloat16() != before[name].bfloat16()).sum()) for name in now)

    def stored(before: dict[str, torch.Tensor]) -> int:
        return sum(int((now[name] != before[name]).sum()) for name in now)

    total = look.total
    assert (look.start, look.last, look.step) == (0, 2, 4)
    assert not look.sampled and total.values == sum(each.numel() for each in now.values())
    assert (total.changed, total.changed_since_last) == (changed(start), changed(middle))
    if dtype == torch.bfloat16:  # what bf16 swallowed is not in its values
        assert total.swallowed is None and total.swallowed_since_last is None and total.swallowed_share is None
        assert "mantissa/swallowed" not in look.metrics()
    else:
        swallowed = cast(int, total.swallowed), cast(int, total.swallowed_since_last)
        assert (total.changed + swallowed[0], total.changed_since_last + swallowed[1]) == (stored(start), stored(middle))
    squares = [sum(float(each.double().square().sum()) for each in group) for group in ([now[n] - middle[n] for n in now], now.values())]
    assert total.update_ratio == pytest.approx((squares[0] / squares[1]) ** 0.5, rel=1e-3)  # differences in float32 and in the dtype
    assert sum(row.values for row in look.roles.values()) == total.values


def test_exact_figures_equal_sparsity_between_saved_checkpoints(tmp_path: Path) -> None:
    model = tiny()
    cast(Any, model).save_pretrained(tmp_path / "before")
    with UpdateMonitor(model, every=3, share=1) as monitor:
        train(model, 3, monitor)
        look = monitor.look(3)
    cast(Any, model).save_pretrained(tmp_path / "after")
    report = mantissa.sparsity(tmp_path / "before", tmp_path / "after", mode="exact")
    equal(look, report)


def equal(look: Look, report: Any) -> None:
    """That a look says what `sparsity` does, exactly."""
    total = look.total
    assert (total.values, total.changed, total.swallowed) == (report.total_parameters, report.num_changed, report.swallowed.count)
    assert total.changed_share == report.update_fraction
    assert {name: row.changed for name, row in look.roles.items()} == {name: row.num_changed for name, row in report.roles.items()}


def test_a_sample_is_near_the_truth_and_holds_norms_whole() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.LayerNorm(1024), nn.Linear(1024, 2048))
    with UpdateMonitor(model, share=0.05) as monitor:
        watched = sum(each.start.numel() for each in monitor._watched.values())
        with torch.no_grad():
            for parameter in model.parameters():  # one weight in four moves by more than bf16 resolves
                parameter[torch.rand(parameter.shape) < 0.25] *= 1.1
        look = monitor.look(1)
    assert look.sampled and watched == pytest.approx(0.05 * 3 * 1024**2 + 4096, rel=0.02)
    assert look.total.changed_share == pytest.approx(0.25, abs=0.01)
    assert look.total.values == watched


@pytest.mark.parametrize("share", [0.01, 1])
def test_a_look_waits_for_its_device_once(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_AT_ONCE, "cpu", 5_000)  # several batches, and parts of tensors
    model = tiny(torch.bfloat16)
    with UpdateMonitor(model, share=share) as monitor:
        train(model, 1)
        with readbacks() as found:
            look = monitor.look()
    assert look.total.changed and found == {"cpu": 1}


def test_norms_that_bf16_holds_still_are_told() -> None:
    """Pure bf16 training: steps of 1e-4 do not reach a norm at 1.0, whose neighbours are 2^-8 and 2^-7 away."""
    for watch in (False, True):
        model = tiny(torch.bfloat16)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.fill_(1.0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        with UpdateMonitor(model, optimizer if watch else None) as monitor:
            train(model, 12, optimizer=optimizer)
            look = monitor.look(12)
        (message,) = (each for each in look.messages if each.startswith("9 of 9 norms have not moved in 12 steps"))
        assert message.endswith("every step rounds away.") and ("no gradient" in message) != watch
        assert look.roles["norm"].unmoved == 9


def test_a_nan_is_told_and_stays_json(tmp_path: Path) -> None:
    model = nn.Linear(64, 64)
    with UpdateMonitor(model, path=tmp_path / "looks.jsonl") as monitor:
        with torch.no_grad():
            model.weight.fill_(float("nan"))
        monitor.look(20)
    (line,) = (tmp_path / "looks.jsonl").read_text().splitlines()
    assert Look.model_validate_json(line).total.update_ratio is None
    assert any("not finite" in message for message in json.loads(line)["messages"])


def test_bad_use_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    monitor = UpdateMonitor(model, path=tmp_path / "updates.jsonl")
    with pytest.raises(InvalidRequest):  # it has one
        UpdateMonitor(model)
    (tmp_path / "updates.jsonl").unlink()
    (tmp_path / "updates.jsonl").mkdir()
    with pytest.raises(InvalidRequest):
        monitor.look(1)
    monitor.close()
    UpdateMonitor(model).close()
    sharded = nn.Linear(8, 8)
    cast(Any, sharded.weight).to_local = None  # as a DTensor has it
    for watched in (nn.Linear(8, 8, device="meta"), sharded, nn.Identity(), "org/model"):
        with pytest.raises(InvalidRequest):
            UpdateMonitor(cast(Any, watched))
    wrong: tuple[dict[str, Any], ...] = ({"every": 2.5}, {"share": 0.0}, {"optimizer": "adamw"})
    for options in (*wrong, {"masters": 5}, {"path": tmp_path}):  # before a training run has begun, not at its first look
        with pytest.raises(InvalidRequest):
            UpdateMonitor(nn.Linear(8, 8), **options)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # used by peft
def test_adapters_are_watched_beside_the_frozen_model() -> None:
    model = get_peft_model(cast(Any, tiny()), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    start = values(model)
    with UpdateMonitor(model, every=100, share=1) as monitor:
        train(model, 3)
        look = monitor.look(3)
        with torch.no_grad():
            model.get_parameter("base_model.model.model.norm.weight").add_(1)
        told = monitor.look(4).messages
        with torch.no_grad():
            model.get_parameter("base_model.model.model.norm.weight").sub_(1)
    moved = {name for name, value in values(model).items() if not torch.equal(value, start[name])}
    assert moved and all("lora_" in name for name in moved)
    assert set(look.roles) == {"lora_A", "lora_B"} and look.total.trainable == 16  # two linear maps of four layers, each with two matrices
    assert look.roles["lora_A"].trainable == look.roles["lora_B"].trainable == 8
    assert look.total.values == sum(each.numel() for name, each in start.items() if "lora_" in name)
    assert look.total.changed == sum(role.changed for role in look.roles.values()) > 0
    assert look.frozen is not None and look.frozen.changed == 0
    assert look.frozen.values == sum(each.numel() for name, each in start.items() if "lora_" not in name)
    assert not any("frozen" in message for message in look.messages)
    assert told == ('1 frozen tensor changed, "base_model.model.model.norm.weight" first.',)
