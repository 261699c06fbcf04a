"""Simulates awkward structures of an update on a model of a few million weights, and compares a report's estimates with the truth."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from analyzers.checkpoints import Alignment, Chunk, Plan, Tensor
from analyzers.checkpoints.matching.align import Group
from analyzers.core.records import Interval
from analyzers.comparison.sparsity.collect import Collector
from analyzers.comparison.sparsity.count import Comparer, Counted
from analyzers.comparison.sparsity.rows import TOPS, energy, layer_rows, magnitudes, role_rows
from analyzers.comparison.sparsity.statistics import weigh_pairs
from tests.update_sparsity.checkpoints import BF16

Array = NDArray[np.float32]
Update = Callable[[str, tuple[int, ...], np.random.Generator], Array]
LAYERS, WIDTH = 10, 256
SIZE = 1e-4


def base() -> dict[str, Array]:
    """Make a decoder of 3.6 million weights, a quarter of them in the embedding, with norms and biases next to matrices."""
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
    """Make an update that is ``factor`` times as large in a ``share`` of the values or rows, and ``rest`` times elsewhere."""

    def update(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        drawn = rng.random((*shape[:-1], 1) if by_row and len(shape) > 1 else shape) < share
        return np.where(drawn, np.float32(factor), np.float32(rest)) * _normal(name, shape, rng)

    return update


def _heavy_tails(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return np.asarray(SIZE * rng.standard_t(2.5, shape), np.float32)


def _clusters(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Change a contiguous tenth of each tensor."""
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


BUDGET = 1_400_000  # bytes, of a checkpoint of 14.9 MB
REQUESTS = 4096
QUANTILES = (0.25, 0.5, 0.75, 0.9, 0.99)


def truth(before: Mapping[str, Array], after: Mapping[str, Array]) -> dict[str, float]:
    """Compute the true values of a report's estimates by brute force, by path in the report."""
    w, v = (np.concatenate([side[name].ravel() for name in before]) for side in (before, after))
    ends = np.cumsum([before[name].size for name in before])[:-1]
    changed = (torch.from_numpy(w).to(BF16) != torch.from_numpy(v).to(BF16)).numpy()
    absolute, larger = np.abs(v.astype(np.float64) - w), np.maximum(np.abs(v), np.abs(w)).astype(np.float64)
    squares, base_squares = absolute**2, w.astype(np.float64) ** 2
    exact = {"sparsity": 1 - changed.mean(), "swallowed.share": ((w != v) & ~changed).mean()}
    exact["probe.sparsity"] = (absolute <= 1e-3 * larger).mean()
    exact["relative_norm"] = np.sqrt(squares.sum() / base_squares.sum())
    parts = list(zip(before, *(np.split(values, ends) for values in (changed, squares, base_squares)), strict=True))
    for name in sorted({f"roles.{_role(name)}" for name in before} | {f"layers.{_layer(name)}" for name in before}):
        own = [part for part in parts if name in (f"roles.{_role(part[0])}", f"layers.{_layer(part[0])}")]
        flips, moved, stood = (np.concatenate(column) for column in list(zip(*own, strict=True))[1:])
        exact[f"{name}.sparsity"] = 1 - flips.mean()
        exact[f"{name}.relative_norm"] = np.sqrt(moved.sum() / stood.sum())
    relative = np.divide(absolute, larger, out=np.zeros_like(absolute), where=larger > 0)
    for path, every in (("magnitudes.absolute", absolute), ("magnitudes.relative", relative)):
        for start, part in ((path, every), (f"{path}.changed_only", every[changed])):
            exact |= {f"{start}.mean": part.mean(), f"{start}.std": part.std(), f"{start}.max": part.max()}
            exact |= {f"{start}.p{100 * q:.0f}": value for q, value in zip(QUANTILES, np.quantile(part, QUANTILES), strict=True)}
            if every is relative:
                exact |= {f"{start}.below_2_minus_{exponent}": (part < 2.0**-exponent).mean() for exponent in (8, 7)}
    squares[::-1].sort()
    exact |= {f"energy.{n}.energy": squares[: int(np.ceil(top * w.size))].sum() / squares.sum() for n, top in enumerate(TOPS)}
    return exact


def _role(name: str) -> str:
    return next(role for part, role in (("embed", "embedding"), ("norm", "norm"), ("attn", "attention"), ("mlp", "mlp")) if part in name)


def kind(path: str) -> str:
    """Return the kind of an estimate."""
    first, last = path.split(".")[0], path.split(".")[-1]
    if last in ("relative_norm", "std", "max"):
        return f"{last.replace('_', ' ')} of {first}" if first in ("roles", "layers") else last.replace("_", " ")
    if first == "energy" or last == "mean":
        return first if first == "energy" else "means"
    return "percentiles" if re.fullmatch(r"p\d+", last) else "shares"


