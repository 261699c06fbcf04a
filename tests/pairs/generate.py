"""Makes small decoders, and from them checkpoints of every kind of relation, seeded, with what is right to say of each."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from tests.dtype.checkpoints import write, write_sharded
from tests.parents.structures import SHARED, STRUCTURES, structured

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
STORAGES = {"bf16": BF16, "fp16": F16, "fp32": F32}
LAYERS, WIDTH, HEAD, NEURONS, VOCABULARY = 4, 64, 16, 160, 64
FACTORS = (0.7, 2.0, 30.0)
Tensors = dict[str, torch.Tensor]


class Case(NamedTuple):
    """A model X with its candidates P_1, P_2, ...; P_1 is also the base of sparsity.

    weights: those of a linear merge, one for each candidate. layers: of a stack, the candidate and its layer for each layer of X.
    """

    model: Tensors
    candidates: tuple[Tensors, ...]
    weights: tuple[float, ...] | None = None
    layers: tuple[tuple[int, int], ...] | None = None


class Kind(NamedTuple):
    """How a case is made, and what a report must say of it (see the documentation of parents).

    verdicts: any of them is right. relation: of the tensors of X that differ from P_1, while all others are equal; None if there is none to
    expect (merges). to: the format of ``rounded``; factor, offset: of ``affine``. by_name: whether sparsity compares tensors of the same
    names. direction: whether the values show which checkpoint came last. storages: of P, in which there is something to see.
    """

    make: "Callable[[Draw], Case]"
    verdicts: set[str]
    relation: set[str] | None = None
    to: str | None = None
    factor: float | None = None
    offset: float | None = None
    by_name: bool = True
    direction: bool = False
    storages: tuple[str, ...] = tuple(STORAGES)


class Draw:
    """Random numbers of one case, and the dtype in which its checkpoints are stored."""

    def __init__(self, storage: str, seed: int) -> None:
        self.dtype, self.seed = STORAGES[storage], seed
        self.rng = torch.Generator().manual_seed(1000 + seed)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.rng)

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=self.rng)

    def wide(self, norm: float = 1.0) -> Tensors:
        """Draw a decoder in fp32: matrices of different scales, norms around ``norm``."""
        state = {"model.embed_tokens.weight": 0.02 * self.normal(VOCABULARY, WIDTH)}
        for layer in range(LAYERS):
            at = f"model.layers.{layer}"
            shapes = {"q": (WIDTH, WIDTH), "k": (WIDTH // 2, WIDTH), "v": (WIDTH // 2, WIDTH), "o": (WIDTH, WIDTH)}
            state |= {f"{at}.self_attn.{name}_proj.weight": 0.04 * self.normal(*shape) for name, shape in shapes.items()}
            shapes = {"gate": (NEURONS, WIDTH), "up": (NEURONS, WIDTH), "down": (WIDTH, NEURONS)}
            state |= {f"{at}.mlp.{name}_proj.weight": 0.03 * self.normal(*shape) for name, shape in shapes.items()}
            state |= {f"{at}.{name}.weight": norm + 0.1 * self.normal(WIDTH) for name in ("input_layernorm", "post_attention_layernorm")}
        return state | {"model.norm.weight": norm + 0.1 * self.normal(WIDTH), "lm_head.weight": 0.02 * self.normal(VOCABULARY, WIDTH)}

    def model(self, norm: float = 1.0) -> Tensors:
        return cast(self.wide(norm), self.dtype)

    def tuned(self, base: Tensors, size: float) -> Tensors:
        """Move each tensor in a random direction by ``size`` times its norm (vectors: of their deviations from the mean)."""

        def move(x: torch.Tensor) -> torch.Tensor:
            return x.float() + size * (x.float() - (x.float().mean() if x.dim() == 1 else 0)).square().mean().sqrt() * self.normal(*x.shape)

        return {name: move(x).to(x.dtype) for name, x in base.items()}

    def siblings(self, size: float = 0.3) -> tuple[Tensors, Tensors, Tensors]:
        base = self.model()
        return base, self.tuned(base, size), self.tuned(base, size)


def cast(state: Tensors, *dtypes: torch.dtype) -> Tensors:
    for dtype in dtypes:
        state = {name: x.to(dtype) for name, x in state.items()}
    return state


def combine(function: Callable[..., torch.Tensor], *models: Tensors, dtype: torch.dtype | None = None) -> Tensors:
    """Apply ``function`` in float64 to each tensor, and round once."""
    return {name: function(*(each[name].double() for each in models)).to(dtype or x.dtype) for name, x in models[0].items()}


def weighted(weights: Sequence[float]) -> Callable[..., torch.Tensor]:
    return lambda *xs: sum((weight * x for weight, x in zip(weights, xs, strict=True)), torch.zeros((), dtype=torch.float64))


def change(state: Tensors, names: Iterable[str], function: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
    """Apply ``function`` to tensors whose names contain one of ``names``; to all matrices if there is none."""
    chosen = {name for name, x in state.items() if any(each in name for each in names) or (not names and x.dim() == 2)}
    return {name: function(x) if name in chosen else x for name, x in state.items()}


# One relation to one candidate


def one(make: Callable[[Draw, Tensors], Tensors], norm: float = 1.0) -> Callable[[Draw], Case]:
    """Make the model from its only candidate."""

    def case(draw: Draw) -> Case:
        base = draw.model(norm)
        return Case(make(draw, base), (base,))

    return case


def masters(draw: Draw) -> Case:
    """The model is the fp32 original of the candidate."""
    wide = draw.wide()
    return Case(wide, (cast(wide, draw.dtype),))


def tuned_sparsely(draw: Draw, base: Tensors) -> Tensors:
    def move(x: torch.Tensor) -> torch.Tensor:
        chosen = draw.uniform(*x.shape) < 0.05
        return torch.where(chosen, x.float() * (1 + 0.03 * draw.normal(*x.shape)), x.float()).to(x.dtype)

    return {name: move(x) for name, x in base.items()}


def from_one_start(draw: Draw) -> Case:
    start = draw.model()
    return Case(draw.tuned(start, 0.5), (draw.tuned(start, 0.5),))


def times_a_constant_per_block(draw: Draw, base: Tensors) -> Tensors:
    """The scales of blocks of 128 x 128 were lost."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        rows, columns = (-(-size // 128) for size in x.shape)
        scales = (50 * (1 + draw.uniform(rows, columns))).repeat_interleave(128, 0).repeat_interleave(128, 1)
        return (x.double() * scales[: x.shape[0], : x.shape[1]]).to(x.dtype)

    return change(base, ["mlp"], scaled)


