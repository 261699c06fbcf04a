"""Measures counting on a CUDA GPU: weights in its memory, the training monitor, and whole answers from a file.

``python -m tests.benchmarks.gpu_counting`` prints its measurements as JSON, in a minute or two; {} without a GPU. GPU_BENCHMARK_SMALL=1
runs it on a CPU with small data, to test the program.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from .child import quantity, run
from .result import Result

SMALL = "GPU_BENCHMARK_SMALL" in os.environ
_DEVICE = "cpu" if SMALL else "cuda"
_ROUNDS = 3 if SMALL else 7
_VALUES = 1 << 20 if SMALL else 1 << 28  # values of a tensor
_COMPARED = 1 << 18 if SMALL else 1 << 24  # values compared with the compiled loops
_BESIDE = 256 << 20
_SIZES: dict[str, Any] = {
    "vocab_size": 32_000, "hidden_size": 2_048, "intermediate_size": 5_632, "num_hidden_layers": 16, "num_attention_heads": 32,
}  # fmt: skip
_LITTLE: dict[str, Any] = {
    "vocab_size": 1_000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
# Target bytes per second on an H100.
_TARGETS = {"counts of bf16": 50e9, "pairs of bf16": 25e9}
_OF_COPYING = 0.8
# Target seconds of a look at 1% and at all of the values.
_LOOKS = {"quick": 0.004, "exact": 0.1}


def counting(folder: Path) -> Iterator[Result]:
    """Compare the measurements of `main` with their targets. Yields nothing without a GPU."""
    found = run(["-m", "tests.benchmarks.gpu_counting"], folder=folder).json
    if not found:
        return
    for name, (speed, beside, same) in found["counting"].items():
        goal = next((goal for start, goal in _TARGETS.items() if name.startswith(start)), None)
        target, met = (f">= {goal / 1e9:.0f} GB/s", speed >= goal) if goal else ("", None)
        yield Result(f"  in place: {name}", quantity(speed / 1e9, "GB/s"), "", None, target, met)
        yield Result("    memory beside the weights", quantity(beside / 1e6, "MB"), "", None, "<= 256 MiB", beside <= _BESIDE)
        yield Result("    counts", "equal" if same else "different", "", None, "equal to the loops", same)
    for mode, goal in _LOOKS.items():
        look, step = found["monitor"][mode], found["monitor"]["step"]
        said, size = f"{quantity(1000 * look, 'ms')}, a step {quantity(1000 * step, 'ms')}", found["monitor"]["parameters"] / 1e9
        name = f"  training monitor, {mode} look, Llama of {size:.1f} billion in bf16"
        yield Result(name, said, "", None, f"< {1000 * goal:g} ms", look < goal)
    for name, (there, here) in found["answers"].items():
        target, met = ("as fast as the CPU", there <= here) if "from file" in name else ("", None)
        yield Result(f"  {name}", quantity(there, "s"), f"{quantity(here, 's')}, CPU", here / there, target, met)
        if name in found["alone"]:
            read, copied, few = found["alone"][name]
            streamed = max(there - few, 1e-9)
            alone, share = f"{quantity(copied, 's')} alone, reading {quantity(read, 's')}", copied / streamed
            said = f"{quantity(streamed, 's')} more than for as many tensors of few values"
            yield Result("    reading and copying its weights", said, alone, share, f">= {_OF_COPYING}", share >= _OF_COPYING)


def main() -> None:
    """Print the measurements of this process."""
    import torch

    if not SMALL and not torch.cuda.is_available():
        print("{}")
        return
    found: dict[str, Any] = {}
    for measure in (_counting, _monitor, _files):
        found |= measure()
        print(json.dumps(found), file=sys.stderr, flush=True)  # in case a later part fails
    print(json.dumps(found))


def _counting() -> dict[str, Any]:
    """Measure bytes per second of weights on the device and the memory used, and compare the counts with those of the compiled loops."""
    import torch

    from analyzers.numerics import Accumulator
    from tests.numerics.pair_counts import Counting

    torch.manual_seed(0)
    weights = torch.randn(_VALUES, device=_DEVICE, dtype=torch.bfloat16).mul_(0.02)
    moved = torch.where(torch.rand(_VALUES, device=_DEVICE) < 0.01, 1, 0).to(torch.int16)
    noisy = (weights.float() + torch.randn(_VALUES, device=_DEVICE) * 1e-4).bfloat16()
    base, half = weights.view(torch.int16), weights[: _VALUES // 2].float()
    wide = half.mul_(1.0001).view(torch.int32)

    def codes(patterns: Any) -> Any:
        return patterns[:_COMPARED].cpu().numpy().view(f"u{patterns.element_size()}")

    def one(dtype: str) -> Callable[..., Any]:
        def count(patterns: Any) -> Any:
            accumulator = Accumulator(dtype)
            accumulator.update(patterns)
            taken = accumulator.take()
            return taken.index.tolist(), taken.counts.tolist(), taken.low, taken.high

        return count

    def two(dtype: str, tables: bool) -> Callable[..., Any]:
        def count(before: Any, after: Any) -> Any:
            counting = Counting((dtype, dtype), 1e-3, _DEVICE if isinstance(before, torch.Tensor) else "", tables)
            counting.add(before, after)
            taken = counting.counts
            bins = counting.bins
            return taken.changed, taken.probe, taken.differ, taken.absolute_max, bins.steps.tolist(), bins.absolute.tobytes()

        return count

    cases: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "counts of bf16": (one("BF16"), (base,)),
        "counts of bf16, all zeros": (one("BF16"), (torch.zeros_like(base),)),
        "counts of fp32": (one("F32"), (wide,)),
        "pairs of bf16, 1% changed": (two("BF16", True), (base, base + moved)),
        "pairs of bf16, noise": (two("BF16", True), (base, noisy.view(torch.int16))),
        "pairs of bf16, noise, without tables": (two("BF16", False), (base, noisy.view(torch.int16))),
        "fp32 pairs, noise": (two("F32", True), (wide, (wide.view(torch.float32) * 1.001).view(torch.int32))),
    }
    found = {}
    for name, (count, sides) in cases.items():
        same = count(*(side[:_COMPARED] for side in sides)) == count(*map(codes, sides))
        begun = _peak(reset=True)
        seconds = _median(lambda count=count, sides=sides: count(*sides))  # type: ignore[misc]
        found[name] = (sum(side.nbytes for side in sides) / seconds, float(_peak() - begun), same)
    return {"counting": found}


def _monitor() -> dict[str, dict[str, float]]:
    """Measure seconds of a training step, and of a look in each mode."""
    import torch

    from mantissa.training import UpdateMonitor

    model, sizes = _model()
    token_ids = torch.randint(0, sizes["vocab_size"], (1, 256), device=_DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

    def step() -> None:
        model(input_ids=token_ids, labels=token_ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    times = {"step": _median(step), "parameters": float(sum(each.numel() for each in model.parameters()))}
    for mode in _LOOKS:
        with UpdateMonitor(model, mode=mode) as watching:  # type: ignore[arg-type]
            times[mode] = _median(watching.look)
    return {"monitor": times}


def _files() -> dict[str, Any]:
    """Measure seconds of answers about models, in memory and in files, on the device and on the CPU; and of reading and copying alone.

    alone: of answers from files, the seconds of reading, of reading and copying, and of the answer about as many tensors of few values.
    """
    import torch

    import mantissa

    before, after = _fine_tune(_model()[0])
    answers: dict[str, tuple[float, float]] = {}

    def ask(name: str, work: Callable[..., Any]) -> None:
        work(device=_DEVICE)
        answers[name] = (_seconds(lambda: work(device=_DEVICE)), _seconds(lambda: work(device="cpu")))

    with TemporaryDirectory(prefix="mantissa-") as folder:
        alone = {}
        few, files = saved(Path(folder) / "few", few=True), saved(Path(folder) / "all")
        for number, (name, work) in enumerate(answers_from_files().items(), 1):
            ask(f"{name}, exact", partial(work, files))
            read = [_median(partial(_read, files[:number], copied)) for copied in (False, True)]
            alone[f"{name}, exact"] = [*read, _median(partial(work, few, device=_DEVICE))]
    ask("sparsity of two models in memory there, exact", partial(mantissa.sparsity, before, after, mode="exact"))
    for kind in (torch.bfloat16, torch.float16, torch.float32):
        state = {name: value.to(kind) for name, value in after.items()}
        ask(f"dtype of a model in memory there in {kind}, exact", partial(mantissa.dtype, state, mode="exact"))
    return {"answers": answers, "alone": alone}


def _read(folders: Sequence[Path], copied: bool) -> None:
    """Read checkpoints, and copy them to the device, as for an exact answer, and count nothing."""
    from analyzers.checkpoints import Access, open_checkpoint
    from analyzers.checkpoints.reading.spans import whole_spans
    from analyzers.checkpoints.reading.stream import stream
    from analyzers.numerics.torch_kernels import on_device

    checkpoints = [open_checkpoint(str(folder), Access(local=True)) for folder in folders]
    spans = whole_spans(list(zip(*(each.tensors for each in checkpoints), strict=True)))

    def copy(_: Any, chunks: Any) -> int:
        return sum(len(on_device(codes, _DEVICE) if copied else codes) for chunk in chunks for codes in chunk.sides)

    for _ in stream(checkpoints, spans, copy, counted_on=_DEVICE):
        pass
    for each in checkpoints:
        each.close()


def _model(few: bool = False) -> tuple[Any, dict[str, Any]]:
    """Build a Llama on the device, and return it with its sizes. few: of as many tensors of few values."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = _LITTLE if SMALL else _SIZES
    if few:
        sizes = sizes | {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 1}
    with torch.device(_DEVICE):
        return LlamaForCausalLM(LlamaConfig(**sizes)).bfloat16(), sizes