class Estimate(NamedTuple):
    """An estimate from one sample, with or without an interval."""

    value: float | None
    interval: Interval | None

    def holds(self, exact: float, close: float) -> bool | None:
        """Return whether the interval contains ``exact`` within a tolerance of ``close``; None without an interval."""
        found = self.interval
        return None if found is None else found.low - close <= exact <= found.high + close


@dataclass(frozen=True, slots=True)
class Simulation:
    """A structure and its estimates. exact: true values by path in the report; estimates: by path, of each seed."""

    exact: dict[str, float]
    estimates: dict[str, list[Estimate]]

    def held(self) -> dict[str, list[bool | None]]:
        """Return for each path whether the interval of each seed contains the truth; None without an interval."""
        # A percentile is the midpoint of a bin that is 0.8% wide.
        close = {path: 0.005 * abs(value) if kind(path) == "percentiles" else 1e-12 for path, value in self.exact.items()}
        return {path: [each.holds(self.exact[path], close[path]) for each in found] for path, found in self.estimates.items()}


def simulated(structure: str, seeds: int) -> Simulation:
    """Sample an update of ``structure`` in memory, with the plan, counts and estimates of the product.

    The cells from which a sample is drawn are the same for every seed, so each is counted once.
    """
    rng, before = np.random.default_rng(1), base()
    after = {name: values + STRUCTURES[structure](name, values.shape, rng) for name, values in before.items()}
    exact = truth(before, after)
    codes = [{name: values.ravel().view(np.uint32) for name, values in side.items()} for side in (before, after)]
    alignment = Alignment(tuple(_groups(before)), ())
    compare = Comparer(1, 1e-3, "cpu", exact=False)
    cells: dict[tuple[str, int], Counted] = {}
    estimates: dict[str, list[Estimate]] = defaultdict(list)
    for seed in range(seeds):
        plan = Plan.sampled(alignment.sides, BUDGET, REQUESTS, seed)
        collector = Collector(alignment, plan, 1)
        for span in plan.spans:
            cell = span.tensor.name, span.start
            if cell not in cells:
                part = slice(span.start, span.start + span.count)
                cells[cell] = compare(span, iter([Chunk(span.start, tuple(side[span.tensor.name][part] for side in codes))]))
            collector.add(span, cells[cell])
        for path, estimate in _estimates(collector, plan):
            if path in exact:
                estimates[path].append(estimate)
    return Simulation(exact, estimates)


def _groups(tensors: Mapping[str, Array]) -> Iterator[Group]:
    offset = 0
    for name, values in tensors.items():
        layer = _layer(name)
        tensor = Tensor(name, "F32", values.shape, 0, offset, values.nbytes, _role(name), layer if layer >= 0 else None, False)
        yield Group(tensor, (tensor,))
        offset += values.nbytes


def _estimates(collector: Collector, plan: Plan) -> Iterator[tuple[str, Estimate]]:
    """Yield the fields of the report that the product computes, by path."""
    tables = collector.tables(weighed=True)
    found, pairs, weights = collector.estimates(tables), collector.pairs(), plan.weights()
    whole = weigh_pairs(pairs, weights)
    for path, value in (("sparsity", whole.sparsity), ("swallowed.share", whole.swallowed), ("probe.sparsity", whole.probe_sparsity)):
        yield path, Estimate(value, found.named[path])
    yield "relative_norm", Estimate(whole.relative_norm, None)
    for role, row in role_rows(pairs, weights).items():
        yield f"roles.{role}.sparsity", Estimate(row.sparsity, found.named[f"roles.{role}.sparsity"])
        yield f"roles.{role}.relative_norm", Estimate(row.relative_norm, None)
    for layer in layer_rows(pairs, weights, found.layers):
        number = -1 if layer.layer is None else layer.layer
        yield f"layers.{number}.sparsity", Estimate(layer.sparsity, found.layers[layer.layer])
        yield f"layers.{number}.relative_norm", Estimate(layer.relative_norm, None)
    sizes = magnitudes(tables, tables)
    for name in ("absolute", "relative"):
        every = getattr(sizes, name)
        for path, summary in ((f"magnitudes.{name}", every), (f"magnitudes.{name}.changed_only", every.changed_only)):
            for last, value in summary:
                if isinstance(value, float):
                    yield f"{path}.{last}", Estimate(value, found.named.get(f"{path}.{last}"))
    for number, top in enumerate(energy(tables)):
        yield f"energy.{number}.energy", Estimate(top.energy, found.named.get(f"energy.{number}.energy"))