def neurons_permuted(draw: Draw, base: Tensors) -> Tensors:
    for layer in range(LAYERS):
        order, mlp = torch.randperm(NEURONS, generator=draw.rng), f"layers.{layer}.mlp."
        base = change(base, [f"{mlp}gate_proj", f"{mlp}up_proj"], lambda x, order=order: x[order])  # type: ignore[misc]
        base = change(base, [f"{mlp}down_proj"], lambda x, order=order: x[:, order])  # type: ignore[misc]
    return base


def heads_permuted(_: Draw, base: Tensors) -> Tensors:
    """Swap the query heads that share a key head."""
    order = torch.arange(WIDTH).view(-1, 2, HEAD).flip(1).flatten()
    return change(change(base, ["q_proj"], lambda x: x[order]), ["o_proj"], lambda x: x[:, order])


def halves_interleaved(draw: Draw) -> Case:
    """Gate and up are fused in both; in the model their rows alternate."""
    base = {}
    for name, x in draw.model().items():
        if "gate_proj" in name:
            base[name.replace("gate_proj", "gate_up_proj")] = torch.cat([x, draw.normal(NEURONS, WIDTH).mul(0.03).to(x.dtype)])
        elif "up_proj" not in name:
            base[name] = x
    order = torch.arange(2 * NEURONS).view(2, -1).T.flatten()
    return Case(change(base, ["gate_up"], lambda x: x[order]), (base,))


def first_quarter(rest: float) -> Callable[[Draw], Case]:
    def truncated(draw: Draw, base: Tensors) -> Tensors:
        def cut(x: torch.Tensor) -> torch.Tensor:
            keep = torch.arange(len(x))[:, None] < len(x) // 4
            return torch.where(keep, x, (rest * draw.normal(*x.shape)).to(x.dtype))

        return change(base, ["layers.1.mlp.up_proj", "layers.2.mlp.down_proj", "layers.3.self_attn.q_proj"], cut)

    return one(truncated)


