"""Measures the training monitor's looks and its shadow, relative to steps of a Llama of 8 layers on 32 samples of 128 tokens."""

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from .child import quantity
from .result import Result

RUNS = 3
SHARE = 0.01
SIZES: dict[str, Any] = {
    "vocab_size": 4_096, "hidden_size": 384, "intermediate_size": 1_024, "num_hidden_layers": 8, "num_attention_heads": 6,
}  # fmt: skip


def monitor(folder: Path) -> Iterator[Result]:
    """Measure the processor time of a look, and of the shadow's step with a look at every step, as shares of a step."""
    import torch  # imported late, since the memory of this process counts as that of every program that it starts
    from transformers import LlamaConfig, LlamaForCausalLM

    from mantissa.training import UpdateMonitor

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    token_ids = torch.randint(0, SIZES["vocab_size"], (32, 128))

    def step() -> None:
        model(input_ids=token_ids, labels=token_ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    yield _shadow(model, optimizer, step)
    steps: list[float] = []
    for mode in ("quick", "exact"):
        looks: list[float] = []
        with UpdateMonitor(model, mode=mode) as watching:
            watching.look()
            for _ in range(RUNS):  # alternating, so that other load on the machine affects both
                steps.append(_seconds(step))
                looks.append(_seconds(watching.look))
        share = median(looks) / median(steps)
        target, met = (f"< {SHARE:.0%} of a step", share < SHARE) if mode == "quick" else ("", None)
        said = f"{quantity(1000 * median(looks), 'ms')} of {quantity(1000 * median(steps), 'ms')}: {share:.2%}"
        yield Result(f"training monitor, {mode} look", said, "", None, target, met)


def _shadow(model: Any, optimizer: Any, step: Callable[[], object]) -> Result:
    """Measure the processor time between hooks around those of the monitor, and of the look."""
    from mantissa.training import UpdateMonitor

    marks: list[float] = []
    handles = []

    def mark(register: Callable[..., Any]) -> None:
        handles.append(register(lambda *_: marks.append(process_time())))

    mark(optimizer.register_step_pre_hook)
    steps, costs = [], []
    with UpdateMonitor(model, optimizer) as watching:
        for register in (optimizer.register_step_pre_hook, optimizer.register_step_post_hook, optimizer.register_step_post_hook):
            mark(register)
        handles[-1].hooks_dict_ref().move_to_end(handles[-1].id, last=False)  # the monitor moves its own hook to the front
        for _ in range(1 + RUNS):
            marks.clear()
            whole, look = _seconds(step), _seconds(watching.look)
            before = marks[1] - marks[0], marks[3] - marks[2]
            costs.append(sum(before) + look)
            steps.append(whole - sum(before))
    for handle in handles:
        handle.remove()
    share = median(costs[1:]) / median(steps[1:])
    said = f"{quantity(1000 * median(costs[1:]), 'ms')} of {quantity(1000 * median(steps[1:]), 'ms')}: {share:.2%}"
    return Result("training monitor, shadow and look at every step", said, "", None, f"< {SHARE:.0%} of a step", share < SHARE)


def _seconds(work: Callable[[], object]) -> float:
    start = process_time()  # process time excludes other load on the machine
    work()
    return process_time() - start
