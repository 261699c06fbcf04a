"""Ten awkward structures of an update, on a model of few millions of weights, and what a report estimates of them, with the truth."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from analyzers.checkpoints import Access, Chunk, Plan, align, open_checkpoint
from analyzers.update_sparsity.collect import Collector
from analyzers.update_sparsity.count import Comparer
from tests.dtype_detection.checkpoints import write
from tests.update_sparsity.checkpoints import BF16

Array = NDArray[np.float32]
Update = Callable[[str, tuple[int, ...], np.random.Generator], Array]
LAYERS, WIDTH = 10, 256
SIZE = 1e-4


def base() -> dict[str, Array]:
    """A decoder of 3.6 million weights whose embedding is a quarter of it, with norms and biases next to matrices."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (4000, WIDTH)}
    for layer in range(LAYERS):
        start = f"model.layers.{layer}."
        shapes |= {
            f"{start}self_attn.q_proj.weight": (WIDTH, WIDTH),
            f"{start}self_attn.o_proj.weight": (WIDTH, WIDTH),
            f"{start}mlp.up_proj.weight": (2 * WIDTH, WIDTH),
            f"{start}input_layernorm.weight": (WIDTH,),
            f"{start}self_attn.q_proj.bias": (WIDTH,),
        }
    return {name: (0.02 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def _layer(name: str) -> int:
    return int(name.split(".")[2]) if ".layers." in name else -1


def _normal(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return np.asarray(SIZE * rng.standard_normal(shape), np.float32)


def _everywhere(factor: Callable[[str], float]) -> Update:
    return lambda name, shape, rng: factor(name) * _normal(name, shape, rng)


def _where(share: float, by_row: bool, factor: float, rest: float) -> Update:
    """``factor`` times as large in a ``share`` of the values or rows, ``rest`` times elsewhere."""

    def update(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        drawn = rng.random((*shape[:-1], 1) if by_row and len(shape) > 1 else shape) < share
        return np.where(drawn, np.float32(factor), np.float32(rest)) * _normal(name, shape, rng)

    return update


def _heavy_tails(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return np.asarray(SIZE * rng.standard_t(2.5, shape), np.float32)


def _clusters(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """A contiguous tenth of each tensor changes."""
    update, start = np.zeros(int(np.prod(shape)), np.float32), int(rng.integers(0, int(np.prod(shape)) * 9 // 10))
    update[start : start + update.size // 10] = SIZE
    return update.reshape(shape) * np.asarray(rng.standard_normal(shape), np.float32)


STRUCTURES: Mapping[str, Update] = {
    "normal updates everywhere": _normal,
    "a tenth of the values": _where(0.1, False, 1.0, 0.0),
    "one value in a hundred, a hundred times as large": _where(0.01, False, 100.0, 1.0),
    "heavy tails (Student's t, 2.5 degrees of freedom)": _heavy_tails,
    "a contiguous tenth of each tensor": _clusters,
    "a fifth of the rows": _where(0.2, True, 1.0, 0.0),
    "one row in fifty, thirty times as large": _where(0.02, True, 30.0, 1.0),
    "norms and biases read whole, a hundred times as large": _everywhere(lambda name: 100.0 if "norm" in name or "bias" in name else 1.0),
    "layers of different size": _everywhere(lambda name: 2.0 ** _layer(name)),
    "one tensor, a thousand times as large": _everywhere(lambda name: 1000.0 if name == "model.layers.3.mlp.up_proj.weight" else 1.0),
    "the embedding alone, next to norms": _everywhere(lambda name: float("embed" in name) + 10.0 * ("norm" in name)),
    "every fourth row of the embedding": lambda name, shape, rng: (
        _normal(name, shape, rng) * np.float32((np.arange(shape[0]) % 400 < 100)[:, None] if "embed" in name else 1)
    ),
}


BUDGET = 1_400_000  # bytes of 14.9 MB
TOPS, QUANTILES = (0.001, 0.01, 0.05), (0.25, 0.5, 0.75, 0.9, 0.99)


def truth(before: Mapping[str, Array], after: Mapping[str, Array]) -> dict[str, float]:
    """What the intervals are about, by brute force, by path in the report."""
    w, v = (np.concatenate([side[name].ravel() for name in before]) for side in (before, after))
    sizes = [before[name].size for name in before]
    roles = np.repeat([_role(name) for name in before], sizes)
    layers = np.repeat([_layer(name) for name in before], sizes)
    changed = (torch.from_numpy(w).to(BF16) != torch.from_numpy(v).to(BF16)).numpy()
    absolute, larger = np.abs(v.astype(np.float64) - w), np.maximum(np.abs(v), np.abs(w)).astype(np.float64)
    exact = {"sparsity": 1 - changed.mean(), "swallowed.share": ((w != v) & ~changed).mean()}
    exact["probe.sparsity"] = (absolute <= 1e-3 * larger).mean()
    exact |= {f"roles.{role}.sparsity": 1 - changed[roles == role].mean() for role in np.unique(roles)}
    exact |= {f"layers.{layer}": 1 - changed[layers == layer].mean() for layer in np.unique(layers)}
    relative = np.divide(absolute, larger, out=np.zeros_like(absolute), where=larger > 0)
    for path, every in (("magnitudes.absolute", absolute), ("magnitudes.relative", relative)):
        for start, part in ((path, every), (f"{path}.changed_only", every[changed])):
            exact[f"{start}.mean"] = part.mean()
            exact |= {f"{start}.p{100 * q:.0f}": value for q, value in zip(QUANTILES, np.quantile(part, QUANTILES), strict=True)}
            if every is relative:
                exact |= {f"{start}.below_2_minus_{exponent}": (part < 2.0**-exponent).mean() for exponent in (8, 7)}
    squares = np.sort(absolute**2)[::-1]
    exact |= {f"energy.{n}.energy": squares[: int(np.ceil(top * w.size))].sum() / squares.sum() for n, top in enumerate(TOPS)}
    return exact


def _role(name: str) -> str:
    return next(role for part, role in (("embed", "embedding"), ("norm", "norm"), ("attn", "attention"), ("mlp", "mlp")) if part in name)


def kind(path: str) -> str:
    """The class of an estimate."""
    first, last = path.split(".")[0], path.split(".")[-1]
    named = {"sparsity": "total", "probe": "probe", "swallowed": "swallowed", "magnitudes": "mean" if last == "mean" else "percentiles"}
    return "below 2^-8, 2^-7" if last.startswith("below") else named.get(first, first)


def covered(structure: str, folder: Path, seeds: int) -> dict[str, list[bool | None]]:
    """For each path whether the interval of each seed holds the truth; None where there is no interval.

    The plan, the counts and the estimates are the product's; the values are not read from files again for each seed.
    """
    rng, before = np.random.default_rng(1), base()
    after = {name: values + STRUCTURES[structure](name, values.shape, rng) for name, values in before.items()}
    exact = truth(before, after)
    held: dict[str, list[bool | None]] = defaultdict(list)
    with ExitStack() as stack:
        folders = [write(folder / name, {k: torch.from_numpy(v) for k, v in side.items()}) for name, side in (("a", before), ("b", after))]
        sides = [stack.enter_context(open_checkpoint(str(each), Access(local=True))) for each in folders]
        alignment = align(sides[0], sides[1:])
        codes = [{name: values.ravel().view(np.uint32) for name, values in side.items()} for side in (before, after)]
        compare = Comparer(1, 1e-3, "cpu", exact=False)
        for seed in range(seeds):
            plan = Plan.of(sides, alignment.sides, "quick", BUDGET, seed)
            collector = Collector(alignment, plan, 1)
            for span in plan.spans:
                part = slice(span.start, span.start + span.count)
                collector.add(span, compare(span, iter([Chunk(span.start, tuple(side[span.tensor.name][part] for side in codes))])))
            estimates = collector.estimates(collector.tables(weighed=True))
            layers = {f"layers.{-1 if layer is None else layer}": each for layer, each in estimates.layers.items()}
            for path, value in exact.items():
                interval = (estimates.named | layers).get(path)
                close = 0.005 * abs(value) if kind(path) == "percentiles" else 1e-12  # bins are 0.8% wide
                held[path].append(None if interval is None else interval.low - close <= value <= interval.high + close)
    return held