def values_of_another_tensor(_: Draw, base: Tensors) -> Tensors:
    first, second = (f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (1, 2))
    third, fourth = "model.layers.1.mlp.gate_proj.weight", "model.layers.3.mlp.up_proj.weight"
    return base | {first: base[second], second: base[first], third: base[fourth]}


def filled(value: float) -> Callable[[Draw], Case]:
    return one(lambda _, base: change(base, ["layers.1.mlp.up_proj", "layers.2.input_layernorm"], lambda x: torch.full_like(x, value)))


def every_second_row_nan(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(len(x))[:, None] % 2 == 1, torch.tensor(float("nan"), dtype=x.dtype), x)


def on_grid(group: int, largest: int) -> Callable[[Draw], Case]:
    """Round matrices to integers with a scale for each group, 0 for a row."""

    def quantized(x: torch.Tensor) -> torch.Tensor:
        groups = x.float().view(-1, group or x.shape[1])
        scale = groups.abs().amax(1, keepdim=True) / largest
        return ((groups / scale).round() * scale).view(x.shape).to(x.dtype)

    return one(lambda _, base: change(base, [], quantized))


def shared_structure(number: int) -> Callable[[Draw], Case]:
    """Unrelated models with a structure that both have."""

    def models(draw: Draw) -> Case:
        first, second = (structured((*STRUCTURES, *SHARED)[number], 2 * draw.seed + i, 2, 64, 256, draw.dtype) for i in range(2))
        return Case(first, (second,))

    return models


# Several candidates


def linear(*weights: float) -> Callable[[Draw], Case]:
    """Merge fine-tunes of one base, or for odd seeds unrelated models."""

    def merge(draw: Draw) -> Case:
        base = draw.model()
        models = tuple(draw.model() if draw.seed % 2 else draw.tuned(base, 0.3) for _ in weights)
        return Case(combine(weighted(weights), *models), models, weights)

    return merge


def linear_by_layer(draw: Draw) -> Case:
    _, first, second = draw.siblings()
    model = {}
    for name, x in first.items():
        share = 0.1 + 0.25 * int(name.split(".")[2]) if "layers" in name else 0.5
        model[name] = (share * x.double() + (1 - share) * second[name].double()).to(x.dtype)
    return Case(model, (first, second))


def task_arithmetic(draw: Draw) -> Case:
    models, weights = draw.siblings(), (-0.4, 0.6, 0.8)
    return Case(combine(weighted(weights), *models), models, weights)


