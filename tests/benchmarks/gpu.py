"""A CUDA GPU: counting next to compiled loops on one thread, conflict and precision next to autograd, the training monitor next to a step.

``python -m tests.benchmarks.gpu`` prints as JSON the speed of counting, and the seconds of a training step and of a look.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from .child import quantity, run
from .conflict import TIMES_FASTER
from .exit import exit_on_gpu
from .monitor import SHARE
from .precision import precision_on_gpu
from .result import Result

_ROUNDS = 15
_CHUNK = 4 << 20  # bytes, as the streams have it
_STEP: dict[str, Any] = {
    "vocab_size": 32_000, "hidden_size": 2_048, "intermediate_size": 5_632, "num_hidden_layers": 16, "num_attention_heads": 32,
}  # fmt: skip


def gpu(folder: Path) -> Iterator[Result]:
    """One line that says so if there is no GPU."""
    found = run(["-m", "tests.benchmarks.gpu"], folder=folder).json
    if not found:
        yield Result("GPU", "there is no CUDA device here: not measured")
        return
    yield Result("GPU", found["name"])
    for name, (ours, loops, same) in found["rates"].items():
        yield Result(f"  counting {name}", quantity(ours / 1e9, "GB/s"), f"{quantity(loops / 1e9, 'GB/s')}, loops", ours / loops)
        yield Result("    counts", "equal" if same else "different", "", None, "equal", same)
    for mode in ("sampled", "exact"):
        look, step = found[mode], found["step"]
        said = f"{quantity(1000 * look, 'ms')} of {quantity(1000 * step, 'ms')}: {look / step:.2%}"
        sampled = mode == "sampled"
        target, met = (f"< {SHARE:.0%} of a step", look < SHARE * step) if sampled else ("", None)
        yield Result(
            f"  training monitor, {mode} look, Llama of {found['parameters'] / 1e9:.1f} billion in bf16", said, "", None, target, met
        )
    ways = ("naive", "fast", "frugal", "weights")
    program = ["-m", "tests.benchmarks.conflict_ways"]
    runs = {way: run([*program, way, "even", "cuda"]).json for way in ways}
    naive = runs["naive"]
    for way in ways[1:]:
        ours = runs[way]
        ratio, equal = naive["seconds"] / ours["seconds"], abs(ours["conflict_rate"] - naive["conflict_rate"]) < 1e-3
        target, met = (f">= {TIMES_FASTER} times", ratio >= TIMES_FASTER) if way == "fast" else ("", None)
        yield Result(f"  conflict, {way}", quantity(ours["seconds"], "s"), quantity(naive["seconds"], "s"), ratio, target, met)
        mine, theirs = (quantity(each["bytes"] / 1e9, "GB") for each in (ours, naive))
        yield Result("    memory in addition to the model", mine, theirs, naive["bytes"] / ours["bytes"])
        mine, theirs = (f"{each['conflict_rate']:.5f}" for each in (ours, naive))
        yield Result("    conflict rate", mine, theirs, None, "within 0.001", equal)
    yield from precision_on_gpu()
    yield from exit_on_gpu()


def main() -> None:
    """Print what this process measures, or {} without a GPU."""
    import torch

    found = {"name": torch.cuda.get_device_name(), "rates": _rates(), **_steps()} if torch.cuda.is_available() else {}
    print(json.dumps(found))


def _rates() -> dict[str, tuple[float, float, bool]]:
    """Bytes per second on the GPU, copying included, and of the compiled loops; and whether both count the same."""
    from analyzers.numerics import Accumulator, PairCounter

    weights = np.random.default_rng(0).standard_normal(_CHUNK // 4, dtype=np.float32) * np.float32(0.02)
    fp32 = weights.view(np.uint32)
    bf16 = np.concatenate([fp32, fp32[::-1]]) >> np.uint32(16)
    base = bf16.astype(np.uint16)
    tuned = base + (np.random.default_rng(1).random(base.size) < 0.01).astype(np.uint16)

    def one(codes: Any, dtype: str, device: str) -> Any:
        accumulator = Accumulator(dtype, device)
        accumulator.update(codes)
        taken = accumulator.take()
        return taken.index.tolist(), taken.counts.tolist()

    def two(device: str) -> Any:
        counter = PairCounter("BF16", "BF16", 1e-3, None, device)
        counter.update(base, tuned)
        taken = counter.take()
        return taken.changed, taken.probe, taken.differ, taken.absolute_max

    cases: dict[str, tuple[int, Callable[[str], Any]]] = {
        "fp32": (_CHUNK, lambda device: one(fp32, "F32", device)),
        "bf16": (_CHUNK, lambda device: one(base, "BF16", device)),
        "pairs of bf16, 1% changed": (2 * _CHUNK, two),
    }
    rates = {}
    for name, (size, count) in cases.items():
        seconds = {device: _median(lambda count=count, device=device: count(device)) for device in ("cuda", "cpu")}  # type: ignore[misc]
        rates[name] = (size / seconds["cuda"], size / seconds["cpu"], count("cuda") == count("cpu"))
    return rates


def _steps() -> dict[str, float]:
    """Seconds of a training step, and of a look in each mode."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from mantissa.training import UpdateMonitor

    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**_STEP)).bfloat16()
        token_ids = torch.randint(0, _STEP["vocab_size"], (8, 1024))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        model(input_ids=token_ids, labels=token_ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()

    def look() -> None:
        watching.look()
        torch.cuda.synchronize()

    found = {"step": _median(step), "parameters": float(sum(each.numel() for each in model.parameters()))}
    for mode in ("sampled", "exact"):
        with UpdateMonitor(model, mode=mode) as watching:
            found[mode] = _median(look)
    return found


def _median(work: Callable[[], object]) -> float:
    """Seconds, after two rounds that are thrown away."""
    seconds = []
    for _ in range(2 + _ROUNDS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return median(seconds[2:])


if __name__ == "__main__":
    main()
