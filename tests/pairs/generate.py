"""Makes small decoders, and from them checkpoints of every kind of relation, seeded.

A kind is a function of `Draw` that returns the model X and its candidates P_1, P_2, ...; P_1 is also the base of sparsity.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from tests.dtype.checkpoints import write, write_sharded
from tests.parents.structures import SHARED, STRUCTURES, structured

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
STORAGES = {"bf16": BF16, "fp16": F16, "fp32": F32}
LAYERS, WIDTH, HEAD, NEURONS, VOCABULARY = 4, 64, 16, 160, 64
Tensors = dict[str, torch.Tensor]
Change = Callable[[torch.Tensor], torch.Tensor]


class Case(NamedTuple):
    """A model X with its candidates.

    weights: those of a linear merge, one for each candidate. layers: of a stack, the candidate and its layer for each layer of X.
    """

    model: Tensors
    candidates: tuple[Tensors, ...]
    weights: tuple[float, ...] | None = None
    layers: tuple[tuple[int, int], ...] | None = None


class Draw:
    """Random numbers of one case, and the dtype in which its checkpoints are stored."""

    def __init__(self, storage: str, seed: int) -> None:
        self.dtype, self.seed = STORAGES[storage], seed
        self.rng = torch.Generator().manual_seed(1000 + seed)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.rng)

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

    def model(self) -> Tensors:
        return self.stored(self.wide())

    def stored(self, state: Tensors) -> Tensors:
        return cast(state, self.dtype)

    def tuned(self, base: Tensors, size: float, dtype: torch.dtype | None = None) -> Tensors:
        """Move each tensor in a random direction by ``size`` times its norm (vectors: of their deviations from the mean)."""

        def move(x: torch.Tensor) -> torch.Tensor:
            return x.float() + size * (x.float() - (x.float().mean() if x.dim() == 1 else 0)).square().mean().sqrt() * self.normal(*x.shape)

        return {name: move(x).to(dtype or x.dtype) for name, x in base.items()}

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


def change(state: Tensors, pattern: str | Iterable[str], function: Change) -> Tensors:
    """Apply ``function`` to tensors whose names contain the pattern, or one of them."""
    patterns = (pattern,) if isinstance(pattern, str) else tuple(pattern)
    return {name: function(x) if any(each in name for each in patterns) else x for name, x in state.items()}


def change_matrices(state: Tensors, function: Change) -> Tensors:
    return {name: function(x) if x.dim() == 2 else x for name, x in state.items()}


# One relation to one candidate


def equal(draw: Draw) -> Case:
    base = draw.model()
    return Case(dict(base), (base,))


def rounding(*dtypes: torch.dtype) -> Callable[[Draw], Case]:
    def rounded(draw: Draw) -> Case:
        base = draw.model()
        return Case(cast(base, *dtypes), (base,))

    return rounded


def masters(draw: Draw) -> Case:
    """The model is the fp32 original of the candidate."""
    wide = draw.wide()
    return Case(wide, (draw.stored(wide),))


def through_and_back(draw: Draw) -> Case:
    base = draw.model()
    return Case(cast(base, BF16 if draw.dtype == F16 else F16, draw.dtype), (base,))


def tuning(size: float) -> Callable[[Draw], Case]:
    def tuned(draw: Draw) -> Case:
        base = draw.model()
        return Case(draw.tuned(base, size), (base,))

    return tuned


def tuned_sparsely(draw: Draw) -> Case:
    base = draw.model()

    def move(x: torch.Tensor) -> torch.Tensor:
        chosen = torch.rand(x.shape, generator=draw.rng) < 0.05
        return torch.where(chosen, x.float() * (1 + 0.03 * draw.normal(*x.shape)), x.float()).to(x.dtype)

    return Case({name: move(x) for name, x in base.items()}, (base,))


def tuned_by_rows(draw: Draw) -> Case:
    """A tenth of the rows of each matrix doubled."""
    base = draw.model()
    return Case(change_matrices(base, lambda x: x * (1 + (torch.rand(len(x), 1, generator=draw.rng) < 0.1)).to(x.dtype)), (base,))


def tuned_in_part(draw: Draw) -> Case:
    """Only the attention was trained."""
    base = draw.model()
    return Case({name: x if "self_attn" in name else base[name] for name, x in draw.tuned(base, 0.05).items()}, (base,))


def from_one_start(draw: Draw) -> Case:
    start = draw.model()
    return Case(draw.tuned(start, 0.5), (draw.tuned(start, 0.5),))


def pruned(draw: Draw) -> Case:
    base = draw.model()
    return Case(change_matrices(base, lambda x: x * (x.float().abs() > x.float().abs().quantile(0.4))), (base,))


def times_a_constant(draw: Draw) -> Case:
    base, factor = draw.model(), FACTORS[draw.seed % len(FACTORS)]
    return Case(change(base, ("up_proj", "o_proj"), lambda x: (x.double() * factor).to(x.dtype)), (base,))


FACTORS = (0.7, 2.0, 30.0)


def times_a_constant_per_block(draw: Draw) -> Case:
    """The scales of blocks of 128 x 128 were lost."""
    base = draw.model()

    def scaled(x: torch.Tensor) -> torch.Tensor:
        rows, columns = (-(-size // 128) for size in x.shape)
        scales = (50 * (1 + torch.rand(rows, columns, generator=draw.rng))).repeat_interleave(128, 0).repeat_interleave(128, 1)
        return (x.double() * scales[: x.shape[0], : x.shape[1]]).to(x.dtype)

    return Case(change(base, "mlp", scaled), (base,))


def norms_plus_one(draw: Draw) -> Case:
    base = draw.stored(draw.wide(norm=0.0))
    return Case(change(base, "norm", lambda x: (x.double() + 1).to(x.dtype)), (base,))


def norms_minus_one(draw: Draw) -> Case:
    base = draw.model()
    return Case(change(base, "norm", lambda x: (x.double() - 1).to(x.dtype)), (base,))


def rows_shifted(draw: Draw) -> Case:
    base = draw.model()
    return Case(change(base, ("layers.1.mlp", "layers.2.self_attn"), lambda x: x.roll(1, 0)), (base,))


def all_rows_shifted(draw: Draw) -> Case:
    base = draw.model()
    return Case(change_matrices(base, lambda x: x.roll(1, 0)), (base,))


def neurons_permuted(draw: Draw) -> Case:
    base = draw.model()
    model = dict(base)
    for layer in range(LAYERS):
        order = torch.randperm(NEURONS, generator=draw.rng)
        names = [f"layers.{layer}.mlp.gate_proj", f"layers.{layer}.mlp.up_proj"]
        model = change(model, names, partial(torch.index_select, dim=0, index=order))
        model = change(model, f"layers.{layer}.mlp.down_proj", partial(torch.index_select, dim=1, index=order))
    return Case(model, (base,))


def heads_permuted(draw: Draw) -> Case:
    """Swap the query heads that share a key head."""
    base = draw.model()
    order = torch.arange(WIDTH).view(-1, 2, HEAD).flip(1).flatten()
    return Case(change(change(base, "q_proj", lambda x: x[order]), "o_proj", lambda x: x[:, order]), (base,))


def halves_interleaved(draw: Draw) -> Case:
    """Gate and up are fused in both; in the model their rows alternate."""
    base = {}
    for name, x in draw.model().items():
        if "gate_proj" in name:
            base[name.replace("gate_proj", "gate_up_proj")] = torch.cat([x, draw.normal(NEURONS, WIDTH).mul(0.03).to(x.dtype)])
        elif "up_proj" not in name:
            base[name] = x
    order = torch.arange(2 * NEURONS).view(2, -1).T.flatten()
    return Case(change(base, "gate_up", lambda x: x[order]), (base,))


def first_quarter(rest: float) -> Callable[[Draw], Case]:
    def truncated(draw: Draw) -> Case:
        base = draw.model()

        def cut(x: torch.Tensor) -> torch.Tensor:
            keep = torch.arange(len(x))[:, None] < len(x) // 4
            return torch.where(keep, x, (rest * draw.normal(*x.shape)).to(x.dtype))

        return Case(change(base, ("layers.1.mlp.up_proj", "layers.2.mlp.down_proj", "layers.3.self_attn.q_proj"), cut), (base,))

    return truncated


def values_of_another_tensor(draw: Draw) -> Case:
    base = draw.model()
    first, second = (f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (1, 2))
    third, fourth = "model.layers.1.mlp.gate_proj.weight", "model.layers.3.mlp.up_proj.weight"
    return Case(base | {first: base[second], second: base[first], third: base[fourth]}, (base,))


def zeroed(draw: Draw) -> Case:
    base = draw.model()
    return Case(change(base, ("layers.1.mlp.up_proj", "layers.2.input_layernorm"), torch.zeros_like), (base,))


def constant(draw: Draw) -> Case:
    base = draw.model()
    return Case(change(base, ("layers.1.mlp.up_proj", "layers.2.input_layernorm"), lambda x: torch.full_like(x, 0.75)), (base,))


def every_second_row_nan(draw: Draw) -> Case:
    base = draw.model()
    nan = torch.tensor(float("nan"))
    return Case(change_matrices(base, lambda x: torch.where(torch.arange(len(x))[:, None] % 2 == 1, nan.to(x.dtype), x)), (base,))


def int8_copy(draw: Draw) -> Case:
    base = draw.model()
    return Case(change_matrices(base, lambda x: _on_grid(x, x.shape[1], 127)), (base,))


def int4_copy(draw: Draw) -> Case:
    base = draw.model()
    return Case(change_matrices(base, lambda x: _on_grid(x, 32, 7)), (base,))


def _on_grid(x: torch.Tensor, group: int, largest: int) -> torch.Tensor:
    groups = x.float().view(-1, group)
    scale = groups.abs().amax(1, keepdim=True) / largest
    return ((groups / scale).round() * scale).view(x.shape).to(x.dtype)


def unrelated(draw: Draw) -> Case:
    return Case(draw.model(), (draw.model(), draw.model()))


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
        share = 0.2 + 0.15 * int(name.split(".")[2]) if "layers" in name else 0.5
        model[name] = (share * x.double() + (1 - share) * second[name].double()).to(x.dtype)
    return Case(model, (first, second))


def task_arithmetic(draw: Draw) -> Case:
    base, first, second = draw.siblings()
    weights = (-0.4, 0.6, 0.8)
    return Case(combine(weighted(weights), base, first, second), (base, first, second), weights)


def slerp(t: float) -> Callable[[Draw], Case]:
    def between(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        angle = torch.arccos((a * b).sum() / (a.norm() * b.norm()))
        return (torch.sin((1 - t) * angle) * a + torch.sin(t * angle) * b) / torch.sin(angle)

    def merge(draw: Draw) -> Case:
        base, first, second = draw.siblings()
        return Case(combine(between, first, second), (base, first, second))

    return merge


def ties(draw: Draw) -> Case:
    """Average the largest 30% of each update among values of the elected sign (Yadav et al., 2023)."""

    def merge(b: torch.Tensor, *xs: torch.Tensor) -> torch.Tensor:
        steps = torch.stack([x - b for x in xs])
        largest = steps.abs().flatten(1).quantile(0.7, dim=1).view(-1, *[1] * b.dim())
        trimmed = steps * (steps.abs() >= largest)
        agreeing = trimmed * (trimmed.sign() == trimmed.sum(0).sign())
        return b + agreeing.sum(0) / (agreeing != 0).sum(0).clamp(min=1)

    models = draw.siblings()
    return Case(combine(merge, *models), models)


def dare(draw: Draw) -> Case:
    """Add half of each update, of which a random half is dropped and the rest doubled (Yu et al., 2023)."""
    models = draw.siblings()

    def merge(b: torch.Tensor, *xs: torch.Tensor) -> torch.Tensor:
        return b + sum(0.5 * (x - b) * 2 * (torch.rand(b.shape, generator=draw.rng) < 0.5) for x in xs)

    return Case(combine(merge, *models), models)


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
    which = torch.rand(len(first), generator=draw.rng) < 0.5
    return Case({name: (first if one else second)[name] for name, one in zip(first, which.tolist(), strict=True)}, (first, second))


def write_checkpoint(folder: Path, state: Tensors, sharded: bool) -> Path:
    """Write one file, or three with an index. Tensors that share memory are stored apart."""
    state = {name: x.clone() for name, x in state.items()}
    return write_sharded(folder, state, 3) if sharded else write(folder, state)


def make(kind: str, storage: str, seed: int) -> Case:
    """Return a case of `KINDS`: the same for the same arguments."""
    return KINDS[kind](Draw(storage, int(np.random.default_rng([seed, *kind.encode()]).integers(1 << 20)) * 6 + seed % 6))


KINDS: dict[str, Callable[[Draw], Case]] = {
    "equal": equal,
    "to-fp32": rounding(F32),
    "to-bf16": rounding(BF16),
    "to-fp16": rounding(F16),
    "through-and-back": through_and_back,
    "masters": masters,
    "tuned-little": tuning(0.003),
    "tuned": tuning(0.05),
    "tuned-long": tuning(1.0),
    "tuned-sparsely": tuned_sparsely,
    "tuned-by-rows": tuned_by_rows,
    "tuned-in-part": tuned_in_part,
    "from-one-start": from_one_start,
    "pruned": pruned,
    "times-a-constant": times_a_constant,
    "times-a-constant-per-block": times_a_constant_per_block,
    "norms-plus-one": norms_plus_one,
    "norms-minus-one": norms_minus_one,
    "rows-shifted": rows_shifted,
    "all-rows-shifted": all_rows_shifted,
    "neurons-permuted": neurons_permuted,
    "heads-permuted": heads_permuted,
    "halves-interleaved": halves_interleaved,
    "first-quarter": first_quarter(0.03),
    "first-quarter-then-zeros": first_quarter(0.0),
    "values-of-another-tensor": values_of_another_tensor,
    "zeroed": zeroed,
    "constant": constant,
    "every-second-row-nan": every_second_row_nan,
    "int8": int8_copy,
    "int4": int4_copy,
    "unrelated": unrelated,
    "linear": linear(0.6, 0.4),
    "mean": linear(0.5, 0.5),
    "linear-of-three": linear(0.2, 0.3, 0.5),
    "linear-by-layer": linear_by_layer,
    "task-arithmetic": task_arithmetic,
    "slerp-0.4": slerp(0.4),
    "slerp-0.6": slerp(0.6),
    "ties": ties,
    "dare": dare,
    "mean-of-fp32-masters": mean_of_fp32_masters,
    "stack-of-two": stack((0, 0), (0, 1), (1, 2), (1, 3)),
    "stack-of-two-repeated": stack((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 3)),
    "stack-of-repeated-layers": stack((0, 0), (0, 1), (0, 1), (0, 2), (0, 2), (0, 3)),
    "stack-of-fewer-layers": stack((0, 0), (0, 2), (0, 3)),
    "mixture-of-versions": mixture_of_versions,
    **{f"shared-{build.__name__}": shared_structure(number) for number, build in enumerate((*STRUCTURES, *SHARED))},
}