def _fine_tune(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights, and the same after an update of a hundredth of their size."""
    import torch

    before = {name: value.clone() for name, value in model.state_dict().items()}
    return before, {name: value + torch.randn_like(value) / 5000 for name, value in before.items()}


def answers_from_files() -> dict[str, Callable[..., object]]:
    """Return questions about the folders of a model and its fine-tune, on a device."""
    import mantissa

    return {
        "dtype, from file to answer": lambda folders, device: mantissa.dtype(folders[1], mode="exact", device=device),
        "sparsity, from files to answer": lambda folders, device: mantissa.sparsity(*folders, mode="exact", device=device),
    }


def saved(folder: Path, few: bool = False) -> list[Path]:
    """Save a Llama and its fine-tune, and return their folders. few: of as many tensors of few values."""
    from safetensors.torch import save_file

    folders = [folder / name for name in ("before", "after")]
    for state, into in zip(_fine_tune(_model(few)[0]), folders, strict=True):
        into.mkdir(parents=True)
        save_file(state, into / "model.safetensors", {"format": "pt"})
    return folders


def _peak(reset: bool = False) -> int:
    import torch

    if SMALL:
        return 0
    if reset:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.max_memory_allocated()


def _seconds(work: Callable[[], object]) -> float:
    import torch

    start = time.perf_counter()
    work()
    if not SMALL:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _median(work: Callable[[], object]) -> float:
    """Return the median seconds of ``work``, after two discarded rounds."""
    return median([_seconds(work) for _ in range(2 + _ROUNDS)][2:])


if __name__ == "__main__":
    main()