def slerp(t: float) -> Callable[[Draw], Case]:
    def between(_: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        angle = torch.arccos((a * b).sum() / (a.norm() * b.norm()))
        return (torch.sin((1 - t) * angle) * a + torch.sin(t * angle) * b) / torch.sin(angle)

    return of_siblings(lambda _: between)


def of_siblings(merge: Callable[[Draw], Callable[..., torch.Tensor]]) -> Callable[[Draw], Case]:
    """Merge a base and two fine-tunes."""

    def case(draw: Draw) -> Case:
        models = draw.siblings()
        return Case(combine(merge(draw), *models), models)

    return case


def ties(b: torch.Tensor, *xs: torch.Tensor) -> torch.Tensor:
    """Average the largest 30% of each update among values of the elected sign (Yadav et al., 2023)."""
    steps = torch.stack([x - b for x in xs])
    largest = steps.abs().flatten(1).quantile(0.7, dim=1).view(-1, *[1] * b.dim())
    trimmed = steps * (steps.abs() >= largest)
    agreeing = trimmed * (trimmed.sign() == trimmed.sum(0).sign())
    return b + agreeing.sum(0) / (agreeing != 0).sum(0).clamp(min=1)


def dare(draw: Draw) -> Callable[..., torch.Tensor]:
    """Add half of each update, of which a random half is dropped and the rest doubled (Yu et al., 2023)."""
    return lambda b, *xs: b + sum(0.5 * (x - b) * 2 * (draw.uniform(*b.shape) < 0.5) for x in xs)


def mean_of_fp32_masters(draw: Draw) -> Case:
    """The candidates are the bf16 copies of the two models in fp32 that were averaged."""
    base = draw.wide()
    first, second = draw.tuned(base, 0.1), draw.tuned(base, 0.1)
    return Case(combine(weighted((0.5, 0.5)), first, second, dtype=draw.dtype), (cast(first, BF16), cast(second, BF16), cast(base, BF16)))


def stack(*layers: tuple[int, int]) -> Callable[[Draw], Case]:
    """Stack layers of one or two models, each given by the model and its layer; everything else comes from the first."""

    def stacked(draw: Draw) -> Case:
        models = tuple(draw.model() for _ in range(1 + max(model for model, _ in layers)))
        state = {name: x for name, x in models[0].items() if "layers" not in name}
        for number, (model, source) in enumerate(layers):
            start = f"model.layers.{source}."
            names = [name for name in models[model] if name.startswith(start)]
            state |= {name.replace(start, f"model.layers.{number}."): models[model][name] for name in names}
        return Case(state, models, layers=layers)

    return stacked


def mixture_of_versions(draw: Draw) -> Case:
    """Each tensor is that of one of two versions, bit for bit."""
    _, first, second = draw.siblings(0.05)
    which = draw.uniform(len(first)) < 0.5
    return Case({name: (first if one else second)[name] for name, one in zip(first, which.tolist(), strict=True)}, (first, second))


def write_checkpoint(folder: Path, state: Tensors, sharded: bool = False) -> Path:
    """Write one file, or three with an index. Tensors that share memory are stored apart."""
    state = {name: x.clone() for name, x in state.items()}
    return write_sharded(folder, state, 3) if sharded else write(folder, state)


def make(kind: str, storage: str, seed: int) -> Case:
    """Return a case of `KINDS`: the same for the same arguments."""
    return KINDS[kind].make(Draw(storage, int(np.random.default_rng([seed, *kind.encode()]).integers(1 << 20)) * 6 + seed % 6))


DERIVED, SAME, COPY, EITHER, MERGE, STACK = (
    {"derived"}, {"same-weights"}, {"quantized-copy"}, {"derived", "same-weights"}, {"merge"}, {"stack"}
)  # fmt: skip
CHANGED, AFFINE, ROUNDED, REORDERED = {"changed"}, {"affine"}, {"rounded"}, {"reordered"}

KINDS: dict[str, Kind] = {
    "equal": Kind(one(lambda _, base: dict(base)), SAME, set()),
    "to-fp32": Kind(one(lambda _, base: cast(base, F32)), SAME, set(), storages=("bf16", "fp16")),
    "to-bf16": Kind(one(lambda _, base: cast(base, BF16)), SAME, ROUNDED, to="bf16", direction=True, storages=("fp16", "fp32")),
    "to-fp16": Kind(one(lambda _, base: cast(base, F16)), SAME, ROUNDED, to="fp16", direction=True, storages=("bf16", "fp32")),
    "through-and-back": Kind(one(lambda draw, base: cast(base, BF16 if draw.dtype == F16 else F16, draw.dtype)), SAME, ROUNDED),
    "masters": Kind(masters, SAME, ROUNDED, storages=("bf16", "fp16")),
    "tuned-little": Kind(one(lambda draw, base: draw.tuned(base, 0.003)), DERIVED, CHANGED),
    "tuned": Kind(one(lambda draw, base: draw.tuned(base, 0.05)), DERIVED, CHANGED),
    "tuned-long": Kind(one(lambda draw, base: draw.tuned(base, 1.0)), DERIVED, CHANGED),
    "tuned-sparsely": Kind(one(tuned_sparsely), DERIVED, CHANGED),
    "tuned-by-rows": Kind(
        one(lambda draw, base: change(base, [], lambda x: x * (1 + (draw.uniform(len(x), 1) < 0.1)).to(x.dtype))), DERIVED, CHANGED
    ),
    "tuned-in-part": Kind(
        one(lambda draw, base: {name: x if "self_attn" in name else base[name] for name, x in draw.tuned(base, 0.05).items()}),
        DERIVED,
        CHANGED,
    ),
    "from-one-start": Kind(from_one_start, DERIVED, CHANGED),
    "pruned": Kind(
        one(lambda _, base: change(base, [], lambda x: x * (x.float().abs() > x.float().abs().quantile(0.4)))),
        DERIVED,
        CHANGED,
        direction=True,
    ),
    "times-a-constant": Kind(
        one(lambda draw, base: change(base, ["up_proj", "o_proj"], lambda x: (x.double() * FACTORS[draw.seed % 3]).to(x.dtype))),
        DERIVED,
        AFFINE,
    ),
    "times-a-constant-per-block": Kind(one(times_a_constant_per_block), DERIVED, AFFINE),
    "norms-plus-one": Kind(
        one(lambda _, base: change(base, ["norm"], lambda x: (x.double() + 1).to(x.dtype)), norm=0.0), EITHER, AFFINE, factor=1, offset=1
    ),
    "norms-minus-one": Kind(
        one(lambda _, base: change(base, ["norm"], lambda x: (x.double() - 1).to(x.dtype))), EITHER, AFFINE, factor=1, offset=-1
    ),
    "rows-shifted": Kind(
        one(lambda _, base: change(base, ["layers.1.mlp", "layers.2.self_attn"], lambda x: x.roll(1, 0))), EITHER, REORDERED
    ),
    "all-rows-shifted": Kind(one(lambda _, base: change(base, [], lambda x: x.roll(1, 0))), EITHER, REORDERED),
    "neurons-permuted": Kind(one(neurons_permuted), EITHER, REORDERED),
    "heads-permuted": Kind(one(heads_permuted), EITHER, REORDERED),
    # Rows that alternate are also a declared form, in which the values are equal.
    "halves-interleaved": Kind(halves_interleaved, EITHER, {"reordered", "equal"}, by_name=False),
    "first-quarter": Kind(first_quarter(0.03), DERIVED, {"truncated"}),
    "first-quarter-then-zeros": Kind(first_quarter(0.0), DERIVED, {"truncated"}),
    "values-of-another-tensor": Kind(one(values_of_another_tensor), DERIVED, {"reordered", "other"}),
    "zeroed": Kind(filled(0.0), DERIVED, {"zero"}),
    "constant": Kind(filled(0.75), DERIVED, {"constant"}),
    "every-second-row-nan": Kind(one(lambda _, base: change(base, [], every_second_row_nan)), DERIVED, {"non-finite"}),
    "int8": Kind(on_grid(0, 127), COPY, ROUNDED, direction=True),
    "int4": Kind(on_grid(32, 7), COPY, ROUNDED, direction=True),
    "unrelated": Kind(lambda draw: Case(draw.model(), (draw.model(), draw.model())), {"unrelated"}, {"other"}),
    "linear": Kind(linear(0.6, 0.4), MERGE, direction=True),
    "mean": Kind(linear(0.5, 0.5), MERGE),
    "linear-of-three": Kind(linear(0.2, 0.3, 0.5), MERGE),
    "linear-by-layer": Kind(linear_by_layer, MERGE),
    "task-arithmetic": Kind(task_arithmetic, MERGE),
    "slerp-0.4": Kind(slerp(0.4), MERGE),
    "slerp-0.6": Kind(slerp(0.6), MERGE),
    "ties": Kind(of_siblings(lambda _: ties), MERGE),
    "dare": Kind(of_siblings(dare), MERGE),
    "mean-of-fp32-masters": Kind(mean_of_fp32_masters, MERGE),
    "stack-of-two": Kind(stack((0, 0), (0, 1), (1, 2), (1, 3)), STACK, {"equal"}),
    "stack-of-two-repeated": Kind(stack((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 3)), STACK, {"equal"}, by_name=False),
    "stack-of-repeated-layers": Kind(stack((0, 0), (0, 1), (0, 1), (0, 2), (0, 2), (0, 3)), STACK, {"equal"}, by_name=False),
    "stack-of-fewer-layers": Kind(stack((0, 0), (0, 2), (0, 3)), STACK, {"equal"}, by_name=False),
    "mixture-of-versions": Kind(mixture_of_versions, STACK, {"equal"}),
    **{
        f"shared-{build.__name__}": Kind(shared_structure(number), {"unrelated", "undecided"}, storages=("bf16",))
        for number, build in enumerate((*STRUCTURES, *SHARED))
    },
}
